"""MindSpore with ascend-alloc behind its pluggable allocator: the traps of that hook, and training of variable length.

Operators compute nothing here: what a network needs in memory is real, what it computes is not.
"""

import gc
import os
import threading

import ascend_alloc_mindspore as plugin
import numpy as np
import mindspore as ms
from checking import check, check_findings, main, noop_calls, simulator
from mindspore import Tensor, mint, nn

MIB = 1 << 20
DEVICE = int(os.environ.get("INTEROP_DEVICE", "0"))
STEPS, BATCH, WIDTH, LAYERS = 30, 8, 512, 8
#: Lengths that repeat no pattern within the steps.
LENGTHS = [64 + 32 * ((7 * step * step + 3 * step) % 15) for step in range(STEPS)]


def ours(figure: str) -> int:
    """A figure of our statistics, such as allocated_bytes.current."""
    name, _, kind = figure.partition(".")
    return plugin.stats(DEVICE)[f"{name}.all.{kind}"]


def settle() -> None:
    """Nothing of MindSpore's cache is held back."""
    gc.collect()
    ms.runtime.synchronize()
    plugin.end_step()


def block(mib: int) -> Tensor:
    """A tensor of so many MiB, which exists when this returns."""
    made = mint.empty((mib * MIB,), dtype=ms.uint8, device="Ascend")
    ms.runtime.synchronize()
    return made


@check("plain form")
def plain() -> str:
    ms.set_device("Ascend", DEVICE)
    ms.set_context(mode=ms.PYNATIVE_MODE)
    allocator = ms.runtime.PluggableAllocator(plugin.library_path(), "ascend_alloc_malloc", "ascend_alloc_free")
    pool = ms.runtime.MemPool(allocator)
    # Without this the hook is told device 0, whatever set_device was told.
    ms.set_context(device_id=DEVICE)
    sizes = [1, 511, 4097, MIB + 1, 33 * MIB]
    with ms.runtime.use_mem_pool(pool):
        for size in sizes:
            host = (np.arange(size) * 7).astype(np.uint8)
            there = Tensor(host).move_to("Ascend")
            ms.runtime.synchronize()
            assert np.array_equal(there.asnumpy(), host), f"{size} bytes differ"
        held = ours("allocated_bytes.current")
        assert held >= 33 * MIB, held
        del there
        settle()
        assert ours("allocated_bytes.current") == 0, ours("allocated_bytes.current")
    return f"{len(sizes)} tensors from 1 B to 33 MiB came from us, were equal and went back ({held >> 20} MiB held)"


@check("the switch counts for the whole process, and our contexts nest")
def nesting() -> str:
    with plugin.use():
        with plugin.use():
            pass
        before, made = ours("allocated_bytes.current"), []
        thread = threading.Thread(target=lambda: made.append(block(5)))
        thread.start()
        thread.join()
        assert ours("allocated_bytes.current") - before >= 5 * MIB, "another thread's block did not come from us"
        made.clear()
        settle()
    outside = block(5)
    assert ours("allocated_bytes.current") == 0, "a block came from us although nobody asks for it"
    del outside
    settle()
    return "leaving the inner one changes nothing, another thread takes part, nothing comes from us outside"


@check("a block outlives the context")
def outlives() -> str:
    with plugin.use():
        kept = Tensor(np.arange(3 * MIB, dtype=np.uint8)).move_to("Ascend")
        ms.runtime.synchronize()
    held = ours("allocated_bytes.current")
    assert held >= 3 * MIB, held
    settle()
    assert ours("allocated_bytes.current") == held, "a live block was given back"
    assert np.array_equal(kept.asnumpy(), np.arange(3 * MIB, dtype=np.uint8))
    del kept
    settle()
    assert ours("allocated_bytes.current") == 0, ours("allocated_bytes.current")
    return "3 MiB stayed ours and intact outside, and came back by empty_cache"


