"""The package as a user gets it: built, held against the sources, installed where nothing else is, and tried by what is told.

    python tests/package/check.py OUT python3.11 python3.13     # which needs nothing but these; `make package` calls it

The wheel and the sdist are built into OUT. The wheel holds every file of the sources, and the sdist builds it again byte by
byte. Each Python gets an empty environment with the wheel, where the commands and the blocks of the README and of the cheat
sheet that need no extra run. In the last one's the extras are installed after that, and all others run; and pyright reads
`typed.py` against it in its strict mode. What goes to stderr is Shardwise's own, or a failure.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path

from told import ROOT, Told, told

SOURCES = ROOT / "src"
TYPED = Path(__file__).with_name("typed.py")
# `calibrate` says so, rather than keep figures that are none, where something else runs beside it.
BUSY = re.compile(r"shardwise: this machine is too busy to be measured: .*")
PROGRESS = re.compile(r".+ \.\.\.|.+: \d+\.\d s")  # of a long step, on stderr
SLOW_SECONDS = 10  # from which on a command is named with its time
NEVER_SHIPPED = ("__pycache__",)
BUILDERS = ("build", "hatchling>=1.27", "basedpyright")
WITH_EXTRAS = ("files", "show", "shell", "zarr", *(("tpu",) if sys.platform == "linux" else ()))
# What a user's shell has: nothing of the tests' own settings.
SETTINGS = ("JAX_", "XLA_", "TF_CPP", "TPU_", "SHARDWISE_", "PYTHON", "VIRTUAL_ENV", "NO_COLOR", "HYPOTHESIS")
TRAIN = """\
import sys

import jax
import jax.numpy as jnp


def step(a, b):
    return jax.sharding.reshard(a @ b, jax.P())


def inputs(mesh):
    return (
        jax.ShapeDtypeStruct((64, 32), jnp.bfloat16, sharding=jax.NamedSharding(mesh, jax.P("x"))),
        jax.ShapeDtypeStruct((32, 16), jnp.bfloat16, sharding=jax.NamedSharding(mesh, jax.P())),
    )


if __name__ == "__main__":
    print("trained in", jax.process_count(), "processes")
"""
INPUTS = """\
import importlib.util
import numpy as np
np.save("a.npy", np.ones((256, 128), np.float32))
if importlib.util.find_spec("safetensors"):
    from safetensors.numpy import save_file
    save_file({"weights": np.ones((128, 64), np.float32)}, "b.safetensors")
"""


class Failed(Exception):
    """The package is not as it should be."""


def output(*arguments: str | Path, cwd: Path | None = None, env: dict[str, str] | None = None) -> str:
    """What a process prints; one that fails, with its last lines."""
    done = subprocess.run(list(map(str, arguments)), cwd=cwd, env=env, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode:
        last = "\n".join((done.stdout + done.stderr).splitlines()[-20:])
        raise Failed(f"{' '.join(map(str, arguments))}: exit status {done.returncode}\n{last}")
    return done.stdout


def environment(python: str | Path, folder: Path, *packages: str) -> Path:
    """A new environment; its interpreter."""
    output(python, "-m", "venv", folder)
    installed = folder / ("Scripts" if os.name == "nt" else "bin") / "python"
    output(installed, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages)
    return installed


# Built.


def build(builder: Path, out: Path, scratch: Path) -> Path:
    """The wheel, which the sdist builds byte by byte the same; both lie in `out`."""
    output(builder, "-m", "build", "--no-isolation", "--sdist", "--wheel", "--outdir", out, ROOT)
    (sdist,), (wheel,) = out.glob("*.tar.gz"), out.glob("*.whl")
    output(sys.executable, "-m", "tarfile", "-e", sdist, scratch / "unpacked")
    (tree,) = (scratch / "unpacked").iterdir()
    output(builder, "-m", "build", "--no-isolation", "--wheel", "--outdir", scratch / "again", tree)
    (again,) = (scratch / "again").glob("*.whl")
    if (again.name, again.read_bytes()) != (wheel.name, wheel.read_bytes()):
        raise Failed(f"{sdist.name} builds another wheel than the sources: {sorted(differing(wheel, again))}")
    return wheel


def differing(one: Path, other: Path) -> set[str]:
    held = [{(each.filename, each.CRC) for each in zipfile.ZipFile(path).infolist()} for path in (one, other)]
    return {name for name, _ in held[0] ^ held[1]}


def check_contents(wheel: Path) -> str:
    """Hold the wheel against the sources: every file of the package, and nothing besides."""
    held = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    sources = {path.relative_to(SOURCES).as_posix() for path in SOURCES.rglob("*") if path.is_file()}
    sources = {name for name in sources if not any(part in name for part in NEVER_SHIPPED)}
    if held != sources:
        raise Failed(f"{wheel.name} lacks {sorted(sources - held)}, and holds {sorted(held - sources)} beside the sources")
    data = sorted({Path(name).suffix or name for name in held} - {".py"})
    return f"{wheel.name}: {len(held)} files, with {', '.join(data)}; the sdist builds the same"


# Tried.


def users(home: Path) -> dict[str, str]:
    """The environment variables of a user who has set nothing, and kept nothing here before."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(SETTINGS)}
    return kept | {"HOME": str(home), "XDG_CACHE_HOME": str(home / ".cache")}


