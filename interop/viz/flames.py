"""Stands in for the program that draws flame graphs: checks the lines it gets and answers what they come to.

A line is `frame;frame;... bytes`. The answer is JSON: all bytes, and bytes by state.
"""

import json
import sys

total, states = 0, {}
for line in sys.stdin:
    stack, size = line.rstrip("\n").rsplit(" ", 1)
    frames = stack.split(";")
    state = next(frame for frame in frames if frame in ("active_allocated", "active_pending_free", "inactive"))
    total += int(size)
    states[state] = states.get(state, 0) + int(size)
print(json.dumps({"total": total, "states": states}))
