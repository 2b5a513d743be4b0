"""ascend-alloc under torch_npu.

    import torch, torch_npu, ascend_alloc_torch
    ascend_alloc_torch.install()        # before the first use of a device

From then on all that torch.npu says and does about memory is this allocator's: statistics, snapshots, histories,
pools, graphs, limits. README.md beside the package's setup.py has the details and the limits.
"""

import atexit
from pathlib import Path

__all__ = ["BuiltForAnotherVersion", "built_against", "install", "library_path"]

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
