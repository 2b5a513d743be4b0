"""The environment of a framework: its wheels, the simulator and the companions, in one folder.

    <environment>/venv/           virtual environment with the pinned wheels
    <environment>/cann/lib64/     libascendcl.so (the simulator), libascend_alloc.so and the companions
    <environment>/cann/opp/ ...   empty folders that frameworks look for
    <environment>/package/        a package of ours that is built against the wheels, and tools/ to build it
    <environment>/runs/           logs and scratch folders, one for each run of a check file

`prepare` is all that a runner needs. The wheels are installed once and again when the requirements
change; the simulator, our library and the companions are made anew each time, which takes seconds.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import companions

REPOSITORY = Path(__file__).resolve().parents[2]

#: Where environments are, the interpreter to make them with, and a libascendcl.so to use instead of building one.
ENVIRONMENTS, PYTHON, LIBRARY = "ASCEND_INTEROP_ENV", "ASCEND_INTEROP_PYTHON", "ASCEND_INTEROP_LIBRARY"
#: A libascend_alloc.so to use instead of building one.
ALLOCATOR = "ASCEND_INTEROP_ALLOCATOR"


@dataclass
class Framework:
    """What is particular to a framework."""

    name: str
    #: Its folder here: requirements.txt and checks/.
    folder: Path
    plan: companions.Plan
    #: The Python that its wheels are for.
    python: str = "3.11"
    #: Folders with Python modules of ours that its checks import.
    modules: list[Path] = field(default_factory=list)
    #: A Python package of ours that is built against its wheels and installed in `package/`.
    package: Path | None = None

    def requirements(self, release: str | None) -> Path:
        """The list of wheels, of another release than the usual one where one is named."""
        return self.folder / (f"requirements-{release}.txt" if release else "requirements.txt")

    def releases(self) -> list[str]:
        """The other releases that there are lists for."""
        return sorted(path.stem.removeprefix("requirements-") for path in self.folder.glob("requirements-*.txt"))


@dataclass
class Environment:
    """An environment that is ready."""

    framework: Framework
    folder: Path
    packages: Path

    @property
    def python(self) -> Path:
        """The interpreter of the virtual environment."""
        return self.folder / "venv" / "bin" / "python"

    @property
    def cann(self) -> Path:
        """What the framework takes for the vendor's toolkit."""
        return self.folder / "cann"

    def variables(self, **more: str) -> dict[str, str]:
        """The environment variables to run a program with: those of the caller without what steers a
        framework or the simulator, and `more`."""
        strip = ("ASCEND_", "PYTORCH_", "MS_", "TORCH_", "ACL_", "LD_", "HCCL_", "PYTHON", "GLOG_")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(strip)}
        lib = self.cann / "lib64"
        paths = [Path(__file__).resolve().parent, *self.framework.modules, self.folder / "package"]
        return {
            **kept,
            "LD_LIBRARY_PATH": str(lib),
            "ASCEND_HOME_PATH": str(self.cann),
            "ASCEND_TOOLKIT_HOME": str(self.cann),
            "ASCEND_OPP_PATH": str(self.cann / "opp"),
            "ASCEND_CUSTOM_PATH": str(self.cann),
            "PYTHONPATH": os.pathsep.join(map(str, paths)),
            "PYTHONUNBUFFERED": "1",
            **more,
        }


def prepare(
    framework: Framework, fresh: bool = False, surface: str | None = None, release: str | None = None
) -> Environment:
    """Makes the environment of a framework, or brings it up to date.

    `fresh` throws an old one away; `surface` is the CANN version whose symbols the simulator has; `release` is
    another release of the framework than the usual one.
    """
    parent = Path(os.environ.get(ENVIRONMENTS) or REPOSITORY / "interop" / ".env").resolve()
    folder = parent / (f"{framework.name}-{release}" if release else framework.name)
    if fresh and folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)
    say(f"environment {folder}")
    _install(framework, framework.requirements(release), folder)
    python = folder / "venv" / "bin" / "python"
    packages, *interpreter = _ask(python)
    environment = Environment(framework, folder, Path(packages))
    _lay_out(environment, [Path(path) for path in interpreter], surface)
    if framework.package:
        _build(environment, framework.package)
    return environment


def say(text: str) -> None:
    """A line of progress."""
    print(f"interop: {text}", flush=True)