@check("out of memory and recovery")
def out_of_memory() -> str:
    held, refused = [], ""
    with plugin.use():
        try:
            while len(held) < 100:
                held.append(block(200))
        except RuntimeError as error:
            refused = str(error).splitlines()[0]
        fitted = len(held)
        assert "memory" in refused.lower(), refused or "100 blocks of 200 MiB fitted into 8 GiB"
        assert 36 <= fitted <= 41, f"{fitted} blocks of 200 MiB fitted into 8 GiB"
        assert ours("allocated_bytes.current") >= fitted * 200 * MIB
        held.clear()
        settle()
        host = np.arange(300 * MIB // 4, dtype=np.float32)
        there = Tensor(host).move_to("Ascend")
        assert np.array_equal(there.asnumpy(), host)
        del there
        settle()
    return f"refused after {fitted} blocks of 200 MiB ({refused}), 300 MiB with contents fit after empty_cache"


class Layer(nn.Cell):
    """Attention and a feed-forward part, with normalisation before each."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.CellList([mint.nn.LayerNorm((WIDTH,)) for _ in range(2)])
        self.query, self.key, self.value, self.out = (mint.nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.up, self.down = mint.nn.Linear(WIDTH, 4 * WIDTH), mint.nn.Linear(4 * WIDTH, WIDTH)

    def construct(self, rows: Tensor) -> Tensor:
        seen = self.norms[0](rows)
        scores = mint.matmul(self.query(seen), mint.transpose(self.key(seen), 1, 2))
        weights = mint.nn.functional.softmax(scores, -1)
        rows = rows + self.out(mint.matmul(weights, self.value(seen)))
        return rows + self.down(mint.nn.functional.gelu(self.up(self.norms[1](rows))))


@check("30 steps of variable length")
def training() -> str:
    library, calls = plugin._load(), simulator().calls()
    assert library.ascend_alloc_empty_cache(DEVICE) == 0
    assert library.ascend_alloc_reset_peak_stats(DEVICE) == 0
    assert ours("reserved_bytes.peak") == 0, "something was left from the checks before"
    with plugin.use():
        network = nn.SequentialCell([Layer() for _ in range(LAYERS)])
        optimizer = mint.optim.AdamW(network.trainable_params(), lr=1e-3)

        def loss(rows: Tensor) -> Tensor:
            return mint.nn.functional.mse_loss(network(rows), rows)

        step = ms.value_and_grad(loss, None, optimizer.parameters)
        for length in LENGTHS:
            value, gradients = step(Tensor(np.ones((BATCH, length, WIDTH), np.float32)))
            optimizer(gradients)
            del value, gradients
            settle()
        held, reserved = ours("allocated_bytes.peak"), ours("reserved_bytes.peak")
        asked = ours("allocation.allocated")
        del network, optimizer, step
        settle()
    assert ours("allocated_bytes.current") == 0, "MindSpore did not give everything back"
    assert held >= 200 * MIB, f"only {held >> 20} MiB were held: too few to say anything"
    assert reserved <= 1.03 * held, f"{reserved / held:.4f} of what MindSpore held"
    launched = [name for name in noop_calls() if name.startswith("aclnn") and not name.endswith("GetWorkspaceSize")]
    assert any("adamw" in name.lower() for name in launched) and any("softmax" in name.lower() for name in launched)
    after = simulator().calls()
    waits = sum(after[name] - calls.get(name, 0) for name in after if name.startswith("aclrtSynchronizeEvent"))
    return (
        f"{STEPS} steps, lengths {min(LENGTHS)} to {max(LENGTHS)}: MindSpore asked {asked} times and held "
        f"{held / MIB:.1f} MiB at most, we had {reserved / MIB:.1f} MiB ({reserved / held:.4f}); {waits} host waits for events"
    )


check_findings(lambda: ms.runtime.synchronize())


@check("switched on until the end")
def stays_on() -> str:
    # These blocks are given back by MindSpore's own end, after it has destroyed its streams.
    plugin.enable()
    kept = [block(size) for size in (1, 33, 100)]
    globals()["KEPT"] = kept
    assert ours("allocated_bytes.current") >= 134 * MIB
    assert not simulator().findings(), simulator().findings()
    return "134 MiB are left for MindSpore to give back when the process ends"


if __name__ == "__main__":
    main()
