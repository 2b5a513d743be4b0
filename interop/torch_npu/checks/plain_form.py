"""The plain form: our pair of functions behind torch_npu's pluggable allocator, for the process or in a pool."""

import ctypes
import gc
import os

import torch
import torch_npu
from checking import check, check_findings, main, simulator

MIB = 1 << 20
LIBRARY = "libascend_alloc.so"
GLOBAL = os.environ.get("INTEROP_FORM", "global") == "global"

allocator = torch_npu.npu.memory.NPUPluggableAllocator(LIBRARY, "ascend_alloc_malloc", "ascend_alloc_free")
if GLOBAL:
    torch_npu.npu.memory.change_current_allocator(allocator)


def ours(ptr: int) -> bool:
    """Whether a live block of ours begins there."""
    base, size = ctypes.c_void_p(), ctypes.c_size_t()
    ask = ctypes.CDLL(LIBRARY).ascend_alloc_base
    return ask(ctypes.c_void_p(ptr), ctypes.byref(base), ctypes.byref(size)) == 0


def pattern(size: int, seed: int) -> torch.Tensor:
    """Bytes that differ from place to place and from seed to seed."""
    return ((torch.arange(size) * 131 + seed * 89) % 251).to(torch.uint8)


def steps() -> None:
    """Tensors that come and go, with equal contents."""
    for step in range(20):
        kept = [pattern(size + 4096 * step, seed).to("npu:0") for seed, size in enumerate((1, 513, MIB, 3 * MIB + 7))]
        assert all(tensor.data_ptr() % 512 == 0 for tensor in kept)
        for seed, tensor in enumerate(kept):
            assert torch.equal(tensor.cpu(), pattern(tensor.numel(), seed)), f"step {step}, tensor {seed}"


@check("tensors")
def tensors() -> str:
    if GLOBAL:
        block = torch.empty(MIB, dtype=torch.uint8, device="npu:0")
        assert ours(block.data_ptr())
        del block
        # Pools can be made and used; their blocks are ours like all others.
        for source in (None, allocator.allocator()):
            with torch.npu.use_mem_pool(torch.npu.MemPool(source)):
                inside = torch.empty(30 * MIB, dtype=torch.uint8, device="npu:0")
                assert ours(inside.data_ptr()), "a block of a pool is none of ours"
                del inside
        steps()
        gc.collect()
        library = ctypes.CDLL(LIBRARY)
        assert library.ascend_alloc_empty_cache(-1) == 0
        return "20 steps of 4 tensors from our blocks, equal; two pools"
    pool = torch.npu.MemPool(allocator.allocator())
    with torch.npu.use_mem_pool(pool):
        block = torch.empty(30 * MIB, dtype=torch.uint8, device="npu:0")
        assert ours(block.data_ptr()), "the pool's segment is none of our blocks"
        steps()
    outside = torch.empty(30 * MIB, dtype=torch.uint8, device="npu:0")
    assert not ours(outside.data_ptr())
    return "20 steps of 4 tensors in a pool with segments of ours, equal; outside of it nothing is ours"


check_findings(lambda: torch.npu.synchronize())


if __name__ == "__main__":
    main()
