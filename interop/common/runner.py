"""Runs files of checks in the environment of a framework and sums up.

Each run is a process of its own, with its own variables. Printed are every check with what it covered
and every failure with the end of the log; the last line says how many passed and failed. A check that
was not reached, a process that ends with a code other than 0 and a run that takes too long are
failures: nothing is left out silently.
"""

import argparse
import json
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from environment import Environment, Framework, prepare, say


@dataclass
class Run:
    """One process that runs one file of checks."""

    name: str
    #: A file in the framework's folder checks/.
    file: str
    variables: dict[str, str] = field(default_factory=dict)
    #: Seconds until the run is ended and has failed.
    limit: int = 600
    #: Whether objects of the device that are left when the process ends are a failure.
    leaves_nothing: bool = False
    #: Runs whose results this one reads: they are made before it whenever it is.
    after: tuple[str, ...] = ()


def main(framework: Framework, runs: list[Run]) -> None:
    """The command of a framework. Ends the process: 0 if every check passed."""
    parser = argparse.ArgumentParser(description=f"{framework.name} on the simulator")
    parser.add_argument("--fresh", action="store_true", help="throw the environment away and make it anew")
    parser.add_argument("--setup-only", action="store_true", help="make the environment and stop")
    parser.add_argument("--surface", metavar="VERSION", help="only the symbols of this CANN version, such as 8.5")
    parser.add_argument("--release", choices=framework.releases(), help="another release of the framework")
    parser.add_argument("--list", action="store_true", help="print the names of the runs and stop")
    parser.add_argument("only", nargs="*", metavar="RUN", help="run these, not all")
    options = parser.parse_args()
    unknown = set(options.only) - {run.name for run in runs}
    if unknown:
        parser.error(f"no such run: {', '.join(sorted(unknown))}")
    if options.list:
        print("\n".join(run.name for run in runs))
        return
    start = time.monotonic()
    environment = prepare(framework, options.fresh, options.surface, options.release)
    say(f"ready after {time.monotonic() - start:.0f} s")
    if options.setup_only:
        return
    wanted = set(options.only) | {name for run in runs if run.name in options.only for name in run.after}
    chosen = [run for run in runs if not wanted or run.name in wanted]
    results = [result for run in chosen for result in execute(environment, run)]
    failed = sum(not passed for passed in results)
    if len(chosen) < len(runs):
        say(f"{len(runs) - len(chosen)} of {len(runs)} runs were not asked for")
    say(f"{framework.name}: {len(chosen)} runs in {time.monotonic() - start:.0f} s")
    print(f"{len(results) - failed} passed, {failed} failed")
    sys.exit(1 if failed else 0)


def execute(environment: Environment, run: Run) -> list[bool]:
    """Runs one file; prints and returns what passed, the end of the process as the last."""
    scratch = environment.folder / "runs" / run.name
    if scratch.exists():
        shutil.rmtree(scratch)
    scratch.mkdir(parents=True)
    results, report, log = scratch / "results.json", scratch / "report.txt", scratch / "log.txt"
    own = {"INTEROP_RESULTS": str(results), "ASCEND_SIM_REPORT": str(report), **run.variables}
    print(f"\n{run.name}: {run.file} {' '.join(f'{k}={v}' for k, v in run.variables.items())}", flush=True)
    start = time.monotonic()
    with log.open("w") as out:
        process = subprocess.Popen(
            [str(environment.python), str(environment.framework.folder / "checks" / run.file)],
            cwd=scratch,
            env=environment.variables(**own),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
        )
        try:
            ended = describe(process.wait(run.limit))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            ended = f"ended after {run.limit} s without an end"
    passed = _checks(results)
    passed.append(_line("end of the process", ended == "exit code 0", f"{ended}, {time.monotonic() - start:.0f} s"))
    if run.leaves_nothing:
        passed.append(_line("left at the end", *_left(report)))
    if not all(passed):
        print(f"  the log ends with ({log}):")
        print("".join(f"    | {line}\n" for line in log.read_text(errors="replace").splitlines()[-60:]), end="")
    return passed


def describe(code: int) -> str:
    """What an exit status means."""
    return f"exit code {code}" if code >= 0 else f"killed by signal {-code}"


def _checks(results: Path) -> list[bool]:
    if not results.exists():
        return [_line("checks", False, "the file did not come to its checks")]
    written = json.loads(results.read_text())
    passed = [_line(result["name"], result["passed"], result["text"]) for result in written["results"]]
    missing = written["planned"][len(passed) :]
    return passed + [_line(name, False, "not reached") for name in missing]


def _left(report: Path) -> tuple[bool, str]:
    """Reads what the simulator says about the end of the process."""
    if not report.exists():
        return False, "the simulator wrote no report"
    text = report.read_text()
    if " 0 finding(s)" in text and " 0 leak(s)" in text:
        return True, "nothing, says the simulator"
    return False, "; ".join(line for line in text.splitlines() if " 0 " not in line) or "the report is empty"


def _line(name: str, passed: bool, text: str) -> bool:
    print(f"  {'ok    ' if passed else 'FAILED'} {name}: {text}", flush=True)
    return passed
