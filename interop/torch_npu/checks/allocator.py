"""torch_npu's allocator: all that it offers, its own or ours (INTEROP_ALLOCATOR=ours), which has to offer the same.

Operators are no-ops: only copies and fills move bytes.
"""

import gc
import os

import torch
import torch_npu
from checking import check, check_findings, main, noop_calls, simulator

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
# torch_npu raises torch's own error since 2.10.
OLD = torch_npu.__version__.startswith(("2.6", "2.7", "2.8", "2.9"))
OutOfMemory = RuntimeError if OLD else torch.OutOfMemoryError
OURS = os.environ.get("INTEROP_ALLOCATOR") == "ours"
if OURS:
    import ascend_alloc_torch

    ascend_alloc_torch.install()
# Our segments grow unless they are told not to.
EXPANDABLE = OURS or "expandable_segments:True" in os.environ.get("PYTORCH_NPU_ALLOC_CONF", "")
SIZES = [1, 511, 512, 513, 4 * KIB, MIB - 1, MIB, MIB + 1, 10 * MIB - 7, 20 * MIB, 21 * MIB + 3, 100 * MIB]


def block(size: int, device: str = "npu:0") -> torch.Tensor:
    """A tensor of `size` bytes on the device."""
    return torch.empty(size, dtype=torch.uint8, device=device)


