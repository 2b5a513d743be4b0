"""Snapshots taken under torch_npu with our allocator in its place, in the memory tools of the torch wheel beside it, and
as traces that are replayed. The checks of the tools are those of ../../viz."""

import gc
import importlib.machinery
import importlib.util
import json
import os
import pickle
import shutil
import subprocess
from pathlib import Path

import torch
import torch_npu  # noqa: F401
from checking import check, check_findings, main

import ascend_alloc_torch

MIB = 1 << 20
VIZ = Path(__file__).resolve().parents[2] / "viz"
npu = torch.npu

ascend_alloc_torch.install()


def load_viz():
    """The command of ../../viz as a module."""
    loader = importlib.machinery.SourceFileLoader("viz_run", str(VIZ / "run"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("viz_run", loader))
    loader.exec_module(module)
    return module


viz = load_viz()
# Programs that are started from here need none of what torch_npu is linked against.
os.environ.pop("LD_LIBRARY_PATH", None)
#: The command ascend-alloc; built now, because PyTorch's tools get another home folder later.
CLI = viz.command()

#: Snapshots that were taken, in order.
FILES = [Path("first.pickle"), Path("second.pickle"), Path("dumped.pickle")]


def block(size: int, device: int = 0) -> torch.Tensor:
    """A tensor of so many bytes."""
    return torch.empty(size, dtype=torch.uint8, device=f"npu:{device}")


def take(file: Path) -> None:
    """A snapshot as a file, after its totals have been compared with the statistics."""
    told = npu.memory._snapshot()
    for device in range(npu.device_count()):
        stats = npu.memory_stats(device)
        for name, value in viz.sums(told, device).items():
            assert value == stats.get(f"{name}.all.current", 0), f"{file}, device {device}: {name} is {value}"
    file.write_bytes(pickle.dumps(told))


@check("snapshots and statistics")
def snapshots() -> str:
    npu.memory._record_memory_history(enabled="all", context="all", stacks="python", max_entries=1 << 20)
    side, kept = npu.Stream(), []
    # Sizes that rise and fall, so that chunks move between blocks.
    for step in range(60):
        kept.append(block((3 + 7 * step % 40) * MIB + step, int(step % 5 == 4)))
        if step % 3:
            kept.pop(step % len(kept))
    take(FILES[0])
    pool = npu.MemPool()
    with npu.use_mem_pool(pool):
        kept.append(block(20 * MIB))
    with npu.stream(side):
        kept.append(block(5 * MIB))
    shared = block(30 * MIB)
    shared.record_stream(side)
    del shared
    try:
        block(8 << 30)
    except torch.OutOfMemoryError:
        pass
    for step in range(200):
        kept.append(block(1000 + 4999 * step))
        if step % 2:
            kept.pop(7 * step % len(kept))
    take(FILES[1])
    npu.memory._dump_snapshot(str(FILES[2]))
    FILES[2].chmod(0o600)
    told = [pickle.loads(file.read_bytes()) for file in FILES]
    assert viz.sums(told[2], 0) == viz.sums(told[1], 0), "the file that torch_npu wrote says something else"
    actions = {entry["action"] for trace in told[1]["device_traces"] for entry in trace}
    assert actions >= {"alloc", "free_requested", "free_completed", "segment_map", "oom", "snapshot"}, actions
    npu.memory._record_memory_history(enabled=None)
    kept.clear()
    del pool
    gc.collect()
    npu.synchronize()
    npu.empty_cache()
    return f"{len(FILES)} with {[sum(map(len, each['device_traces'])) for each in told]} events, sums as the statistics: {sorted(actions)}"


@check("PyTorch's memory tools")
def tools() -> str:
    folder = Path("tools").resolve()
    folder.mkdir()
    program = Path(shutil.copy(Path(torch.__file__).parent / "cuda" / "_memory_viz.py", folder))
    viz.equip(folder)
    opened = viz.Tools(program, folder)
    lines = [f"{file}: {viz.check_snapshot(opened, file.resolve(), CLI)}" for file in FILES]
    lines.append(viz.check_compare(opened, *FILES[:2]))
    return "; ".join(lines)


@check("convert and replay")
def replay() -> str:
    (cli,) = CLI
    lines = []
    for device, events in enumerate(pickle.loads(FILES[2].read_bytes())["device_traces"]):
        trace = f"device-{device}.trace"
        subprocess.run([cli, "convert", str(FILES[2]), "-o", trace, "--device", str(device)], check=True, capture_output=True)
        done = subprocess.run([cli, "replay", trace, "--json"], check=True, capture_output=True)
        told = json.loads(done.stdout)
        allocated = sum(event["action"] == "alloc" for event in events)
        played = sum(line.startswith("a ") for line in Path(trace).read_text().splitlines())
        assert played == allocated, f"device {device}: {played} allocations in the trace, {allocated} in the snapshot"
        assert told["findings"] == [] and told["ooms"] == 0, told
        assert told["peak_live"] > 0 and told["peak_physical"] >= told["peak_live"], told
        lines.append(f"device {device}: {played} allocations, {told['peak_physical'] / told['peak_live']:.4f} of what was live")
    return "; ".join(lines)


check_findings(lambda: npu.synchronize())


if __name__ == "__main__":
    main()
