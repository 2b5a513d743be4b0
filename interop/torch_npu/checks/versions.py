"""The extension refuses a torch or torch_npu that it was not built against, before anything of it is loaded."""

import sys

import torch
import torch_npu
from checking import check, check_findings, main

import ascend_alloc_torch
from ascend_alloc_torch import _built


def refused(name: str, version: str) -> str:
    """The text that install() raises when the extension was built against that version."""
    own = getattr(_built, name)
    setattr(_built, name, version)
    try:
        ascend_alloc_torch.install()
    except ascend_alloc_torch.BuiltForAnotherVersion as error:
        return str(error)
    finally:
        setattr(_built, name, own)
    raise AssertionError(f"{name} {version} was not refused")


@check("another version is refused")
def another() -> str:
    told = []
    # A post release of the same version, an older and a newer one.
    for name, here in (("TORCH_NPU", torch_npu.__version__), ("TORCH", torch.__version__)):
        for version in (f"{here}.post99", "1.2.3", "99.0.0"):
            text = refused(name, version)
            assert version in text and here in text and "install ascend_alloc_torch anew" in text, text
            told.append(text)
    assert isinstance(ascend_alloc_torch.BuiltForAnotherVersion(""), ImportError)
    assert "ascend_alloc_torch._C" not in sys.modules, "the extension was loaded although it was refused"
    return f"{len(told)} versions, each named beside the one that is there; the extension is not loaded for that"


@check("torch_npu's own allocator goes on")
def goes_on() -> str:
    host = torch.arange(1 << 20, dtype=torch.int32)
    assert torch.equal(host.npu().cpu(), host)
    assert torch.npu.memory_stats()["allocation.all.allocated"] > 0
    return "4 MiB there and back after the refusals"


@check("too late and twice")
def too_late() -> str:
    try:
        ascend_alloc_torch.install()
    except RuntimeError as error:
        assert "used a device already" in str(error), error
    else:
        raise AssertionError("install() after the first use of a device was not refused")
    return "install() after the first use of a device is refused"


check_findings(lambda: torch.npu.synchronize())


if __name__ == "__main__":
    main()
