#!/usr/bin/env python3
"""Breaks the allocator on purpose, one place at a time, and shows which test notices.

    tools/mutants.py            all mutants
    tools/mutants.py NAME...    these
    tools/mutants.py --list     what there is

Works on a copy of the tree in a temporary folder. Fails if a mutant is not caught, or if its text no longer occurs in the source
exactly once. Needs nothing but Python 3 and cargo.
"""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent

# Tests from quick to slow: the first that fails is named.
TESTS = [
    ["--lib"],
    ["--test", "scenarios_expandable", "--test", "streams", "--test", "waiting"],
    ["--test", "limits", "--test", "pools", "--test", "captures", "--test", "sleep"],
    ["--test", "core_faults"],
    ["--test", "core_model"],
]

# name, file, text, what it is replaced with
MUTANTS = [
    ("epoch-dropped", "src/core/heap.rs", "        self.blocks[id].epoch = epoch;\n        self.blocks[id].lent = false;",
     "        self.blocks[id].lent = false;"),
    ("stamp-of-a-free-skipped", "src/core/heap.rs",
     "        self.blocks[id].requested = 0;\n        self.stamp(id);\n        self.make_free(id);",
     "        self.blocks[id].requested = 0;\n        self.make_free(id);"),
    ("split-forgets-the-epoch", "src/core/block.rs", "        piece.epoch = epoch;\n", "        piece.epoch = 0;\n"),
    ("split-forgets-the-home", "src/core/block.rs", "        piece.home = home;\n", "        piece.home = 0;\n"),
    ("cut-tail-is-over-at-once", "src/core/heap.rs", "        self.blocks[tail].epoch = self.streams[home].open;",
     "        self.blocks[tail].epoch = 0;"),
    ("every-block-open-to-all", "src/core/heap.rs", "        block.home == stream\n            || !self.config.stream_order",
     "        block.home == stream\n            || true"),
    ("passed-one-too-many", "src/core/stream.rs", "        epoch <= self.completed", "        epoch <= self.completed + 1"),
    ("roll-back-forgotten", "src/core/commit.rs", "                self.settle(remap.target, remap.home, remap.epoch);\n                match phase",
     "                match phase"),
    ("books-of-failed-chunks", "src/core/commit.rs",
     "        self.physical -= (remap.create - done.created) as u64 * granule;", ""),
    ("use-not-noted", "src/front/uses.rs", "        self.touched.store_among_swaps(1, Release);",
     "        self.touched.store_among_swaps(0, Release);"),
    ("free-twice-in-the-front", "src/front/cache.rs",
     "        if entry.head() != head || epoch == 0 || shard.holds(entry, address, small) {",
     "        if entry.head() != head || epoch == 0 {"),
    ("rounding-off-by-one", "src/alloc/device.rs", "        let len = (((bytes + 31) & !31) + self.sizes.pad + (UNIT - 1)) & !(UNIT - 1);",
     "        let len = (((bytes + 31) & !31) + self.sizes.pad + UNIT) & !(UNIT - 1);"),
    ("everybody-gets-the-whole-room", "src/front/cache.rs", "own.min(all / 2) / parties", "own.min(all)"),
]

