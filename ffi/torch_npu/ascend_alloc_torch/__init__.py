"""ascend-alloc under torch_npu.

    import torch, torch_npu, ascend_alloc_torch
    ascend_alloc_torch.install()        # before the first use of a device

From then on all that torch.npu says and does about memory is this allocator's: statistics, snapshots, histories,
pools, graphs, limits. README.md beside the package's setup.py has the details and the limits.
"""

from __future__ import annotations

import atexit
import ctypes
import os
from pathlib import Path

__all__ = [
    "BuiltForAnotherVersion",
    "built_against",
    "install",
    "library_path",
    "mark",
    "start_trace",
    "stop_trace",
    "write_snapshot",
]

_installed = None


class BuiltForAnotherVersion(ImportError):
    """The extension was built against another version of torch or torch_npu than the one that runs."""


def library_path() -> str:
    """The C library, for torch_npu.npu.memory.NPUPluggableAllocator(library_path(), "ascend_alloc_malloc",
    "ascend_alloc_free"): the plain form, which works with every version of torch_npu."""
    return str(Path(__file__).resolve().with_name("libascend_alloc.so"))


def built_against() -> dict[str, str]:
    """The versions of torch and torch_npu that the extension was built against."""
    from . import _built

    return {"torch": _built.TORCH, "torch_npu": _built.TORCH_NPU}


def install(conf: str | None = None) -> None:
    """Makes ascend-alloc torch_npu's allocator, until the process ends.

    `conf` is a configuration text as in the environment variable ASCEND_ALLOC_CONF, and goes before it key by key.

    To be called once, before torch_npu has used a device. Raises BuiltForAnotherVersion where the extension does not
    belong to the torch_npu that is installed, and RuntimeError when torch_npu has used its own allocator already, or it was
    called before. The configuration is read at the first use of a device, which fails where it is refused.
    """
    global _installed
    if _installed is not None:
        raise RuntimeError("ascend_alloc_torch.install() was called before; one call is for the whole process")
    import torch
    import torch_npu

    _refuse_other_versions(torch.__version__, torch_npu.__version__)
    if torch_npu.npu.is_initialized():
        raise RuntimeError("torch_npu has used a device already; call ascend_alloc_torch.install() right after the imports")
    from . import _C

    handle = _C.connect(conf)
    torch_npu._C._npu_changeCurrentAllocator(handle)
    _installed = handle
    # Runs before torch_npu's own end, in which it gives back what it holds and resets the devices.
    atexit.register(_finish, _C)


def start_trace(path: str | os.PathLike) -> None:
    """Begins to record what happens to memory as a trace that `ascend-alloc replay` reads, compressed if the name ends with
    .zst; what is live stands at its beginning. For both forms. Raises RuntimeError when the file cannot be written."""
    _initialise()
    _tell("ascend_alloc_trace_start", os.fsencode(path))


def stop_trace() -> None:
    """Ends the trace that is being recorded and writes the rest of it. Nothing where there is none."""
    _tell("ascend_alloc_trace_stop")


def mark(text: str) -> None:
    """Says something to the trace that is being recorded, where it is a marker, such as the beginning of a step."""
    _tell("ascend_alloc_mark", text.encode())


def write_snapshot(path: str | os.PathLike) -> None:
    """Writes all memory of all devices at this moment to a file: a pickle that PyTorch's memory tools read, or JSON if the
    name ends with .json. For both forms; unlike torch.npu.memory._dump_snapshot() without Python's stacks."""
    _initialise()
    _tell("ascend_alloc_snapshot_write", os.fsencode(path), 0)


def _initialise() -> None:
    """In the full form the library is set up by torch_npu's own first use of a device, with the configuration of `install`."""
    if _installed is not None:
        import torch_npu

        torch_npu.npu.init()


def _tell(function: str, *arguments) -> None:
    if _installed is None:
        library = ctypes.CDLL(library_path())
    else:
        from . import _C

        # What is looked up in the extension is found in the library that it was loaded with, wherever that lies.
        library = ctypes.CDLL(_C.__file__)
    if getattr(library, function)(*arguments) != 0:
        library.ascend_alloc_last_error.restype = ctypes.c_char_p
        raise RuntimeError((library.ascend_alloc_last_error() or b"no reason is known").decode(errors="replace"))


def _refuse_other_versions(torch_version: str, npu_version: str) -> None:
    built = built_against()
    here = {"torch": str(torch_version), "torch_npu": str(npu_version)}
    wrong = [f"{name} {built[name]}, but {here[name]} is installed" for name in here if built[name] != here[name]]
    if wrong:
        raise BuiltForAnotherVersion(
            f"ascend_alloc_torch was built against {' and against '.join(wrong)}. Their C++ classes differ in layout from "
            "release to release: install ascend_alloc_torch anew (pip install --no-build-isolation --force-reinstall)"
        )


def _finish(extension) -> None:
    import gc

    gc.collect()
    extension.finish()
