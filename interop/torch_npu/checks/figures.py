"""What statistics, snapshots, histories, limits and pools say, of torch_npu's own allocator or ours
(INTEROP_ALLOCATOR=ours): what torch_npu's own tests of them look at, as far as no operator is needed.
"""

import gc
import os
import pickle
import random
import threading
from collections import Counter

import torch
import torch_npu
from checking import check, check_findings, main, simulator

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
OURS = os.environ.get("INTEROP_ALLOCATOR") == "ours"
if OURS:
    import ascend_alloc_torch

    ascend_alloc_torch.install()
# torch_npu raises torch's own error since 2.10; ours always did.
OLD = torch_npu.__version__.startswith(("2.6", "2.7", "2.8", "2.9")) and not OURS
OutOfMemory = RuntimeError if OLD else torch.OutOfMemoryError
EXPANDABLE = OURS or "expandable_segments:True" in os.environ.get("PYTORCH_NPU_ALLOC_CONF", "")
npu = torch.npu


def block(size: int, device: int = 0) -> torch.Tensor:
    """A tensor of so many bytes."""
    return torch.empty(size, dtype=torch.uint8, device=f"npu:{device}")


def emptied() -> None:
    """Nothing is held any more."""
    gc.collect()
    npu.synchronize()
    npu.empty_cache()


def agree() -> None:
    """Statistics say what a snapshot shows, by pool and device."""
    shown: dict[int, Counter] = {device: Counter() for device in range(npu.device_count())}
    for segment in npu.memory_snapshot():
        sums = shown[segment["device"]]
        blocks = segment["blocks"]
        assert sum(part["size"] for part in blocks) == segment["total_size"], segment
        live = [part["size"] for part in blocks if part["state"] == "active_allocated"]
        active = [part["size"] for part in blocks if part["state"].startswith("active")]
        assert (sum(live), sum(active)) == (segment["allocated_size"], segment["active_size"]), segment
        for pool in ("all", f"{segment['segment_type']}_pool"):
            sums[f"allocated_bytes.{pool}.current"] += sum(live)
            sums[f"active_bytes.{pool}.current"] += sum(active)
            sums[f"reserved_bytes.{pool}.current"] += segment["total_size"]
            sums[f"allocation.{pool}.current"] += len(live)
            # Of segments that grow a snapshot shows what is mapped, and their free parts are no splits.
            if not EXPANDABLE:
                sums[f"segment.{pool}.current"] += 1
                idle = [part["size"] for part in blocks if part["state"] == "inactive"] if len(blocks) > 1 else []
                sums[f"inactive_split.{pool}.current"] += len(idle)
                sums[f"inactive_split_bytes.{pool}.current"] += sum(idle)
            sums[f"active.{pool}.current"] += len(active)
    for device, sums in shown.items():
        stats = npu.memory_stats(device)
        wrong = {name: (value, stats[name]) for name, value in sums.items() if stats[name] != value}
        assert not wrong, f"device {device}, snapshot and statistics: {wrong}"


