import pickle
import sys

import torch
import torch_npu
from torch_npu.npu import memory


def layer(n):
    return torch.empty(n, device="npu:0", dtype=torch.uint8)


torch.npu.set_device(0)
before = layer(3_000_000)
memory._record_memory_history(max_entries=300, stacks="python")
side = torch.npu.Stream()
held = [layer((i + 1) * 700_000) for i in range(8)]
for step in range(40):
    small, large = layer(1000 * (step + 1)), layer(30_000_000 + step)
    if step % 4 == 0:
        large.record_stream(side)
    del small, large
    if step % 9 == 0:
        held.pop(0)
del before
other = torch.empty(12_345_678, device="npu:1", dtype=torch.uint8)
try:
    layer(1 << 38)
except RuntimeError:
    print("out of memory, as wanted")
torch.npu.empty_cache()
last = layer(45_000_001)
waiting = layer(21_000_000)
waiting.record_stream(side)
snapshot = memory._snapshot()
stats = [torch.npu.memory_stats(d) for d in (0, 1)]
pickle.dump(snapshot, open(sys.argv[1], "wb"))
names = ("reserved_bytes", "allocated_bytes", "active_bytes", "requested_bytes")
for device in stats:
    print([device[f"{name}.all.current"] for name in names], device["reserved_bytes.all.peak"])

# torch_npu 2.10.0 ran this on the simulator (see interop/) with `expandable_segments` off and on, to take the snapshots
# beside this file. Only its folder was taken out of them. It prints the statistics that the tests compare.
