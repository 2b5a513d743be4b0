"""Builds the Rust library and the extension against the torch_npu that is installed here.

    pip install --no-build-isolation ffi/torch_npu

ASCEND_ALLOC_LIBRARY names a libascend_alloc.so to take instead of building one. The headers of torch_npu decide what
the interface has; the version is written down, and `install()` refuses another.
"""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import Extension, setup

HERE = Path(__file__).resolve().parent
PACKAGE = HERE / "ascend_alloc_torch"
LIBRARY = "libascend_alloc.so"

#: What releases differ in: a macro for each, and the text in a header that shows it.
FEATURES = {
    "DeviceAllocator": "NPUAllocator : public c10::DeviceAllocator",
    "snapshot_of_pool": "snapshot(MempoolId_t",
    "mempool_": "MempoolId_t mempool_;",
    "MemPoolContext": "struct C10_NPU_API MemPoolContext",
    **{
        name: f" {name}("
        for name in (
            "getMemoryFraction",
            "hasCapturesUnderway",
            "getPoolUseCount",
            "setUseOnOOM",
            "setNoSplit",
            "markCaptureBegin",
            "createOrIncrefPool",
            "attachOomRejectionObserver",
            "attachAllocatorTraceTracker",
        )
    },
}


def folder_of(module: str) -> Path:
    """Where a package is, without importing it: torch imports torch_npu, which wants the device's libraries."""
    found = importlib.util.find_spec(module)
    if found is None or not found.origin:
        sys.exit(f"{module} is not installed here; this package is built against it")
    return Path(found.origin).parent


def version_of(module: str) -> str:
    """The version that a package's module `version` says, as `module.__version__` does."""
    names: dict = {}
    exec((folder_of(module) / "version.py").read_text(), names)
    return str(names["__version__"])


def library() -> None:
    """The Rust library, beside the Python files."""
    given = os.environ.get("ASCEND_ALLOC_LIBRARY")
    if not given:
        manifest = str(HERE.parents[1] / "Cargo.toml")
        cargo = ["cargo", "build", "--release", "--package", "ascend-alloc-ffi", "--manifest-path", manifest]
        subprocess.run(cargo, check=True)
        question = ["cargo", "metadata", "--no-deps", "--format-version", "1", "--manifest-path", manifest]
        target = json.loads(subprocess.run(question, check=True, capture_output=True, text=True).stdout)["target_directory"]
        given = str(Path(target) / "release" / LIBRARY)
    # A new file in place of the old one, which a process may have mapped.
    (PACKAGE / LIBRARY).unlink(missing_ok=True)
    shutil.copy2(given, PACKAGE / LIBRARY)


def macros(npu: Path) -> list[tuple[str, None]]:
    """A macro for each feature that the installed headers have."""
    folder = npu / "include" / "torch_npu" / "csrc" / "core" / "npu"
    text = "\n".join(header.read_text(errors="replace") for header in [folder / "NPUCachingAllocator.h", folder / "MemPool.h"] if header.exists())
    found = [(f"AA_HAS_{name}", None) for name, sign in FEATURES.items() if sign in text]
    shared = folder_of("torch") / "include" / "c10" / "core" / "CachingDeviceAllocator.h"
    if ("AA_HAS_DeviceAllocator", None) in found and "reserved_bytes_by_private_pools" in shared.read_text():
        found.append(("AA_HAS_reserved_bytes_by_private_pools", None))
    symbols = subprocess.run(["nm", "-DC", "--defined-only", str(npu / "lib" / "libtorch_npu.so")], capture_output=True, text=True)
    if " T formatErrorCode" not in symbols.stdout:
        found.append(("AA_LACKS_formatErrorCode", None))
    return found


def extension() -> Extension:
    """The subclass of torch_npu's allocator interface."""
    npu, torch = folder_of("torch_npu"), folder_of("torch")
    third_party = npu / "include" / "third_party"
    newer = "C++20 or later" in (torch / "include" / "ATen" / "ATen.h").read_text()
    return Extension(
        "ascend_alloc_torch._C",
        [f"csrc/{name}.cpp" for name in ("allocator", "graphs", "history", "inspect", "missing", "module", "pools")],
        include_dirs=[
            str(HERE.parent / "include"),
            str(npu / "include"),
            str(third_party / "acl" / "inc"),
            str(third_party / "hccl" / "inc"),
            str(torch / "include"),
            str(torch / "include" / "torch" / "csrc" / "api" / "include"),
        ],
        define_macros=[*macros(npu), ("_GLIBCXX_USE_CXX11_ABI", "1")],
        language="c++",
        library_dirs=[str(npu / "lib"), str(torch / "lib"), str(PACKAGE)],
        libraries=["torch_npu", "torch_python", "torch", "torch_cpu", "c10", "ascend_alloc"],
        extra_compile_args=[f"-std=c++{20 if newer else 17}", "-O2", "-g0", "-fvisibility=hidden"],
        extra_link_args=["-Wl,-rpath,$ORIGIN"],
    )


library()
(PACKAGE / "_built.py").write_text(
    f'"""Written by setup.py: what the extension was built against."""\n\nTORCH = "{version_of("torch")}"\nTORCH_NPU = "{version_of("torch_npu")}"\n'
)
# What an earlier build left here may have been against other headers.
setup(ext_modules=[extension()], options={"build_ext": {"force": True}})
