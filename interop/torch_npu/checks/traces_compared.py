"""What the runs of traces.py measured, side by side: ours, last, against torch_npu's own allocator."""

import json
import os
from pathlib import Path

from checking import check, main

#: The runs; ours is the last.
RUNS = os.environ["INTEROP_COMPARE"].split(",")


HEAD = [
    "trace", "run", "reserved / live, first pass", "in all three", "driver calls, two passes", "in the third",
    "ns an operation", "Python's loop",
]  # fmt: skip


def figures(run: str) -> dict:
    """What a run wrote down."""
    return json.loads((Path("..") / run / "figures.json").read_text())


@check("no more memory")
def reserved() -> str:
    lines, all_runs = [], {run: figures(run) for run in RUNS}
    ours = all_runs[RUNS[-1]]
    for trace in ours:
        own = {run: all_runs[run][trace]["reserved_first"] for run in RUNS[:-1]}
        assert ours[trace]["reserved_first"] <= min(own.values()), f"{trace}: {ours[trace]} against {own}"
        # Where moving has become a habit more may be kept than in the first pass: ALLOCATOR_DESIGN.md, section 7.
        own = all_runs[RUNS[0]][trace]["reserved"]
        assert ours[trace]["reserved"] <= own, f"{trace}: {ours[trace]} against {own}"
        for run in RUNS:
            told = all_runs[run][trace]
            ratios = [f"{told[key] / told['live']:.4f}" for key in ("reserved_first", "reserved")]
            times = [f"{told[key]:.0f}" for key in ("nanoseconds", "loop")]
            lines.append([trace, run, *ratios, str(told["calls_before"]), str(told["calls"]), *times])
    table = [HEAD, ["---"] * len(HEAD), *lines]
    return "\n".join(["", *(f"| {' | '.join(row)} |" for row in table)])


if __name__ == "__main__":
    main()
