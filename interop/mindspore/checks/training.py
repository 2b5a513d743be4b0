"""A small network trained on MindSpore's Ascend backend, with MindSpore's own memory pool."""

import gc
import os

import numpy as np
import mindspore as ms
from checking import check, check_findings, main, noop_calls, simulator
from mindspore import Tensor, mint, nn, ops

MIB, GIB = 1 << 20, 1 << 30
DEVICE = int(os.environ.get("INTEROP_DEVICE", "0"))
STEPS, WIDTH = 5, 64


class Network(nn.Cell):
    """Two layers with a normalisation between them."""

    def __init__(self) -> None:
        super().__init__()
        self.first = mint.nn.Linear(WIDTH, 4 * WIDTH)
        self.norm = mint.nn.LayerNorm((4 * WIDTH,))
        self.second = mint.nn.Linear(4 * WIDTH, WIDTH)

    def construct(self, rows: Tensor) -> Tensor:
        return self.second(mint.nn.functional.gelu(self.norm(self.first(rows))))


@check("set_device")
def set_device() -> str:
    ms.set_device("Ascend", DEVICE)
    ms.set_context(mode=ms.PYNATIVE_MODE)
    ms.runtime.synchronize()
    assert ms.get_context("device_target") == "Ascend"
    assert ms.hal.device_count() == 2, ms.hal.device_count()
    memory = ms.hal.get_device_properties(DEVICE).total_memory
    assert memory == 8 * GIB, memory
    return f"MindSpore {ms.__version__} on Ascend, device {DEVICE} of 2, {memory // GIB} GiB"


@check("tensors")
def tensors() -> str:
    sizes = [1, 511, 4097, MIB + 1, 33 * MIB]
    for size in sizes:
        host = (np.arange(size) * 7).astype(np.uint8)
        there = Tensor(host).move_to("Ascend")
        ms.runtime.synchronize()
        assert np.array_equal(there.asnumpy(), host), f"{size} bytes differ"
    return f"{len(sizes)} tensors from 1 B to 33 MiB to the device and back, equal"


@check("forward, backward, optimizer")
def training() -> str:
    network = Network()
    optimizer = mint.optim.AdamW(network.trainable_params(), lr=1e-3)

    def loss(rows: Tensor, wanted: Tensor) -> Tensor:
        return mint.nn.functional.mse_loss(network(rows), wanted)

    step = ms.value_and_grad(loss, None, optimizer.parameters)
    for index in range(STEPS):
        rows = Tensor(np.full((32 + 16 * index, WIDTH), index, np.float32))
        value, gradients = step(rows, rows)
        assert len(gradients) == len(network.trainable_params())
        optimizer(gradients)
        assert value.asnumpy().shape == ()
    ms.runtime.synchronize()
    called = noop_calls()
    launched = [name for name in called if name.startswith("aclnn") and not name.endswith("GetWorkspaceSize")]
    for part in ("Backward", "AdamW", "MSE"):
        assert any(part.lower() in name.lower() for name in launched), f"no operator of {part} in {launched}"
    total = sum(called[name] for name in launched)
    return f"{STEPS} steps of {len(gradients)} parameters, {total} launches of {len(launched)} operators"


@check("compiled graph")
def compiled() -> str:
    network = Network()

    @ms.jit(jit_level="O0")
    def forward(rows: Tensor) -> Tensor:
        return network(rows)

    for size in (8, 32):
        shape = forward(Tensor(np.ones((size, WIDTH), np.float32))).asnumpy().shape
        assert shape == (size, WIDTH), shape
    return "the forward pass compiled as a graph of single operators, two sizes"


@check("memory pool")
def pool() -> str:
    gc.collect()
    ms.runtime.synchronize()
    ms.runtime.empty_cache()
    calls, before = simulator().calls(), ms.runtime.memory_allocated()
    blocks = [mint.empty((size * MIB,), dtype=ms.uint8, device="Ascend") for size in (1, 33, 100)]
    ms.runtime.synchronize()
    during, after = ms.runtime.memory_allocated(), simulator().calls()
    assert during - before >= 134 * MIB, (before, during)
    assert calls["aclrtReserveMemAddress"] > 0
    mapped, made = (after[name] - calls[name] for name in ("aclrtMapMem", "aclrtMallocPhysical"))
    assert 134 * MIB // (20 * MIB) <= made <= mapped <= 100, (made, mapped)
    del blocks
    gc.collect()
    assert ms.runtime.memory_allocated() - before < MIB, (before, ms.runtime.memory_allocated())
    reserved = ms.runtime.memory_reserved()
    ms.runtime.empty_cache()
    left = ms.runtime.memory_reserved()
    assert reserved - left >= 100 * MIB, (reserved, left)
    assert ms.runtime.max_memory_allocated() >= during
    return (
        f"{made} chunks made and mapped for 134 MiB, statistics, "
        f"empty_cache gave {(reserved - left) >> 20} of {reserved >> 20} MiB back"
    )


@check("out of memory and recovery")
def out_of_memory() -> str:
    held, refused = [], ""
    try:
        while len(held) < 100:
            held.append(mint.empty((200 * MIB,), dtype=ms.uint8, device="Ascend"))
            ms.runtime.synchronize()
    except RuntimeError as error:
        refused = str(error).splitlines()[0]
    fitted = len(held) - 1
    assert "memory" in refused.lower(), refused or "100 blocks of 200 MiB fitted into 8 GiB"
    assert 30 <= fitted <= 40, f"{fitted} blocks of 200 MiB fitted into 8 GiB"
    held.clear()
    gc.collect()
    host = np.arange(200 * MIB // 4, dtype=np.float32)
    there = Tensor(host).move_to("Ascend")
    assert np.array_equal(there.asnumpy(), host)
    del there
    gc.collect()
    ms.runtime.empty_cache()
    return f"refused after {fitted} blocks of 200 MiB ({refused}), 200 MiB with contents fit afterwards"


@check("streams and events")
def streams() -> str:
    side, event = ms.runtime.Stream(), ms.runtime.Event()
    host = np.arange(MIB, dtype=np.float32)
    with ms.runtime.StreamCtx(side):
        there = ops.zeros((MIB,), ms.float32) + Tensor(host)
        event.record()
    event.wait()
    side.synchronize()
    assert event.query() and side.query()
    return f"an operator on a side stream, an event waited for, result of {there.shape[0]} elements"


check_findings(lambda: ms.runtime.synchronize())


if __name__ == "__main__":
    main()
