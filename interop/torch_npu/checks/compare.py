"""What the runs of training.py measured, side by side: our forms against torch_npu's own allocator."""

import json
import os
from pathlib import Path

from checking import check, main

MIB = 1 << 20
#: The runs, by form: torch_npu's own first.
BUILT_IN, *OURS = os.environ["INTEROP_COMPARE"].split(",")


def figures(run: str) -> dict:
    """What a run wrote down."""
    return json.loads((Path("..") / run / "figures.json").read_text())["devices"]


@check("same contents")
def contents() -> str:
    wanted = figures(BUILT_IN)
    for run in OURS:
        for device, own in wanted.items():
            assert figures(run)[device]["digest"] == own["digest"], f"{run}, device {device}: contents differ from {BUILT_IN}"
    return f"{', '.join(OURS)} as {BUILT_IN} on {len(wanted)} devices"


@check("no more memory")
def reserved() -> str:
    lines = []
    for device, own in figures(BUILT_IN).items():
        lines.append(f"device {device}: {BUILT_IN} {own['reserved.peak'] / MIB:.1f} MiB for {own['allocated.peak'] / MIB:.1f} allocated")
        for run in OURS:
            ours = figures(run)[device]
            assert ours["reserved.peak"] <= own["reserved.peak"], f"{run}, device {device}: {ours} against {own}"
            lines.append(f"{run} {ours['reserved.peak'] / MIB:.1f} for {ours['allocated.peak'] / MIB:.1f}")
    return ", ".join(lines)


if __name__ == "__main__":
    main()