def run(python: Path, folder: Path, arguments: Sequence[str]) -> str:
    """What is printed by a run that ends well, and says nothing on stderr but how far it is."""
    done = subprocess.run(
        [str(python), *arguments], cwd=folder, env=users(folder), capture_output=True, text=True, encoding="utf-8",
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    foreign = [line for line in done.stderr.splitlines() if not PROGRESS.fullmatch(line)]
    if foreign and all(map(BUSY.fullmatch, foreign)):
        return done.stdout
    if done.returncode or foreign:
        said = "\n".join(foreign[-20:])
        raise Failed(f"{' '.join(arguments)}: exit status {done.returncode}, and on stderr {len(foreign)} lines:\n{said}")
    return done.stdout


def prepare(python: Path, folder: Path) -> None:
    """The files that the pages speak of."""
    folder.mkdir(exist_ok=True)
    (folder / "train.py").write_text(TRAIN, encoding="utf-8")
    (folder / "old.lock").write_text("version = 1\n", encoding="utf-8")
    run(python, folder, ["-c", INPUTS])
    plan = run(python, folder, ["-m", "shardwise", "plan", "A[I_x] -> A[I]", "--sizes", "I=64", "--mesh", "x=4", "--json"])
    for name in ("old.json", "new.json"):
        (folder / name).write_text(plan, encoding="utf-8")


def check_first_steps(python: Path, folder: Path, wheel: Path) -> None:
    """An import and the version, in silence."""
    version = wheel.name.split("-")[1]
    if printed := run(python, folder, ["-c", "import shardwise"]):
        raise Failed(f"import shardwise prints {printed!r}")
    for arguments in (["-m", "shardwise", "--version"], ["-c", "import shardwise; print('shardwise', shardwise.__version__)"]):
        if (printed := run(python, folder, arguments).strip()) != f"shardwise {version}":
            raise Failed(f"{' '.join(arguments)} prints {printed!r}, and the wheel is {version}")
    script = python.with_name("shardwise.exe" if os.name == "nt" else "shardwise")
    if output(script, "--version", cwd=folder, env=users(folder)).strip() != f"shardwise {version}":
        raise Failed(f"{script} is of another version")


def check_told(python: Path, folder: Path, chosen: Sequence[Told]) -> list[str]:
    """Run what the pages tell; says what took long.

    Raises:
        Failed: with all that failed, not the first alone.
    """
    slow, failed = [], []
    for each in chosen:
        started = time.perf_counter()
        try:
            run(python, folder, each.arguments)
        except Failed as failure:
            failed.append(f"{each.page}: {failure}")
        if (seconds := time.perf_counter() - started) > SLOW_SECONDS:
            slow.append(f"  {seconds:.0f} s for {each.text.splitlines()[0]}")
    if failed:
        raise Failed("\n".join([f"with {python} this fails, of what the pages tell to run", *failed]))
    return slow


def try_bare(number: int, python: str, wheel: Path, scratch: Path) -> tuple[Path, Path, list[str]]:
    """An empty environment with the wheel alone: its interpreter, a folder with files, and what was seen."""
    started = time.perf_counter()
    installed = environment(python, scratch / f"venv-{number}", str(wheel))
    folder = scratch / f"folder-{number}"
    prepare(installed, folder)
    check_first_steps(installed, folder, wheel)
    chosen = [each for each in told() if not each.extras and not each.measures]
    run(installed, folder, ["-m", "doctest", str(ROOT / "README.md")])
    slow = check_told(installed, folder, chosen)
    said = f"{versions(installed)}, no extras: {len(chosen)} commands and blocks ran"
    return installed, folder, [f"{said}, {time.perf_counter() - started:.0f} s", *slow]


def versions(python: Path) -> str:
    ask = "import platform; from importlib.metadata import version; print(platform.python_version(), version('jax'))"
    return "Python {}, JAX {}".format(*output(python, "-c", ask).split())


def try_extras(python: Path, folder: Path, wheel: Path) -> list[str]:
    """The same environment with the extras: what needs them runs."""
    started = time.perf_counter()
    output(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", f"{wheel}[{','.join(WITH_EXTRAS)}]")
    prepare(python, folder)
    chosen = [each for each in told() if each.extras and each.extras <= set(WITH_EXTRAS)]
    slow = check_told(python, folder, chosen)
    said = f"{versions(python)}, with {', '.join(WITH_EXTRAS)}: {len(chosen)} more ran"
    return [f"{said}, {time.perf_counter() - started:.0f} s", *slow]


def try_measuring(python: Path, folder: Path) -> list[str]:
    """What measures this machine, while nothing else of this check runs."""
    started = time.perf_counter()
    chosen = [each for each in told() if each.measures]
    slow = check_told(python, folder, chosen)
    return [f"{len(chosen)} that measure ran, {time.perf_counter() - started:.0f} s", *slow]


def check_types(builder: Path, python: Path, scratch: Path) -> str:
    """Have pyright read a user's file, in its strict mode, against the installed wheel."""
    project = scratch / "typed"
    project.mkdir()
    (project / TYPED.name).write_bytes(TYPED.read_bytes())
    (project / "pyrightconfig.json").write_text('{"typeCheckingMode": "strict", "include": ["."]}', encoding="utf-8")
    output(builder, "-m", "basedpyright", "--pythonpath", python, "--warnings", "--project", project)
    return "pyright, strict: a user's file has no error"


def main(arguments: Sequence[str]) -> int:
    out, *pythons = arguments
    target = Path(out).resolve()
    target.mkdir(parents=True, exist_ok=True)
    for old in (*target.glob("shardwise-*.whl"), *target.glob("shardwise-*.tar.gz")):
        old.unlink()
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(1) as beside:
        try:
            for line in checked(target, pythons, Path(folder), beside):
                print(line, flush=True)
        except Failed as failure:
            print(f"the package FAILED: {failure}", file=sys.stderr)
            return 1
    return 0


def checked(target: Path, pythons: Sequence[str], scratch: Path, beside: Executor) -> Iterator[str]:
    """Build and try everything: the last Python with the extras too, the others beside it."""
    builder = environment(sys.executable, scratch / "builder", *BUILDERS)
    wheel = build(builder, target, scratch)
    yield check_contents(wheel)
    *others, last = enumerate(pythons)
    tried = [beside.submit(try_bare, *each, wheel, scratch) for each in others]
    installed, files, lines = try_bare(*last, wheel, scratch)
    yield from lines
    yield check_types(builder, installed, scratch)
    yield from try_extras(installed, files, wheel)
    for each in tried:
        yield from each.result()[-1]
    yield from try_measuring(installed, files)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
