#!/usr/bin/env python3
"""Sums up what llvm-cov says of src: by folder, and the lines that no test runs. tools/coverage.sh calls it.

Items under `#[cfg(test)]` are left out: they are tests, not what is tested.
"""

import json
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
TEST_ITEM = re.compile(r"^(\s*)#\[cfg\(test\)\]")


def programs(profiles, debug):
    """What was built and holds code of the library: test programs, the command, and the C library."""
    found = []
    for line in (profiles / "built.json").read_text().splitlines():
        message = json.loads(line)
        if message.get("reason") == "compiler-artifact" and message.get("executable"):
            found.append(message["executable"])
    found += [str(path) for path in [debug / "libascend_alloc.so"] if path.exists()]
    return found


def covered(llvm_cov, profiles, objects):
    """For each file of src: how often each of its lines was run."""
    command = [llvm_cov, "export", "--format=lcov", "--skip-functions", f"--instr-profile={profiles / 'all.profdata'}"]
    command += [f"--object={path}" for path in objects[1:]] + [objects[0], "--sources", str(ROOT / "src")]
    text = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    files, lines = {}, {}
    for row in text.splitlines():
        if row.startswith("SF:"):
            lines = files.setdefault(pathlib.Path(row[3:]).relative_to(ROOT), {})
        elif row.startswith("DA:"):
            line, count = row[3:].split(",")[:2]
            lines[int(line)] = max(lines.get(int(line), 0), int(count))
    return files


def of_tests(path):
    """The lines of a file that are there for its own tests only. Relies on rustfmt: an item ends where a `}` stands as far left."""
    found, end = set(), None
    text = (ROOT / path).read_text().splitlines()
    if text[:1] == ["#![cfg(test)]"]:
        return set(range(1, len(text) + 1))
    for number, line in enumerate(text, 1):
        if end is None and (match := TEST_ITEM.match(line)):
            end = match[1]
            found.add(number)
            continue
        if end is not None:
            found.add(number)
            whole = line.startswith(end) and not line.startswith((end + " ", end + "#", end + "//"))
            if line == end + "}" or (whole and line.endswith((";", "}", ","))):
                end = None
    return found


def ranges(numbers):
    """`3-5 9` for 3, 4, 5 and 9."""
    runs = []
    for number in sorted(numbers):
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return " ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def main():
    llvm_cov, profiles, debug = sys.argv[1], pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3])
    folders, missing = {}, []
    for path, lines in sorted(covered(llvm_cov, profiles, programs(profiles, debug)).items()):
        tests = of_tests(path)
        counted = {line: count for line, count in lines.items() if line not in tests}
        if not counted:
            continue
        never = [line for line, count in counted.items() if count == 0]
        names = [str(path.parent if path.parent == pathlib.Path("src") or len(path.parts) == 2 else pathlib.Path(*path.parts[:2])), "all"]
        for name in names:
            row = folders.setdefault(name, [0, 0])
            row[0] += len(counted)
            row[1] += len(never)
        if never:
            missing.append(f"{path}: {ranges(never)}")
    print("\nlines that no test runs")
    print("\n".join(missing))
    print("\n| folder | lines | not run | run |\n|---|---:|---:|---:|")
    for name, (total, never) in sorted(folders.items(), key=lambda row: (row[0] == "all", row[0])):
        print(f"| {name} | {total} | {never} | {100 * (total - never) / max(total, 1):.2f} % |")


main()
