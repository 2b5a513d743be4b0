"""Traces of `traces/` played through torch_npu's allocator, its own or ours, by the addresses that it hands out.

INTEROP_TRACES: their files, separated by commas. They must have one stream: nothing of torch_npu's Python records a use of
an address on another one. What is measured goes to figures.json; traces_compared.py sets the runs side by side.
"""

import json
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch_npu
from checking import check, check_findings, main, simulator

OURS = os.environ.get("INTEROP_ALLOCATOR") == "ours"
if OURS:
    import ascend_alloc_torch

    ascend_alloc_torch.install()

#: Passes over a trace; the last one is timed, when everything is at hand that can be.
PASSES = 3
#: Calls of the driver for memory.
DRIVER = (
    "aclrtMalloc", "aclrtMallocAlign32", "aclrtFree", "aclrtMallocPhysical", "aclrtFreePhysical",
    "aclrtMapMem", "aclrtUnmapMem", "aclrtMemSetAccess", "aclrtReserveMemAddress", "aclrtReleaseMemAddress",
)  # fmt: skip

#: What traces_compared.py reads.
FIGURES: dict = {}


class Trace:
    """The calls of a trace."""

    def __init__(self, path: Path) -> None:
        self.name = path.name.split(".")[0]
        text = subprocess.run(["zstd", "-dc", path], check=True, stdout=subprocess.PIPE, text=True).stdout
        self.events: list[tuple[str, int, int]] = []
        self.peak, live, sizes = 0, 0, {}
        for line in text.splitlines():
            match line.split():
                case ["a", block, size, stream]:
                    assert stream == "0", f"{path}: stream {stream}"
                    sizes[block] = int(size)
                    live += int(size)
                    self.peak = max(self.peak, live)
                    self.events.append(("a", int(block), int(size)))
                case ["f", block]:
                    live -= sizes[block]
                    self.events.append(("f", int(block), 0))
                # What the host waits for is done already: work is done when it is queued, and there is none.
                case ["s", _] | ["m", *_] | ["#", *_]:
                    pass
                case _:
                    raise AssertionError(f"{path}: {line}")
        self.operations = sum(kind in "af" for kind, _, _ in self.events)


def play(trace: Trace, allocate: Callable[[int, int], int], free: Callable[[int], object]) -> float:
    """One pass; CPU seconds of this thread."""
    stream = torch_npu.npu.current_stream().npu_stream
    live: dict[int, int] = {}
    start = time.thread_time()
    for kind, block, size in trace.events:
        if kind == "a":
            live[block] = allocate(size, stream)
        elif kind == "f":
            free(live.pop(block))
    spent = time.thread_time() - start
    for address in live.values():
        free(address)
    return spent


def calls() -> int:
    """Driver calls for memory so far."""
    counted = simulator().calls()
    return sum(counted.get(name, 0) for name in DRIVER)


def measure(path: Path) -> str:
    """Plays a trace, notes what it took, and gives the memory back."""
    trace = Trace(path)
    torch_npu.npu.empty_cache()
    torch_npu.npu.reset_peak_memory_stats()
    # What torch_npu.npu.caching_allocator_alloc and caching_allocator_delete call in the end.
    own = (torch_npu._C._npu_npuCachingAllocator_raw_alloc, torch_npu._C._npu_npuCachingAllocator_raw_delete)
    before = calls()
    play(trace, *own)
    first = torch_npu.npu.max_memory_reserved()
    for _ in range(PASSES - 2):
        play(trace, *own)
    settled = calls()
    seconds = play(trace, *own)
    loop = play(trace, max, abs)
    figures = {
        "live": trace.peak,
        "operations": trace.operations,
        "reserved_first": first,
        "reserved": torch_npu.npu.max_memory_reserved(),
        "calls_before": settled - before,
        "calls": calls() - settled,
        "nanoseconds": seconds * 1e9 / trace.operations,
        "loop": loop * 1e9 / trace.operations,
    }
    FIGURES[trace.name] = figures
    Path("figures.json").write_text(json.dumps(FIGURES))
    assert torch_npu.npu.memory_allocated() == 0, "every block was freed"
    assert figures["reserved"] >= figures["live"] > 0, figures
    assert figures["calls_before"] > 0, "the simulator served the allocator"
    return (
        f"{trace.name}: reserved / live {first / trace.peak:.4f} in the first pass and {figures['reserved'] / trace.peak:.4f} in all, "
        f"{figures['calls_before']} driver calls in {PASSES - 1} passes and {figures['calls']} in the last, {figures['nanoseconds']:.0f} ns an operation, of which Python's loop takes about {figures['loop']:.0f}"
    )


@check("traces")
def traces() -> str:
    torch_npu.npu.set_device(0)
    torch.empty(1, device="npu")
    return "; ".join(measure(Path(path)) for path in os.environ["INTEROP_TRACES"].split(","))


check_findings(lambda: torch_npu.npu.synchronize())


if __name__ == "__main__":
    main()