@check("figures follow the blocks of two devices")
def follow() -> str:
    emptied()
    random.seed(4)
    kept: list[tuple[int, int, torch.Tensor]] = []
    expected, counts, steps = Counter(), Counter(), 300
    for step in range(steps):
        device = random.randrange(2)
        before, peak = npu.memory_allocated(device), npu.max_memory_allocated(device)
        other = npu.memory_allocated(1 - device)
        if kept and random.random() < 0.45:
            of, size, dropped = kept.pop(random.randrange(len(kept)))
            before = npu.memory_allocated(of)
            del dropped
            assert npu.memory_allocated(of) < before
            expected[of] -= size
            counts[of] -= 1
        else:
            size = random.choice([random.randrange(1, 64 * KIB), random.randrange(MIB, 12 * MIB)])
            kept.append((device, size, block(size, device)))
            assert npu.memory_allocated(device) >= before + size
            assert npu.memory_allocated(1 - device) == other, "the other device's figure changed"
            assert npu.max_memory_allocated(device) == max(peak, npu.memory_allocated(device))
            expected[device] += size
            counts[device] += 1
        for each in range(2):
            stats = npu.memory_stats(each) if counts[each] or step > 20 else {}
            assert stats.get("allocation.all.current", 0) == counts[each]
            assert stats.get("requested_bytes.all.current", 0) >= expected[each]
            assert npu.memory_allocated(each) <= npu.memory_reserved(each) <= npu.max_memory_reserved(each)
        if step % 7 == 0:
            agree()
        if step % 50 == 25:
            reserved, most = npu.memory_reserved(device), npu.max_memory_reserved(device)
            emptied()
            assert npu.memory_reserved(device) <= reserved and npu.max_memory_reserved(device) == most
            npu.reset_peak_memory_stats(device)
            assert npu.max_memory_allocated(device) == npu.memory_allocated(device)
            assert npu.max_memory_reserved(device) == npu.memory_reserved(device)
    kept.clear()
    emptied()
    agree()
    assert [npu.memory_allocated(device) for device in range(2)] == [0, 0]
    return f"{steps} allocations and frees, statistics as the snapshot shows them after every seventh"


@check("sums, resets and the summary")
def sums() -> str:
    emptied()
    npu.reset_accumulated_memory_stats()
    npu.reset_peak_memory_stats()
    kept = [block(3 * MIB) for _ in range(4)]
    del kept[1:]
    stats = npu.memory_stats()
    assert (stats["allocation.all.allocated"], stats["allocation.all.freed"]) == (4, 3)
    assert stats["allocated_bytes.all.allocated"] - stats["allocated_bytes.all.freed"] == npu.memory_allocated()
    assert stats["allocation.all.peak"] == 4
    nested = npu.memory_stats_as_nested_dict()
    assert nested["allocation"]["all"]["current"] == 1 and nested["num_ooms"] == stats["num_ooms"]
    npu.reset_accumulated_memory_stats()
    assert npu.memory_stats()["allocation.all.allocated"] == 0
    text = npu.memory_summary()
    head = [line for line in text.splitlines() if "NPU OOMs" in line]
    assert len(head) == 1 and f"OOMs: {stats['num_ooms']}" in head[0], head
    assert "Active memory" in text and "Active memory" in npu.memory_summary(abbreviated=True)
    del kept
    emptied()
    assert npu.memory_stats()["allocation.all.current"] == 0
    return f"4 blocks, 3 frees, two resets, summary of {len(text.splitlines())} lines"


@check("raw allocations")
def raw() -> str:
    emptied()
    before = npu.memory_allocated()
    place = npu.caching_allocator_alloc(5 * MIB + 1)
    assert place != 0 and npu.memory_allocated() >= before + 5 * MIB + 1
    side = npu.Stream()
    other = npu.caching_allocator_alloc(MIB, stream=side)
    npu.caching_allocator_delete(other)
    npu.caching_allocator_delete(place)
    assert npu.memory_allocated() == before
    nothing = block(0)
    assert nothing.data_ptr() == 0 and npu.memory_allocated() == before
    for wrong in (place, 12345 << 12):
        try:
            npu.caching_allocator_delete(wrong)
        except RuntimeError:
            pass
        else:
            raise AssertionError(f"{wrong:#x} is no live block, and was given back")
    aligned = torch_npu.empty_with_format((MIB,), dtype=torch.uint8, device="npu:0", base_addr_aligned_kb=3)
    assert aligned.data_ptr() % (3 * KIB) == 0 and npu.memory_allocated() >= before + MIB
    del aligned
    assert npu.memory_allocated() == before
    return "5 MiB on the current stream, 1 MiB on another, nothing at all, 3 KiB as alignment; two wrong addresses refused"


