"""The memory of training for many steps, with torch_npu's own allocator or ours; compare.py sets the runs side by side.

INTEROP_FORM: built-in, full (ascend_alloc_torch) or plain (our two functions behind NPUPluggableAllocator).
INTEROP_DEVICES: how many devices take turns.

Operators compute nothing here, so every one of them is played: its result is allocated, a kernel is queued that tells
the simulator's use checker which memory it reads and writes, and copies move the ends of its operands into its result.
So a block that is handed out too early shows as a finding and as other bytes at the end.
"""

import ctypes
import gc
import hashlib
import json
import os
from pathlib import Path

import torch
import torch_npu
from checking import check, check_findings, main, simulator

KIB, MIB = 1 << 10, 1 << 20
FORM = os.environ.get("INTEROP_FORM", "built-in")
#: Whether work is done when it is queued, so that figures do not depend on how fast threads are.
PROMPT = os.environ.get("ASCEND_SIM_EXEC") == "deterministic"
DEVICES = list(range(int(os.environ.get("INTEROP_DEVICES", "1"))))
STEPS, WARM, EVALUATE, CAPTURE = 40, 12, 10, 15
LAYERS, BATCH, WIDTH, HEADS = 16, 8, 512, 8
#: Rows of a sequence by step; the longest come before the figures count.
LENGTHS = [64 + 32 * ((7 * step * step + 3 * step) % 13) for step in range(STEPS)]
#: The bytes at either end of a tensor that are moved.
EDGE = 4 * KIB

# torch_npu raises torch's own error since 2.10; ours always did.
OLD = torch_npu.__version__.startswith(("2.6", "2.7", "2.8", "2.9")) and FORM == "built-in"
OutOfMemory = RuntimeError if OLD else torch.OutOfMemoryError

LIBRARY = "libascend_alloc.so"
if FORM == "full":
    import ascend_alloc_torch

    ascend_alloc_torch.install()
elif FORM == "plain":
    import atexit

    import ascend_alloc_mindspore as library  # reads the library's statistics; of MindSpore it loads nothing

    OURS = ctypes.CDLL(LIBRARY)
    allocator = torch_npu.npu.memory.NPUPluggableAllocator(LIBRARY, "ascend_alloc_malloc", "ascend_alloc_free")
    torch_npu.npu.memory.change_current_allocator(allocator)
    atexit.register(OURS.ascend_alloc_finish)


def memory(device: int) -> dict[str, int]:
    """Figures of the allocator."""
    figures = library.stats(device) if FORM == "plain" else torch.npu.memory_stats(device)
    names = ("allocated_bytes.all.current", "allocated_bytes.all.peak", "reserved_bytes.all.current", "reserved_bytes.all.peak")
    return {name.replace("_bytes.all", ""): figures[name] for name in names}


def reset_peaks() -> None:
    """Peaks count from now on."""
    for device in DEVICES:
        if FORM == "plain":
            assert OURS.ascend_alloc_reset_peak_stats(device) == 0
        else:
            torch.npu.reset_peak_memory_stats(device)


def empty_cache() -> None:
    """Free memory goes back to the devices."""
    gc.collect()
    if FORM == "plain":
        torch.npu.synchronize()
        assert OURS.ascend_alloc_empty_cache(-1) == 0
    else:
        torch.npu.empty_cache()


def used_on(tensor: torch.Tensor, stream: torch.npu.Stream) -> None:
    """The stream has work that uses the tensor, which may be freed before that is done."""
    if FORM == "plain":
        # Torch_npu's class does not pass record_stream on.
        assert OURS.ascend_alloc_record_stream(ctypes.c_void_p(tensor.data_ptr()), ctypes.c_void_p(stream.npu_stream)) == 0
    else:
        tensor.record_stream(stream)


class Range(ctypes.Structure):
    """acl_sim_range."""

    _fields_ = [("start", ctypes.c_void_p), ("bytes", ctypes.c_uint64), ("write", ctypes.c_int)]


