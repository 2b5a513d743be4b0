"""What a shared library asks for and offers, read with the binutils that come with gcc.

Only the dynamic symbol table counts: it is what the loader sees.
"""

import functools
import mmap
import re
import subprocess
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Library:
    """One shared library, as the loader sees it."""

    path: Path
    machine: str
    needed: list[str]
    defined: set[str]
    #: Undefined symbols that must be found, with the version they ask for ("" without one).
    undefined: dict[str, str]
    #: The library that each required version belongs to.
    version_files: dict[str, str] = field(default_factory=dict)


def tool(*command: str | Path) -> str:
    """The output of a command; its failure is an exception with what it said."""
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(map(str, command))} failed: {done.stderr.strip()}")
    return done.stdout


@functools.cache
def read(path: Path) -> Library:
    """Reads a library."""
    defined, undefined = set(), {}
    for line in tool("nm", "-D", "--with-symbol-versions", path).splitlines():
        *_, kind, name = line.split()
        name, _, version = name.replace("@@", "@").partition("@")
        if kind == "U":
            undefined[name] = version
        elif kind not in "wv":
            defined.add(name)
    dynamic = tool("readelf", "-hdVW", path)
    version_files, file = {}, ""
    for found in re.finditer(r"File: (\S+)|Name: (\S+)  Flags: \S+  Version: \d+", dynamic):
        if found[1]:
            file = found[1]
        elif file:
            version_files[found[2]] = file
    machine = re.search(r"Machine:\s+(.*)", dynamic)
    needed = re.findall(r"\(NEEDED\)\s+Shared library: \[(.*)\]", dynamic)
    return Library(path, machine[1] if machine else "", needed, defined, undefined, version_files)


def strings(path: Path, pattern: bytes) -> set[str]:
    """The whole zero-terminated strings of a file that match `pattern`."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return {found[1].decode() for found in re.finditer(rb"(?<=\0)(" + pattern + rb")(?=\0)", data)}


@functools.cache
def on_system(name: str) -> Path | None:
    """Where the machine has a library of this name, if it has it."""
    answer = tool("gcc", f"-print-file-name={name}").strip()
    return Path(answer) if answer != name else None
