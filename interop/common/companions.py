"""Libraries of no-ops in place of those that a wheel wants and nobody here has.

A framework's wheel is linked against the vendor's operator, graph, collective and profiling libraries.
Memory, streams, events and copies are answered by the simulator's `libascendcl.so`; the rest only has
to be there. This module walks what the loader would load, starting at some libraries of the wheel, and
makes one library for each name that is missing:

    library of the wheel --needs--> libhccl.so  (empty)  --needs--> libinterop_noop.so
                                    libgraph.so (empty)  --needs-->   every symbol that nobody defines
                                    libcudart.so.12      --needs-->
                                      the symbols wanted with a version of its own

Calls of the runtime (`RUNTIME`) are never made up, but for those that load operators' code: one that a library is linked against and the simulator
lacks is an error, and those that are only looked up are listed.

`libinterop_noop.so` also has the functions that a framework looks up at run time (`Plan.lookups`) and
those that must answer something (`Plan.answers`, C files of this repository). A search in any of the
libraries, dlsym on its handle included, finds all of them. Every other function counts its calls and
returns 0; `interop_noop_calls` writes down which were called.
"""

import re
from dataclasses import dataclass, field
from pathlib import Path

import elf

NOOP = "libinterop_noop.so"

#: What the simulator has to answer: all but the calls that load operators' code, which does nothing here.
RUNTIME = r"aclrt(?!Binary|GetFunction)[A-Z]\w*|aclmdlRI[A-Z]\w*|acl(?:Init|Finalize|GetRecentErrMsg)"

_HEAD = """\
/* Generated from the symbol tables of wheels: functions that count their calls and do nothing else. */
#include <stddef.h>
#include <stdio.h>
static unsigned calls[{length}];
#define NOOP(index, name, answer) \\
    long name(void) {{ __atomic_fetch_add(&calls[index], 1, __ATOMIC_RELAXED); return answer; }}
"""

_REPORT = """\
static const char *const names[] = {{{names}}};
/* Writes a line "name count" for each function that was called; returns the length without the end. */
size_t interop_noop_calls(char *out, size_t size) {{
    size_t used = 0;
    for (size_t index = 0; index < sizeof names / sizeof *names; index++) {{
        unsigned count = __atomic_load_n(&calls[index], __ATOMIC_RELAXED);
        if (count == 0) continue;
        int room = used < size;
        used += (size_t)snprintf(room ? out + used : NULL, room ? size - used : 0, "%s %u\\n", names[index], count);
    }}
    return used;
}}
"""


@dataclass
class Plan:
    """What a framework needs beside its wheel."""

    #: The libraries to start at, as patterns below the folder with the installed packages.
    roots: list[str]
    #: Names of libraries that are opened at run time, so that no library asks for them.
    opened: list[str] = field(default_factory=list)
    #: Names found as strings in libraries of the wheel: (pattern of files, expression, what to define).
    lookups: list[tuple[str, bytes, list[str]]] = field(default_factory=list)
    #: Functions that are looked up and are not found by the above.
    functions: list[str] = field(default_factory=list)
    #: The libraries whose strings name the runtime calls that they look up.
    runtime: list[str] = field(default_factory=list)
    #: C files with functions that must answer something.
    answers: list[Path] = field(default_factory=list)
    #: What a no-op returns where 0 will not do.
    returns: dict[str, int] = field(default_factory=dict)


@dataclass
class Wanted:
    """What the walk through a wheel's libraries found missing."""

    machine: str
    libraries: set[str]
    plain: set[str]
    #: Symbols by library and version.
    versioned: dict[str, dict[str, set[str]]]