# The same for orders of memory and for what has to happen under a flag; these are looked for by loom's models.
ORDERS = [
    ("flag-left-relaxed", "src/sync/flag.rs", "store_among_swaps(false, Ordering::Release)", "store_among_swaps(false, Ordering::Relaxed)"),
    ("flag-taken-relaxed", "src/sync/flag.rs", "if !self.0.swap(true, Ordering::Acquire)", "if !self.0.swap(true, Ordering::Relaxed)"),
    ("uses-taken-relaxed", "src/front/uses.rs", "self.touched.swap(0, AcqRel)", "self.touched.swap(0, Relaxed)"),
    ("use-noted-relaxed", "src/front/uses.rs", "store_among_swaps(1, Release)", "store_among_swaps(1, Relaxed)"),
    ("completed-relaxed", "src/front/streams.rs", "state.completed.store(completed, Release)", "state.completed.store(completed, Relaxed)"),
    ("over-looked-at-relaxed", "src/front/streams.rs", "column.completed.load(Acquire)", "column.completed.load(Relaxed)"),
    ("stream-settled-relaxed", "src/front/streams.rs", "place.handle.store(stream.0.wrapping_add(1), Release)",
     "place.handle.store(stream.0.wrapping_add(1), Relaxed)"),
    ("column-attached-relaxed", "src/front/streams.rs", "column.store(column as u8 + 1, Release)", "column.store(column as u8 + 1, Relaxed)"),
    ("flags-not-passed-through", "src/front/cache.rs", "        if recorded_on {\n            self.pass_through();\n        }",
     "        let _ = recorded_on;"),
    ("epoch-set-without-the-flag", "src/front/cache.rs",
     "            let guard = self.shard(place).flag.lock();\n            self.streams.set_epoch(place, epoch);\n            drop(guard);",
     "            self.streams.set_epoch(place, epoch);"),
    ("dismissed-without-the-flag", "src/front/cache.rs",
     "        let _guard = self.shard(place).flag.lock();\n        self.streams.dismiss(place);", "        self.streams.dismiss(place);"),
    ("reset-noted-relaxed", "src/driver/states.rs", "        self.reset.fetch_or(bit(device), Ordering::Release);\n        self.pending.fetch_add(1, Ordering::Release);",
     "        self.reset.fetch_or(bit(device), Ordering::Release);\n        self.pending.fetch_add(1, Ordering::Relaxed);"),
    ("notes-done-relaxed", "src/driver/states.rs", "fetch_sub(taken.count, Ordering::AcqRel)", "fetch_sub(taken.count, Ordering::Relaxed)"),
    ("notes-seen-relaxed", "src/driver/states.rs", "self.pending.load(Ordering::Acquire) != 0", "self.pending.load(Ordering::Relaxed) != 0"),
    ("number-read-relaxed", "src/history/log.rs", "self.counters.sequence.load(Acquire)", "self.counters.sequence.load(Relaxed)"),
    ("words-told-relaxed", "src/history/list.rs", "self.state.store(state + ((len as u64) << LEN), Release)",
     "self.state.store(state + ((len as u64) << LEN), Relaxed)"),
]


def main() -> int:
    names = sys.argv[1:]
    if names == ["--list"]:
        for name, file, *_ in MUTANTS + ORDERS:
            print(f"{name:<28} {file}")
        return 0
    unknown = set(names) - {mutant[0] for mutant in MUTANTS + ORDERS}
    if unknown:
        print(f"no such mutant: {', '.join(sorted(unknown))}", file=sys.stderr)
        return 2
    chosen = [mutant for mutant in MUTANTS + ORDERS if not names or mutant[0] in names]
    with tempfile.TemporaryDirectory() as folder:
        tree = pathlib.Path(folder) / "tree"
        shutil.copytree(ROOT, tree, ignore=shutil.ignore_patterns("target", ".git", ".env", "shared"), symlinks=True)
        missed = [mutant[0] for mutant in chosen if not caught(tree, *mutant)]
    if missed:
        print(f"NOT CAUGHT: {', '.join(missed)}")
        return 1
    print(f"{len(chosen)} mutants, all caught")
    return 0


def caught(tree: pathlib.Path, name: str, file: str, text: str, instead: str) -> bool:
    path = tree / file
    source = path.read_text()
    if source.count(text) != 1:
        raise SystemExit(f"{name}: its text occurs {source.count(text)} times in {file}, expected 1")
    path.write_text(source.replace(text, instead))
    try:
        orders = any(name == mutant[0] for mutant in ORDERS)
        for tests in [["--lib", "models"]] if orders else TESTS:
            started = time.monotonic()
            failed = run(tree, tests, orders)
            if failed is not None:
                print(f"{name:<28} {failed}  ({time.monotonic() - started:.0f} s)", flush=True)
                return True
        print(f"{name:<28} NOT CAUGHT", flush=True)
        return False
    finally:
        path.write_text(source)


def run(tree: pathlib.Path, tests: list[str], loom: bool) -> str | None:
    """The first test that fails, or nothing."""
    environment = dict(os.environ, CARGO_TERM_COLOR="never", RUST_BACKTRACE="0")
    folder = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    environment["CARGO_TARGET_DIR"] = str(folder / ("mutants-loom" if loom else "mutants"))
    if loom:
        environment["RUSTFLAGS"] = "--cfg ascend_alloc_loom"
    command = ["cargo", "test", "--locked", "-p", "ascend-alloc", *tests]
    try:
        done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, timeout=1200)
    except subprocess.TimeoutExpired:
        return "does not end"
    if done.returncode == 0:
        return None
    if "error: could not compile" in done.stderr:
        raise SystemExit(f"a mutant does not compile:\n{done.stderr[-3000:]}")
    failed = [line.split()[1] for line in done.stdout.splitlines() if line.startswith("test ") and line.endswith("FAILED")]
    return failed[0] if failed else f"ended with {done.returncode}"


if __name__ == "__main__":
    sys.exit(main())