@check("too much")
def too_much() -> str:
    emptied()
    kept, refused = block(MIB), []
    ooms = npu.memory_stats()["num_ooms"]
    for size, words in ((1 << 62, "more than 1EB"), (3 * GIB, "out of memory")):
        try:
            block(size)
        except RuntimeError as error:
            refused.append(type(error).__name__)
            assert words in str(error), f"{size} bytes: {error}"
    assert refused == [OutOfMemory.__name__] * 2, refused
    assert npu.memory_stats()["num_ooms"] == ooms + 1
    host = torch.arange(MIB, dtype=torch.uint8)
    kept.copy_(host)
    assert torch.equal(kept.cpu(), host)
    return f"2^62 bytes and 3 GiB of 2 GiB refused as {refused}, copies work as before"


@check("a share of the device")
def share() -> str:
    emptied()
    for wrong, kind in ((1, TypeError), (-0.1, ValueError), (2.0, ValueError)):
        try:
            npu.set_per_process_memory_fraction(wrong)
        except kind as error:
            assert "fraction" in str(error), error
        else:
            raise AssertionError(f"a fraction of {wrong} was not refused")
    total = npu.get_device_properties(0).total_memory
    npu.set_per_process_memory_fraction(0.5, 0)
    half = block(int(total * 0.49))
    del half
    npu.empty_cache()
    try:
        block(int(total * 0.501))
    except OutOfMemory:
        pass
    else:
        raise AssertionError("more than half was handed out")
    if hasattr(npu, "get_per_process_memory_fraction"):
        assert abs(npu.get_per_process_memory_fraction(0) - 0.5) < 1e-6 and npu.get_per_process_memory_fraction(1) == 1.0
    npu.set_per_process_memory_fraction(0.0, 0)
    try:
        block(3 * MIB)
    except OutOfMemory:
        pass
    else:
        raise AssertionError("a block was handed out of nothing")
    elsewhere = block(int(total * 0.6), 1)
    del elsewhere
    npu.set_per_process_memory_fraction(1.0, 0)
    most = block(int(total * 0.6))
    del most
    emptied()
    return "49 % fit into half of a device, 50.1 % do not, the other device has no limit"


@check("histories")
def histories() -> str:
    emptied()
    npu.memory._record_memory_history(enabled="all", context="all", stacks="python")
    assert torch_npu._C._npu_isHistoryEnabled()
    kept, gone = block(30 * MIB), block(3 * MIB)
    place, gone_at = kept.data_ptr(), gone.data_ptr()
    del gone
    try:
        block(3 * GIB)
    except OutOfMemory:
        pass
    told = npu.memory._snapshot()
    trace = told["device_traces"][0]
    of_gone = [entry["action"] for entry in trace if entry.get("addr") == gone_at and "segment" not in entry["action"]]
    assert of_gone == ["alloc", "free_requested", "free_completed"], of_gone
    actions = {entry["action"] for entry in trace}
    assert "oom" in actions and ("segment_map" if EXPANDABLE else "segment_alloc") in actions, actions
    first = next(entry for entry in trace if entry["action"] == "alloc" and entry["addr"] == place)
    assert first["size"] >= 30 * MIB and first["stream"] == npu.current_stream().npu_stream, first
    assert any(frame["filename"] == __file__ and frame["name"] == "histories" for frame in first["frames"]), first
    live = [part for segment in told["segments"] for part in segment["blocks"] if part["state"] == "active_allocated"]
    assert len(live) == 1 and live[0]["requested_size"] >= 30 * MIB
    assert any(frame["filename"] == __file__ for frame in live[0]["frames"]), live
    npu.memory._dump_snapshot("snapshot.pickle")
    with open("snapshot.pickle", "rb") as file:
        assert set(pickle.load(file)) >= {"segments", "device_traces"}

    # No more than are wanted, and without stacks.
    npu.memory._record_memory_history(enabled=None)
    npu.memory._record_memory_history(enabled="all", context=None, max_entries=10)
    for _ in range(30):
        block(2 * MIB)
    trace = npu.memory._snapshot()["device_traces"][0]
    assert len(trace) <= 11 and not any(entry.get("frames") for entry in trace), len(trace)
    npu.memory._record_memory_history(enabled=None)
    assert not torch_npu._C._npu_isHistoryEnabled()
    block(2 * MIB)
    assert not npu.memory._snapshot()["device_traces"][0]
    del kept
    emptied()
    return f"a block's life, an out of memory, stacks, a file; 10 entries at most; off: {sorted(actions)}"


