"""Checks: functions with a name that run one after the other in one process and say what they covered.

A file of checks begins with `from checking import check, main, simulator`, marks functions with
`@check("what is checked")` and ends with `check_findings` and `main()`. A function fails by raising; what it returns is
printed as what it covered. Later checks still run after a failure. The names of all checks are written
down before the first one runs, so that the runner notices those that a crash left out.
"""

import contextlib
import ctypes
import json
import os
import sys
import traceback
from collections.abc import Callable, Iterator

_CHECKS: list[tuple[str, Callable[[], str]]] = []


def check(name: str) -> Callable:
    """Marks a function as a check."""

    def mark(function: Callable[[], str]) -> Callable[[], str]:
        _CHECKS.append((name, function))
        return function

    return mark


def main() -> None:
    """Runs the checks; ends the process with 1 when one failed, otherwise returns."""
    results: list[dict] = []
    _write(results)
    for name, function in _CHECKS:
        try:
            covered, passed = function(), True
            if not covered:
                raise AssertionError("this check does not say what it covered")
        except BaseException as error:  # an exit is a failure too
            traceback.print_exc()
            covered, passed = f"{type(error).__name__}: {error}".splitlines()[0], False
        results.append({"name": name, "passed": passed, "text": covered})
        _write(results)
    if not all(result["passed"] for result in results):
        sys.exit(1)


def _write(results: list[dict]) -> None:
    out = os.environ.get("INTEROP_RESULTS")
    if out:
        with open(out, "w") as file:
            json.dump({"planned": [name for name, _ in _CHECKS], "results": results}, file)
    elif results:
        last = results[-1]
        print(f"{'ok' if last['passed'] else 'FAILED'}: {last['name']}: {last['text']}", flush=True)


class Simulator:
    """The control functions of the simulator that this process has loaded as `libascendcl.so`."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL("libascendcl.so")

    def _text(self, function: str) -> str:
        ask = getattr(self.library, function)
        ask.restype = ctypes.c_int
        ask.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
        buffer = ctypes.create_string_buffer(1)
        while (length := ask(buffer, len(buffer))) >= len(buffer):
            buffer = ctypes.create_string_buffer(2 * length)
        assert length >= 0, f"{function} answered {length}"
        return buffer.value.decode()

    def findings(self) -> list[str]:
        """What the use checker and the other oracles found so far."""
        return [finding["text"] for finding in json.loads(self._text("acl_sim_findings_json"))]

    def calls(self) -> dict[str, int]:
        """How often each ACL function was called."""
        return json.loads(self._text("acl_sim_counters_json"))

    @contextlib.contextmanager
    def busy(self, stream: int) -> Iterator[None]:
        """Keeps a stream of the current device busy: what is queued to it starts when the block ends."""
        c = ctypes.CDLL(None)
        gate = ctypes.create_string_buffer(64)  # a sem_t; no platform has a larger one
        assert c.sem_init(gate, 0, 0) == 0
        launch = self.library.aclrtLaunchHostFunc
        launch.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
        # A function of the C library, so that the simulator's thread needs nothing of Python.
        code = launch(stream, ctypes.cast(c.sem_wait, ctypes.c_void_p), ctypes.addressof(gate))
        assert code == 0, f"aclrtLaunchHostFunc answered {code}"
        _GATES.append(gate)
        try:
            yield
        finally:
            c.sem_post(gate)


_SIMULATOR: Simulator | None = None

#: What streams wait at; kept, since a stream may come to its gate at any time.
_GATES: list = []


def simulator() -> Simulator:
    """The simulator of this process."""
    global _SIMULATOR
    if _SIMULATOR is None:
        _SIMULATOR = Simulator()
    return _SIMULATOR


def check_findings(synchronize: Callable[[], object]) -> None:
    """Adds the check that, once all work is over, nothing was used in a way that a device would punish."""

    @check("findings of the simulator")
    def findings() -> str:
        synchronize()
        found = simulator().findings()
        assert not found, f"{len(found)} findings: " + "; ".join(found[:20])
        calls = simulator().calls()
        return f"none in {sum(calls.values())} calls of {len([c for c in calls.values() if c])} ACL functions"


def noop_calls() -> dict[str, int]:
    """The functions of the companions that were called, and how often."""
    library = ctypes.CDLL("libinterop_noop.so")
    ask = library.interop_noop_calls
    ask.restype = ctypes.c_size_t
    buffer = ctypes.create_string_buffer(1 << 20)
    ask(buffer, ctypes.c_size_t(len(buffer)))
    return {name: int(count) for name, count in (line.split() for line in buffer.value.decode().splitlines())}
