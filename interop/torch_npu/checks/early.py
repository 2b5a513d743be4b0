"""What is asked of our allocator before the first use of a device: the settings of install() hold all the same."""

import os

import ascend_alloc_torch
import torch
import torch_npu
from checking import check, check_findings, main

MIB, GIB = 1 << 20, 1 << 30
ascend_alloc_torch.install("per_process_memory_fraction:0.25")


@check("a trace from the beginning")
def trace() -> str:
    assert not torch_npu.npu.is_initialized()
    ascend_alloc_torch.stop_trace()
    ascend_alloc_torch.mark("nobody hears this")
    assert not torch_npu.npu.is_initialized()
    ascend_alloc_torch.start_trace("early.trace")
    kept = torch.empty(30 * MIB, dtype=torch.uint8, device="npu:0")
    del kept
    ascend_alloc_torch.stop_trace()
    with open("early.trace") as file:
        text = file.read()
    assert str(30 * MIB) in text, text
    return f"{len(text.splitlines())} lines, from before the first use of a device"


@check("the share of install()")
def share() -> str:
    told = []
    torch_npu._C._npu_attach_out_of_memory_observer(lambda *figures: told.append(figures))
    fits = torch.empty(400 * MIB, dtype=torch.uint8, device="npu:0")
    del fits
    try:
        torch.empty(600 * MIB, dtype=torch.uint8, device="npu:0")
    except torch.OutOfMemoryError as error:
        assert "limit" in str(error), error
    else:
        raise AssertionError("600 MiB were handed out of a quarter of 2 GiB")
    if hasattr(torch.npu, "get_per_process_memory_fraction"):
        assert abs(torch.npu.get_per_process_memory_fraction(0) - 0.25) < 1e-6
    assert [figures[2] for figures in told] == [GIB // 2], told
    torch.npu.empty_cache()
    return "a quarter of 2 GiB, also to torch_npu and to observers of out of memory"


check_findings(lambda: torch.npu.synchronize())


if __name__ == "__main__":
    main()