@check("histories of allocations")
def of_allocations() -> str:
    emptied()

    def begin() -> list[dict]:
        """Begins a history, and returns what is in it."""
        npu.memory._record_memory_history(enabled="all", context="alloc", stacks="python")
        return [entry for entry in npu.memory._snapshot()["device_traces"][0] if entry["action"] != "snapshot"]

    assert not begin()
    gone = block(3 * MIB)
    place = gone.data_ptr()
    del gone
    life = [entry for entry in npu.memory._snapshot()["device_traces"][0] if entry.get("addr") == place]
    of_block = [entry for entry in life if "segment" not in entry["action"]]
    assert [entry["action"] for entry in of_block] == ["alloc", "free_requested", "free_completed"], life
    for entry in of_block:
        names = [frame["name"] for frame in entry["frames"]]
        assert "of_allocations" in names, f"{entry['action']} has {names}"
    assert not begin(), "what was recorded before is still there"
    npu.memory._record_memory_history(enabled=None)
    emptied()
    return "frees have the stacks of their allocations; another beginning forgets what was before"


@check("erase_stream")
def erased() -> str:
    emptied()
    side, other = npu.Stream(), npu.Stream()

    def left(where: torch.npu.Stream) -> int:
        """How many blocks wait after one was freed under work of the side stream, which was erased in another."""
        there = block(4 * MIB)
        there.record_stream(side)
        with simulator().busy(side.npu_stream):
            with npu.stream(where):
                torch_npu.erase_stream(there, side)
            del there
            waiting = npu.memory_stats()["active.all.current"]
        npu.synchronize()
        emptied()
        return waiting

    # The block's own stream has waited for the side stream: what it does next may use the memory.
    assert left(npu.current_stream()) == 0
    # Another stream has: the block's own comes after nothing.
    assert left(other) == 1, "a block was freed at once although its stream waits for nothing"
    assert npu.memory_stats()["active.all.current"] == 0
    return "a mark is taken away where the block's own stream has waited, and nowhere else"


@check("unsafe tensors")
def unsafe() -> str:
    emptied()
    from torch_npu.npu import _recovery as recovery

    safe, kept, other = recovery.check_npu_tensor_is_safe, block(MIB), block(MIB, 1)
    assert safe(kept) and safe(other)
    recovery.mark_all_npu_tensor_unsafe(0)
    fresh = block(MIB)
    assert [safe(tensor) for tensor in (kept, other, fresh)] == [False, True, True]
    recovery.update_npu_tensor_to_safe(kept)
    assert safe(kept)
    # What is handed out anew is safe, wherever it lies.
    recovery.mark_all_npu_tensor_unsafe(0)
    del kept, fresh
    again = [block(MIB) for _ in range(3)]
    assert all(safe(tensor) for tensor in again)
    del again, other
    emptied()
    return "all live blocks of one device, made safe by the program or by being handed out anew"


if OURS:

    @check("files of the library")
    def files() -> str:
        emptied()
        ascend_alloc_torch.start_trace("steps.trace")
        kept = block(30 * MIB)
        ascend_alloc_torch.mark("a step")
        del kept
        kept = block(20 * MIB)
        ascend_alloc_torch.write_snapshot("memory.pickle")
        ascend_alloc_torch.write_snapshot("memory.json")
        ascend_alloc_torch.stop_trace()
        assert os.path.getsize("steps.trace") > 0
        with open("memory.pickle", "rb") as file:
            told = pickle.load(file)["segments"]
        shown = npu.memory_snapshot()
        assert sum(segment["total_size"] for segment in told) == sum(segment["total_size"] for segment in shown)
        live = [part for segment in told for part in segment["blocks"] if part["state"] == "active_allocated"]
        assert [part["address"] for part in live] == [kept.data_ptr()], live
        with open("memory.json") as file:
            assert str(kept.data_ptr()) in file.read()
        try:
            ascend_alloc_torch.write_snapshot("no/such/folder/memory.json")
        except RuntimeError as error:
            assert "folder" in str(error), error
        else:
            raise AssertionError("a file in a folder that does not exist was written")
        return f"a trace of {os.path.getsize('steps.trace')} bytes, a snapshot of {len(told)} segments as PyTorch's tools read it"