def _install(framework: Framework, requirements: Path, folder: Path) -> None:
    interpreter = _interpreter(framework)
    state = hashlib.sha256(f"{interpreter} {requirements.read_text()}".encode()).hexdigest()
    stamp = folder / "installed"
    if stamp.exists() and stamp.read_text() == state:
        say(f"wheels of {requirements.name} are installed")
        return
    stamp.unlink(missing_ok=True)
    if (folder / "venv").exists():
        shutil.rmtree(folder / "venv")
    start = time.monotonic()
    say("installing the wheels (a large download)")
    _must([interpreter, "-m", "venv", str(folder / "venv")])
    # The list is complete, so nothing is resolved: a wheel's own wishes would bring CUDA along.
    pip = [str(folder / "venv/bin/python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    _must([*pip, "--no-cache-dir", "--no-deps", "-r", str(requirements)])
    stamp.write_text(state)
    say(f"installed in {time.monotonic() - start:.0f} s")


def _interpreter(framework: Framework) -> str:
    wanted = os.environ.get(PYTHON) or f"python{framework.python}"
    found = shutil.which(wanted)
    if found is None:
        raise SystemExit(f"interop: no {wanted} here; name an interpreter for these wheels in {PYTHON}")
    return found


def _ask(python: Path) -> list[str]:
    """Where packages are, then the files that hold the interpreter."""
    program = (
        "import json, os, sys, sysconfig; v = sysconfig.get_config_var; "
        "print(json.dumps([sysconfig.get_path('purelib'), os.path.realpath(sys.executable), "
        "os.path.join(v('LIBDIR') or '', v('INSTSONAME') or '')]))"
    )
    answer = subprocess.run([str(python), "-c", program], check=True, capture_output=True, text=True)
    packages, executable, library = json.loads(answer.stdout)
    return [packages, executable, *([library] if library.endswith(".so") or ".so." in library else [])]


def _lay_out(environment: Environment, interpreter: list[Path], surface: str | None) -> None:
    if environment.cann.exists():
        shutil.rmtree(environment.cann)
    lib = environment.cann / "lib64"
    for part in ("lib64", "opp", "runtime", "compiler"):
        (environment.cann / part).mkdir(parents=True)
    _simulator(environment.cann, surface)
    _allocator(lib)
    start = time.monotonic()
    plan = environment.framework.plan
    holders = [path for path in interpreter if path.exists()]
    try:
        made = companions.generate(plan, environment.packages, [lib / "libascendcl.so"], holders, lib)
    except RuntimeError as error:
        raise SystemExit(f"interop: {error}") from None
    for line in made:
        say(line)
    say(f"companions made in {time.monotonic() - start:.0f} s")


def _simulator(cann: Path, surface: str | None) -> None:
    given = os.environ.get(LIBRARY)
    if given:
        say(f"simulator {given} (from {LIBRARY})")
        shutil.copy2(given, cann / "lib64" / "libascendcl.so")
        return
    say("building the simulator" + (f" with the symbols of CANN {surface}" if surface else ""))
    _must([str(REPOSITORY / "sim/ascendcl/install"), *(["--surface", surface] if surface else []), str(cann)])


def _allocator(lib: Path) -> None:
    given = os.environ.get(ALLOCATOR)
    if given:
        say(f"allocator {given} (from {ALLOCATOR})")
        shutil.copy2(given, lib / "libascend_alloc.so")
        return
    say("building the allocator")
    cargo = ["cargo", "build", "--quiet", "--release", "--package", "ascend-alloc-ffi"]
    manifest = ["--manifest-path", str(REPOSITORY / "Cargo.toml")]
    _must([*cargo, *manifest])
    question = ["cargo", "metadata", "--no-deps", "--format-version", "1", *manifest]
    told = json.loads(subprocess.run(question, check=True, capture_output=True, text=True).stdout)
    shutil.copy2(Path(told["target_directory"]) / "release" / "libascend_alloc.so", lib)


def _build(environment: Environment, package: Path) -> None:
    tools, start = environment.folder / "tools", time.monotonic()
    pip = [str(environment.python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--upgrade"]
    if not (tools / "wheel").exists():
        _must([*pip, "--target", str(tools), "setuptools<81", "wheel"])
    given = {"PYTHONPATH": str(tools), "ASCEND_ALLOC_LIBRARY": str(environment.cann / "lib64" / "libascend_alloc.so")}
    say(f"building {package.name}'s package")
    options = ["--no-build-isolation", "--no-deps", "--target", str(environment.folder / "package")]
    _must([*pip, *options, str(package)], {**os.environ, **given})
    say(f"built in {time.monotonic() - start:.0f} s")


def _must(command: list[str], variables: dict[str, str] | None = None) -> None:
    done = subprocess.run(command, env=variables)
    if done.returncode != 0:
        print(f"interop: {' '.join(command)} failed", file=sys.stderr)
        raise SystemExit(1)