def pattern(size: int, seed: int, pinned: bool = False) -> torch.Tensor:
    """Bytes on the host that differ from place to place and from seed to seed."""
    period = (torch.arange(509) * 131 + seed * 89).to(torch.uint8)
    made = period.repeat(size // 509 + 1)[:size].clone()
    return made.pin_memory() if pinned else made


def nothing_allocated(device: int = 0) -> None:
    """Fails if a block is still alive."""
    gc.collect()
    assert torch.npu.memory_allocated(device) == 0, torch.npu.memory_allocated(device)


def refuse(size: int) -> None:
    """Fails unless a block of that size is refused for want of memory."""
    try:
        block(size)
    except OutOfMemory as error:
        assert "out of memory" in str(error), error
    else:
        raise AssertionError(f"{size} bytes were not refused")


@check("import and is_available")
def available() -> str:
    assert torch.npu.is_available() and not torch.cuda.is_available()
    assert torch.npu.device_count() == 2, torch.npu.device_count()
    free, total = torch.npu.mem_get_info(0)
    assert 0 < free <= total == 2 * GIB, (free, total)
    name = torch.npu.get_device_name(0)
    assert name.startswith("Ascend910"), name
    return f"torch {torch.__version__}, torch_npu {torch_npu.__version__}, 2 devices {name} of {total >> 30} GiB"


@check("tensors of many sizes")
def sizes() -> str:
    before = simulator().calls()
    tensors = [block(size) for size in SIZES]
    ends = sorted((tensor.data_ptr(), tensor.data_ptr() + size) for tensor, size in zip(tensors, SIZES))
    assert all(end <= start for (_, end), (start, _) in zip(ends, ends[1:])), "blocks overlap"
    assert all(start % 512 == 0 for start, _ in ends), "a block is not aligned"
    assert torch.npu.memory_allocated() >= sum(SIZES)
    typed = [torch.empty((7, 33), dtype=kind, device="npu:0") for kind in (torch.float32, torch.float16, torch.int64)]
    assert [tensor.element_size() for tensor in typed] == [4, 2, 8]
    calls = simulator().calls()
    mapped = calls.get("aclrtMapMem", 0) - before.get("aclrtMapMem", 0)
    assert (mapped > 0) == EXPANDABLE, f"{mapped} chunks mapped, expandable segments {EXPANDABLE}"
    return f"{len(SIZES)} sizes from {SIZES[0]} B to {SIZES[-1] // MIB} MiB, no overlap, {mapped} chunks mapped"


@check("copies come back equal")
def copies() -> str:
    nothing_allocated()
    kept = [(host := pattern(size, seed), host.to("npu:0")) for seed, size in enumerate(SIZES)]
    for host, there in kept:
        assert torch.equal(there.cpu(), host), f"{host.numel()} bytes differ"
    # Free every other block, fill the holes with others, and look at those that stayed.
    stayed = kept[::2]
    del kept, host, there
    holes = [pattern(size, 77 + seed).to("npu:0") for seed, size in enumerate(SIZES)]
    for host, there in stayed:
        assert torch.equal(there.cpu(), host), f"{host.numel()} bytes were overwritten"
    for seed, (there, size) in enumerate(zip(holes, SIZES)):
        assert torch.equal(there.cpu(), pattern(size, 77 + seed))
    floats = torch.randn(1000, 77)
    assert torch.equal(floats.npu().cpu(), floats)
    target = block(3 * MIB)
    target.copy_(holes[-1][: 3 * MIB])
    assert torch.equal(target.cpu(), pattern(SIZES[-1], 77 + len(SIZES) - 1)[: 3 * MIB])
    return f"{len(SIZES)} sizes to the device and back, again after half was freed and reused, and on the device"


@check("pinned tensors")
def pinned() -> str:
    calls = simulator().calls()
    host = pattern(5 * MIB + 3, 5, pinned=True)
    assert host.is_pinned()
    there = host.to("npu:0", non_blocking=True)
    back = torch.empty_like(host).pin_memory()
    back.copy_(there, non_blocking=True)
    torch.npu.synchronize()
    assert torch.equal(back, host)
    after = simulator().calls()
    taken = sum(after.get(name, 0) - calls.get(name, 0) for name in after if name.startswith("aclrtMallocHost"))
    assert taken > 0, "no page-locked memory was asked for"
    return f"5 MiB there and back without blocking, {taken} page-locked blocks from the device's library"


@check("streams and events")
def streams() -> str:
    host = pattern(8 * MIB, 9, pinned=True)
    side, other = torch.npu.Stream(), torch.npu.Stream(priority=-1)
    assert side != other != torch.npu.current_stream()
    copied, begin, end = torch.npu.Event(), torch.npu.Event(enable_timing=True), torch.npu.Event(enable_timing=True)
    with torch.npu.stream(side):
        assert torch.npu.current_stream() == side
        begin.record()
        there = host.to("npu:0", non_blocking=True)
        copied.record()
        end.record()
    other.wait_event(copied)
    back = torch.empty_like(host).pin_memory()
    with torch.npu.stream(other):
        back.copy_(there, non_blocking=True)
    there.record_stream(other)
    other.synchronize()
    assert torch.equal(back, host)
    assert copied.query() and side.query()
    end.synchronize()
    elapsed = begin.elapsed_time(end)
    assert elapsed >= 0
    torch.npu.current_stream().wait_stream(side)
    # A stream has blocks of its own.
    with torch.npu.stream(side):
        mine = block(3 * MIB)
        place = mine.data_ptr()
        del mine
    elsewhere = block(3 * MIB)
    assert elsewhere.data_ptr() != place, "another stream got the block without waiting"
    with torch.npu.stream(side):
        assert block(3 * MIB).data_ptr() == place, "the stream did not get its block back"
    torch.npu.synchronize()
    return "copies on two side streams ordered by an event, query, elapsed_time, wait_stream, blocks by stream"


@check("record_stream")
def record_stream() -> str:
    # The other stream is still busy when the block is freed and one of its size is asked for.
    side, rounds = torch.npu.Stream(), 10
    for seed in range(rounds):
        host, other = pattern(4 * MIB, seed, pinned=True), pattern(4 * MIB, seed + 100, pinned=True)
        back = torch.zeros(4 * MIB, dtype=torch.uint8).pin_memory()
        there = host.to("npu:0", non_blocking=True)
        torch.npu.synchronize()
        with simulator().busy(side.npu_stream):
            with torch.npu.stream(side):
                back.copy_(there, non_blocking=True)
            there.record_stream(side)
            place = there.data_ptr()
            del there
            again = other.to("npu:0", non_blocking=True)
            assert again.data_ptr() != place, f"round {seed}: the block was handed out under work of another stream"
        torch.npu.synchronize()
        assert torch.equal(back, host), f"round {seed}: the block was overwritten under work of another stream"
        del again
    torch.npu.synchronize()
    free = [block(4 * MIB) for _ in range(2)]
    if OURS:
        # Any free memory may serve, so the place says nothing; that nothing waits any more does.
        del free
        nothing_allocated()
        torch.npu.empty_cache()
        left = torch.npu.memory_stats()
        assert left["active.all.current"] == left["reserved_bytes.all.current"] == 0, "the block did not come back"
    else:
        assert place in [tensor.data_ptr() for tensor in free], "the block did not come back after that work"
    return f"{rounds} frees under work of another stream, none reused before its end, then reused"


@check("memory_stats")
def stats() -> str:
    nothing_allocated()
    torch.npu.reset_peak_memory_stats()
    before = torch.npu.memory_stats()
    kept = [block(3 * MIB), block(100)]
    during = torch.npu.memory_stats()

    def grew(name: str) -> int:
        return during[name] - before[name]

    assert grew("allocation.all.current") == 2 and grew("active.all.current") == 2
    assert grew("allocation.large_pool.current") == 1 and grew("allocation.small_pool.current") == 1
    assert 3 * MIB + 100 <= grew("allocated_bytes.all.current") <= 3 * MIB + 2 * KIB
    requested = grew("requested_bytes.all.current")
    assert 3 * MIB + 100 <= requested <= 3 * MIB + 164, requested
    assert torch.npu.memory_allocated() == during["allocated_bytes.all.current"]
    assert torch.npu.memory_reserved() == during["reserved_bytes.all.current"] >= during["allocated_bytes.all.current"]
    del kept
    nothing_allocated()
    assert torch.npu.max_memory_allocated() == during["allocated_bytes.all.current"]
    assert torch.npu.memory_stats()["allocation.all.freed"] - before["allocation.all.freed"] == 2
    torch.npu.reset_peak_memory_stats()
    assert torch.npu.max_memory_allocated() == 0
    assert "Allocated memory" in torch.npu.memory_summary()
    return f"{len(during)} figures; counts and bytes of two blocks, peaks and their reset, memory_summary"


@check("empty_cache")
def empty_cache() -> str:
    nothing_allocated()
    torch.npu.synchronize()
    torch.npu.empty_cache()
    assert torch.npu.memory_reserved() == 0, torch.npu.memory_reserved()
    free, _ = torch.npu.mem_get_info(0)
    kept = block(30 * MIB)
    gone = block(200 * MIB)
    held, _ = torch.npu.mem_get_info(0)
    assert free - held >= 230 * MIB, (free, held)
    del gone
    torch.npu.empty_cache()
    back, _ = torch.npu.mem_get_info(0)
    assert back - held >= 200 * MIB, "the device did not get the memory back"
    assert kept.numel() <= torch.npu.memory_reserved() <= 64 * MIB, torch.npu.memory_reserved()
    del kept
    torch.npu.empty_cache()
    assert torch.npu.memory_reserved() == 0 and torch.npu.mem_get_info(0)[0] == free
    return f"200 of 230 MiB went back to the device, then all; {free >> 20} MiB free as before"


@check("memory_snapshot")
def snapshot() -> str:
    nothing_allocated()
    torch.npu.empty_cache()
    torch.npu.memory._record_memory_history()
    kept = [block(5 * MIB), block(MIB // 2)]
    dropped = block(7 * MIB)
    del dropped
    segments = torch.npu.memory_snapshot()
    blocks = [(part["state"], part["size"]) for segment in segments for part in segment["blocks"]]
    active = sum(size for state, size in blocks if state == "active_allocated")
    assert active == torch.npu.memory_allocated(), (active, blocks)
    assert sum(segment["total_size"] for segment in segments) == torch.npu.memory_reserved()
    starts = [(segment["address"], segment["address"] + segment["total_size"]) for segment in segments]
    assert all(any(start <= tensor.data_ptr() < end for start, end in starts) for tensor in kept)
    assert any(segment["is_expandable"] for segment in segments) == EXPANDABLE
    trace = torch.npu.memory._snapshot()["device_traces"][0]
    actions = [entry["action"] for entry in trace]
    torch.npu.memory._record_memory_history(enabled=None)
    assert actions.count("alloc") >= 3 and "free_completed" in actions, actions
    frames = sum(bool(entry.get("frames")) for entry in trace)
    return (
        f"{len(segments)} segments, {len(blocks)} blocks that add up, "
        f"history of {len(trace)} actions, {frames} with frames"
    )


@check("out of memory and recovery")
def out_of_memory() -> str:
    nothing_allocated()
    torch.npu.empty_cache()
    kept, seed = [], 0
    refused = 0
    while not refused and seed < 64:
        try:
            kept.append(pattern(100 * MIB, seed).to("npu:0"))
            seed += 1
        except OutOfMemory as error:
            refused, text = seed, str(error)
    assert 15 <= refused <= 20, f"{refused} blocks of 100 MiB fitted into 2 GiB"
    assert "out of memory" in text and ("of 2 GiB" if OURS else "2.00 GiB") in text, text
    for index in (0, refused // 2, refused - 1):
        assert torch.equal(kept[index].cpu(), pattern(100 * MIB, index)), f"block {index} changed"
    del kept[::2]
    freed = refused - len(kept)
    fits = [block(100 * MIB) for _ in range(freed)]
    del kept, fits
    whole = block(1800 * MIB)
    assert torch.npu.memory_stats()["num_ooms"] >= 1 and torch.npu.memory_stats()["num_alloc_retries"] >= 1
    del whole
    refuse(3 * GIB)
    torch.npu.set_per_process_memory_fraction(0.25)
    torch.npu.empty_cache()
    small = block(400 * MIB)
    refuse(200 * MIB)
    torch.npu.set_per_process_memory_fraction(1.0)
    more = block(200 * MIB)
    del small, more
    torch.npu.empty_cache()
    return (
        f"refused after {refused} blocks of 100 MiB, contents kept, {freed} fitted again, then 1800 MiB; "
        "600 MiB refused with a fraction of 0.25"
    )


@check("two devices")
def two_devices() -> str:
    nothing_allocated(0)
    nothing_allocated(1)
    first = pattern(6 * MIB, 1).to("npu:0")
    second = pattern(6 * MIB, 2).to("npu:1")
    assert (first.device.index, second.device.index) == (0, 1)
    assert torch.npu.memory_allocated(0) >= 6 * MIB and torch.npu.memory_allocated(1) >= 6 * MIB
    across = first.to("npu:1")
    torch.npu.synchronize(0)
    torch.npu.synchronize(1)
    assert torch.equal(across.cpu(), pattern(6 * MIB, 1)) and torch.equal(second.cpu(), pattern(6 * MIB, 2))
    with torch.npu.device(1):
        assert torch.npu.current_device() == 1
        here = torch.empty(MIB, dtype=torch.uint8, device="npu")
        assert here.device.index == 1
    assert torch.npu.current_device() == 0
    before = torch.npu.memory_allocated(0)
    del second, across, here
    gc.collect()
    assert torch.npu.memory_allocated(1) == 0 and torch.npu.memory_allocated(0) == before
    torch.npu.empty_cache()
    assert torch.npu.memory_reserved(1) == 0
    return "tensors on both, a copy from one to the other, statistics and empty_cache for each"


@check("operators")
def operators() -> str:
    # They compute nothing; what counts is that their memory is asked for and given back.
    nothing_allocated()
    network = torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.GELU(), torch.nn.Linear(1024, 256)).to("npu:0")
    optimizer = torch.optim.AdamW(network.parameters())
    held = set()
    for step in range(5):
        rows = torch.empty((64 + 32 * step, 256), device="npu:0")
        loss = (network(rows) - rows).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        del rows, loss
        torch.npu.synchronize()
        held.add(torch.npu.memory_allocated())
    assert len(held) == 1, f"memory grows from step to step: {sorted(held)}"
    launched = {name: n for name, n in noop_calls().items() if name.startswith("aclnn") and "Workspace" not in name}
    assert any("mm" in name.lower() for name in launched), launched
    del network, optimizer
    nothing_allocated()
    return f"5 training steps, {sum(launched.values())} launches of {len(launched)} operators, no memory kept"


check_findings(lambda: torch.npu.synchronize())


if __name__ == "__main__":
    main()