@check("told of out of memory")
def observer() -> str:
    emptied()
    told = []
    torch_npu._C._npu_attach_out_of_memory_observer(lambda *figures: told.append(figures))
    try:
        block(3 * GIB)
    except OutOfMemory:
        pass
    assert len(told) == 1, told
    device, size, total, free = told[0]
    assert device == 0 and 3 * GIB <= size <= 3 * GIB + 2 * MIB and total == 2 * GIB and 0 < free <= 2 * GIB, told
    return f"device {device}, {size} bytes, {total} in all, {free} free"


@check("pools")
def pools() -> str:
    emptied()
    ids: list[tuple] = []
    threads = [threading.Thread(target=lambda: ids.append(npu.MemPool().id)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    ids.append(npu.graph_pool_handle())
    assert len(set(ids)) == 5 and all(len(name) == 2 for name in ids), ids

    pool = npu.MemPool()
    with npu.use_mem_pool(pool):
        inside = block(40 * MIB)
    outside = block(40 * MIB)
    owners = {
        segment["segment_pool_id"]
        for segment in npu.memory_snapshot()
        for tensor in (inside,)
        if segment["address"] <= tensor.data_ptr() < segment["address"] + segment["total_size"]
    } if "segment_pool_id" in npu.memory_snapshot()[0] else {tuple(pool.id)}
    assert owners == {tuple(pool.id)}, owners
    # What is free in a pool serves nobody else.
    place = inside.data_ptr()
    del inside
    others = [block(40 * MIB) for _ in range(3)]
    assert place not in [tensor.data_ptr() for tensor in others]
    with npu.use_mem_pool(pool):
        again = block(40 * MIB)
    assert OURS or again.data_ptr() == place
    del again, others, outside, pool
    emptied()
    agree()
    assert npu.memory_allocated() == 0
    return "names are unique over threads; a pool's block serves the pool only, and counts"


@check("threads")
def threads() -> str:
    emptied()
    failures: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            order = random.Random(seed)
            stream = npu.Stream()
            host = (torch.arange(64 * KIB) * (seed + 3)).to(torch.uint8)
            with npu.stream(stream):
                kept = []
                for _ in range(60):
                    there = block(order.randrange(64 * KIB, 4 * MIB))
                    there[: 64 * KIB].copy_(host)
                    kept.append(there)
                    if len(kept) > 5:
                        old = kept.pop(order.randrange(len(kept)))
                        assert torch.equal(old[: 64 * KIB].cpu(), host), "another thread's bytes"
                        del old
                for there in kept:
                    assert torch.equal(there[: 64 * KIB].cpu(), host), "another thread's bytes"
        except BaseException as error:
            failures.append(error)

    workers = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not failures, failures
    emptied()
    agree()
    assert npu.memory_allocated() == 0
    return "4 threads with streams of their own, 240 blocks, each with its own bytes"


@check("one allocator")
def one() -> str:
    backend = npu.get_allocator_backend()
    assert backend == ("ascend_alloc" if OURS else "native"), backend
    other = torch_npu.npu.memory.NPUPluggableAllocator("libascend_alloc.so", "ascend_alloc_malloc", "ascend_alloc_free")
    try:
        torch_npu.npu.memory.change_current_allocator(other)
    except RuntimeError as error:
        assert "already initialized" in str(error), error
    else:
        raise AssertionError("the allocator was changed while it is in use")
    try:
        torch_npu.npu.memory.NPUPluggableAllocator("libascend_alloc.so", "no_such_function", "ascend_alloc_free")
    except AttributeError as error:
        assert "no_such_function" in str(error)
    else:
        raise AssertionError("a function that does not exist was taken")
    return f"backend {backend}; it cannot be changed once it is in use"


check_findings(lambda: npu.synchronize())


if __name__ == "__main__":
    main()