def kernel(label: str, reads: list, writes: list, microseconds: int = 0) -> None:
    """Queues a kernel to the current stream that uses these tensors from end to end, and moves their ends."""
    ranges = [Range(t.data_ptr(), t.numel(), 0) for t in reads] + [Range(t.data_ptr(), t.numel(), 1) for t in writes]
    # Asking for the handle waits until all that was queued before has reached the stream.
    stream = torch.npu.current_stream().npu_stream
    queue = simulator().library.acl_sim_kernel
    queue.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint64]
    code = queue(stream, label.encode(), (Range * len(ranges))(*ranges), len(ranges), microseconds)
    assert code == 0, f"acl_sim_kernel answered {code}"
    for place, target in enumerate(writes):
        first, last = reads[place % len(reads)], reads[-1]
        edge = min(EDGE, target.numel(), first.numel(), last.numel())
        if target.numel() >= 2 * edge:
            target[-edge:].copy_(first[:edge], non_blocking=True)
        target[:edge].copy_(last[-edge:], non_blocking=True)


def operator(label: str, reads: list, size: int, microseconds: int = 0) -> torch.Tensor:
    """An operator with a result of so many bytes."""
    result = new(size)
    kernel(label, reads, [result], microseconds)
    return result


def new(size: int) -> torch.Tensor:
    """A tensor on the current device and stream, without content."""
    try:
        return torch.empty(size, dtype=torch.uint8, device="npu")
    except RuntimeError as error:
        if FORM != "plain" or "Get data_ptr failed" not in str(error):
            raise
        # So torch_npu says of the plain form that it is out of memory.
        raise torch.OutOfMemoryError("NPU out of memory: a tensor without an address") from error