def generate(plan: Plan, packages: Path, provided: list[Path], python: list[Path], out: Path) -> list[str]:
    """Makes the companions in `out` and says in some lines what they are.

    `provided` are libraries that lie in `out`, `python` those that hold the interpreter: what
    these define is not defined again.
    """
    wanted = _walk(plan, packages, provided, python)
    taken = set().union(*(elf.read(path).defined for path in provided))
    linked = sorted(name for name in wanted.plain - taken if re.fullmatch(RUNTIME, name))
    if linked:
        raise RuntimeError(f"the simulator lacks what the wheel is linked against: {', '.join(linked)}")
    wanted.plain.update(plan.functions)
    for pattern, expression, shapes in plan.lookups:
        for path in _files(packages, pattern):
            for name in elf.strings(path, expression):
                wanted.plain.update(shape.format(name) for shape in shapes)
    out.mkdir(parents=True, exist_ok=True)
    objects = [_object(out, path) for path in plan.answers]
    answered = {name for path in objects for name in elf.tool("nm", "-gj", "--defined-only", path).split()}
    names = sorted(wanted.plain - taken - answered)
    # A search that starts at a companion comes to the runtime too, as with the vendor's libraries.
    runtime = [f"-L{out}", "-Wl,--no-as-needed", *(f"-l:{path.name}" for path in provided)]
    _link(out, NOOP, _source(names, plan.returns, report=True), {}, [*objects, *runtime])
    with_version = 0
    libraries = sorted(wanted.libraries | set(plan.opened))
    for library in libraries:
        versions = wanted.versioned.get(library, {})
        own = sorted(set().union(*versions.values()))
        with_version += len(own)
        _link(out, library, _source(own, plan.returns), versions, [f"-L{out}", "-Wl,--no-as-needed", f"-l:{NOOP}"])
    looked_up = {
        name
        for pattern in plan.runtime
        for path in _files(packages, pattern)
        for name in elf.strings(path, RUNTIME.encode())
    }
    absent = sorted(looked_up - taken)
    return [
        f"{len(libraries)} companions: {', '.join(libraries)}",
        f"{len(names)} no-ops without a version, {with_version} with one, {len(answered)} functions that answer",
        f"{len(looked_up)} runtime calls are looked up by name, the simulator lacks {len(absent)}: {', '.join(absent)}",
    ]


def _files(packages: Path, pattern: str) -> list[Path]:
    found = sorted(packages.glob(pattern))
    if not found:
        raise RuntimeError(f"the wheel has no {pattern}: another version wants another plan")
    return found


def _walk(plan: Plan, packages: Path, provided: list[Path], python: list[Path]) -> Wanted:
    """Reads the roots and all they need, as far as it is in the wheels, and what is defined by none."""
    beside = {path.name: path for path in packages.rglob("*.so*") if path.is_file()}
    beside |= {path.name: path for path in provided}
    todo = [path for pattern in plan.roots for path in _files(packages, pattern)]
    seen, missing, defined = {}, set(), set()
    for path in python:
        defined |= elf.read(path).defined
    while todo:
        path = todo.pop()
        if path in seen:
            continue
        library = seen[path] = elf.read(path)
        defined |= library.defined
        for name in library.needed:
            where = beside.get(name)
            if where is not None:
                todo.append(where)
            elif (system := elf.on_system(name)) is not None:
                defined |= elf.read(system.resolve()).defined
            else:
                missing.add(name)
    wanted = Wanted(next(iter(seen.values())).machine, missing, set(), {})
    for library in seen.values():
        for name, version in library.undefined.items():
            if name in defined:
                continue
            file = library.version_files.get(version, "") if version else ""
            if not version:
                wanted.plain.add(name)
            elif file in missing:
                wanted.versioned.setdefault(file, {}).setdefault(version, set()).add(name)
    return wanted


def _object(out: Path, source: Path) -> str:
    made = _folder(out) / f"{source.stem}.o"
    elf.tool("gcc", "-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-fPIC", "-c", "-o", made, source)
    return str(made)


def _source(names: list[str], returns: dict[str, int], report: bool = False) -> str:
    # A table of virtual functions and a type's description are data.
    tables = [name for name in names if re.match(r"_ZT[VISN]", name)]
    functions = sorted(set(names) - set(tables))
    lines = [_HEAD.format(length=max(1, len(functions)))]
    lines += [f"void *{name}[64];" for name in tables]
    lines += [f"NOOP({index}, {name}, {returns.get(name, 0)})" for index, name in enumerate(functions)]
    if report:
        lines.append(_REPORT.format(names=", ".join(f'"{name}"' for name in functions)))
    return "\n".join(lines)


def _link(out: Path, library: str, source: str, versions: dict[str, set[str]], more: list[str]) -> None:
    file = _folder(out) / f"{library}.c"
    file.write_text(source)
    command = ["gcc", "-std=gnu11", "-O1", "-w", "-shared", "-fPIC", "-fno-builtin", f"-Wl,-soname,{library}"]
    if versions:
        script = file.with_suffix(".map")
        script.write_text(
            "".join(
                f"{version} {{ global: {' '.join(f'{name};' for name in sorted(names))} }};\n"
                for version, names in sorted(versions.items())
            )
        )
        command.append(f"-Wl,--version-script={script}")
    elf.tool(*command, "-o", out / library, file, *more)


def _folder(out: Path) -> Path:
    folder = out / "source"
    folder.mkdir(exist_ok=True)
    return folder