def pattern(size: int, seed: int) -> torch.Tensor:
    """Bytes on the host that differ from place to place and from seed to seed."""
    period = (torch.arange(509) * 131 + seed * 89).to(torch.uint8)
    return period.repeat(size // 509 + 1)[:size].clone()


class Network:
    """A transformer's tensors on one device."""

    def __init__(self, device: int) -> None:
        self.device = device
        self.digest = hashlib.sha256()
        with torch.npu.device(device):
            self.loader, self.reducer, self.capturer = (torch.npu.Stream() for _ in range(3))
            self.weights = [pattern(12 * WIDTH * WIDTH * 4, 10 * device + layer).to(f"npu:{device}") for layer in range(LAYERS)]
            self.moments: list[tuple[torch.Tensor, torch.Tensor]] = []
            torch.npu.synchronize()

    def load(self, length: int, seed: int) -> torch.Tensor:
        """A batch from page-locked memory, on a stream of its own."""
        host = pattern(BATCH * length * WIDTH * 4, seed).pin_memory()
        with torch.npu.stream(self.loader):
            there = new(host.numel())
            there.copy_(host, non_blocking=True)
        return there

    def take(self, batch: torch.Tensor) -> torch.Tensor:
        """The batch is used by the current stream from here on."""
        torch.npu.current_stream().wait_stream(self.loader)
        used_on(batch, torch.npu.current_stream())
        return batch

    def forward(self, rows: torch.Tensor, length: int, saves: bool) -> tuple[torch.Tensor, list]:
        """All layers; what the way back needs is kept if it is to come."""
        size, kept = rows.numel(), []
        for weights in self.weights:
            seen = operator("norm", [rows], size)
            mixed = operator("query, key, value", [seen, weights], 3 * size)
            scores = operator("scores", [mixed], BATCH * HEADS * length * length * 4)
            chances = operator("softmax", [scores], scores.numel())
            del scores
            heads = operator("values", [chances, mixed], size)
            middle = operator("add", [rows, heads], size)
            wide = operator("up", [middle, weights], 4 * size)
            active = operator("gelu", [wide], 4 * size)
            result = operator("down", [active, weights], size)
            if saves:
                kept.append((rows, seen, mixed, chances, heads, middle, wide, active))
            del seen, mixed, chances, heads, middle, wide, active
            rows = result
        return rows, kept

    def backward(self, slope: torch.Tensor, kept: list) -> list:
        """The gradients; what was kept goes layer by layer. They are summed up on another stream as they come."""
        gradients = []
        for weights in reversed(self.weights):
            rows, seen, mixed, chances, heads, middle, wide, active = kept.pop()
            wider = operator("down back", [slope, weights], active.numel())
            gradient = operator("weights back", [slope, active], weights.numel())
            del active
            wider = operator("gelu back", [wider, wide], wide.numel())
            slope = operator("up back", [wider, middle], middle.numel())
            del wider, wide, middle
            score = operator("values back", [slope, chances, heads], chances.numel())
            mixes = operator("scores back", [score, mixed, seen], mixed.numel())
            slope = operator("norm back", [mixes, rows], rows.numel())
            del rows, seen, mixed, chances, heads, score, mixes
            self.reduce(gradient)
            gradients.append(gradient)
        return gradients

    def reduce(self, gradient: torch.Tensor) -> None:
        """A collective: on its own stream, with a buffer of its own, while the way back goes on."""
        self.reducer.wait_stream(torch.npu.current_stream())
        with torch.npu.stream(self.reducer):
            buffer = operator("gather", [gradient], gradient.numel(), microseconds=50)
            kernel("scatter", [buffer], [gradient])
        used_on(gradient, self.reducer)

    def update(self, gradients: list) -> None:
        """The optimizer, with its state from the first step on."""
        torch.npu.current_stream().wait_stream(self.reducer)
        if not self.moments:
            self.moments = [(operator("zero", [w], w.numel()), operator("zero", [w], w.numel())) for w in self.weights]
        for weights, gradient, (first, second) in zip(reversed(self.weights), gradients, reversed(self.moments)):
            step = operator("moments", [gradient, first, second], weights.numel())
            kernel("update", [step, gradient, weights], [weights, first, second])

    def note(self, *tensors: torch.Tensor) -> None:
        """Their ends are part of what is compared."""
        for tensor in tensors:
            edge = min(EDGE, tensor.numel())
            self.digest.update(bytes(tensor[:edge].cpu().numpy()) + bytes(tensor[-edge:].cpu().numpy()))

    def train(self, step: int) -> None:
        """One step, while the next batch is on its way."""
        batch, length = self.take(self.next), LENGTHS[step]
        self.next = self.load(LENGTHS[(step + 1) % STEPS], step + 1)
        result, kept = self.forward(batch, length, saves=True)
        del batch
        self.note(result)
        slope = operator("loss", [result], result.numel())
        del result
        self.update(self.backward(slope, kept))
        self.note(self.weights[step % LAYERS])

    def evaluate(self, step: int) -> None:
        """Larger batches, nothing kept, with a cache that grows in a pool where there is one."""
        pool = torch.npu.MemPool(allocator.allocator() if FORM == "plain" else None)
        with torch.npu.use_mem_pool(pool):
            cache = [new(2 * MIB + 64 * KIB * index) for index in range(4)]
        for index, part in enumerate(cache):
            rows = self.take(self.load(96 + 64 * index, 1000 + step + index))
            result, _ = self.forward(rows, 96 + 64 * index, saves=False)
            kernel("append", [result], [part])
            del rows, result
        self.note(*cache)
        del cache, pool

    def capture(self, step: int) -> None:
        """A captured graph that is replayed on other contents. In the plain form what it allocates is kept until it goes,
        because torch_npu has no pool for it there."""
        # All is settled before.
        graph, source, target = torch.npu.NPUGraph(), new(MIB), new(MIB)
        between = []
        torch.npu.synchronize()
        # Torch_npu's own stream for captures is one for all devices.
        with torch.npu.graph(graph, stream=self.capturer):
            for place in range(2):
                between.append(new(MIB))
                between[place].copy_(between[place - 1] if place else source, non_blocking=True)
            target.copy_(between[1], non_blocking=True)
        if FORM != "plain":
            # The graph keeps their addresses, and its pool their memory.
            between.clear()
        for seed in range(3):
            source.copy_(pattern(MIB, step + seed))
            graph.replay()
            torch.npu.synchronize()
            assert torch.equal(target.cpu(), pattern(MIB, step + seed)), f"replay {seed} of step {step} differs"
            self.note(target)
        graph.reset()


def run(networks: list[Network]) -> dict:
    """All steps on all devices; the figures of the settled part."""
    settled = {}
    for network in networks:
        with torch.npu.device(network.device):
            network.next = network.load(LENGTHS[0], 0)
    for step in range(STEPS):
        if step == WARM:
            reset_peaks()
        for network in networks:
            with torch.npu.device(network.device):
                network.train(step)
                if step % EVALUATE == EVALUATE - 1:
                    network.evaluate(step)
                    empty_cache()
                if step % CAPTURE == CAPTURE - 1:
                    network.capture(step)
    for network in networks:
        with torch.npu.device(network.device):
            del network.next
        settled[network.device] = memory(network.device)
    return settled


#: What compare.py reads.
FIGURES: dict = {"form": FORM, "devices": {}}


@check("training")
def training() -> str:
    networks = [Network(device) for device in DEVICES]
    settled = run(networks)
    lines = []
    for network in networks:
        with torch.npu.device(network.device):
            for weights, moments in zip(network.weights, network.moments):
                network.note(weights, *moments)
        figures = settled[network.device]
        FIGURES["devices"][str(network.device)] = figures | {"digest": network.digest.hexdigest()}
        lines.append(
            f"device {network.device}: allocated {figures['allocated.peak'] / MIB:.1f} MiB at most, "
            f"reserved {figures['reserved.peak'] / MIB:.1f} ({figures['reserved.peak'] / figures['allocated.peak']:.4f})"
        )
        assert figures["allocated.peak"] > 2000 * MIB, figures
        if FORM != "built-in" and PROMPT:
            assert figures["reserved.peak"] <= 1.05 * figures["allocated.peak"], lines[-1]
    if len(networks) > 1:
        across = networks[0].weights[0].to("npu:1")
        torch.npu.synchronize()
        assert torch.equal(across.cpu(), networks[0].weights[0].cpu()), "a copy to the other device differs"
        del across
    FIGURES["networks"] = networks
    return f"{STEPS} steps, of which {STEPS - WARM} count: " + "; ".join(lines)


@check("out of memory and recovery")
def out_of_memory() -> str:
    networks, lines = FIGURES.pop("networks"), []
    for network in networks:
        device = network.device
        with torch.npu.device(device):
            before = memory(device)["allocated.current"]
            network.next = network.load(LENGTHS[0], 7)
            held, refused = [], False
            # Others fill the device up, until a step does not fit any more.
            try:
                while True:
                    held.append(new(512 * MIB))
                    network.train(3)
            except OutOfMemory:
                refused = True
            assert refused and 3 <= len(held) <= 12, len(held)
            lines.append(f"device {device} after {len(held)} blocks of 512 MiB")
            held.clear()
            gc.collect()
            torch.npu.synchronize()
            network.next = network.load(LENGTHS[3], 8)
            network.train(3)
            network.next = None
            gc.collect()
            torch.npu.synchronize()
            assert memory(device)["allocated.current"] <= before + MIB, "something of the step that failed is still held"
            for weights in network.weights:
                assert weights.cpu().numel() == weights.numel()
    networks.clear()
    return "a step did not fit, was caught, and fitted again: " + ", ".join(lines)


@check("nothing is kept")
def nothing_kept() -> str:
    gc.collect()
    torch.npu.synchronize()
    empty_cache()
    kept = {device: memory(device) for device in DEVICES}
    for device, figures in kept.items():
        assert figures["allocated.current"] == 0, f"device {device}: {figures}"
        FIGURES["devices"][str(device)]["left"] = figures["reserved.current"]
        if FORM != "built-in":
            assert figures["reserved.current"] == 0, f"device {device}: {figures}"
    Path("figures.json").write_text(json.dumps(FIGURES))
    return f"no block on {len(DEVICES)} devices; reserved: {[figures['reserved.current'] for figures in kept.values()]}"


check_findings(lambda: torch.npu.synchronize())


if __name__ == "__main__":
    main()
