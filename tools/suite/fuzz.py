"""Coverage-guided fuzzing of every parser of outside bytes, on the compiler that builds the product.

``python3 -m tools.suite.fuzz [target …]`` explores: it runs the targets of ``gateway/wire/fuzz`` and ``gateway/fuzz``,
all when none is named, as many at once as there are cores, each for ``FUZZ_SECONDS`` (60) with inputs that nobody has
tried. What an earlier run found worth keeping, and what broke a target, lies in ``target/fuzz``; the seeds in the
``corpus`` beside a target stay as they are.

With ``--repeatable``, as the tests do it, every target makes the runs of its ``package.metadata.minute`` from a fixed
seed and the checked-in corpus alone: the same inputs whenever the same code is built at the same place, so that a
change answers for what it breaks and not for luck. Addresses, environment and hash seeds are pinned for that. Cargo
names symbols by where a crate lies, so that a checkout elsewhere is searched in another order.
"""

from __future__ import annotations

import argparse
import os
import re
import secrets
import sys
import time
import tomllib
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tools import paths, progress, setup

__all__ = ["Ran", "Target", "explore", "repeat", "targets"]

FOLDERS = (paths.CHECKOUT / "gateway" / "wire" / "fuzz", paths.CHECKOUT / "gateway" / "fuzz")
# Away from the product's own builds, which have other flags.
BUILT = paths.CHECKOUT / "target" / "fuzz"
SECONDS = 60
SEED = 1

# What cargo-fuzz sets, without the sanitizers: those need a nightly compiler, and find what unsafe code does.
_COVERAGE = (
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
    "--cfg=fuzzing",
)


@dataclass(frozen=True)
class Ran:
    """How one target went; ``broken`` is what it said where it failed."""

    target: str
    runs: int
    seconds: int
    broken: str | None = None

    def line(self) -> str:
        """One line for the user."""
        if self.broken:
            return f"fuzz {self.target}: FAILED"
        return f"fuzz {self.target}: {self.runs} runs, {self.runs // max(1, self.seconds)} a second"


@dataclass(frozen=True)
class Target:
    """One target: its name, the folder of its crate, and how many runs it makes in about a minute."""

    name: str
    folder: Path
    minute: int

    def seeds(self) -> Path:
        """Where its checked-in corpus lies."""
        return self.folder / "corpus" / self.name


def targets() -> dict[str, Target]:
    """All targets by name."""
    found = {}
    for folder in FOLDERS:
        manifest = tomllib.loads((folder / "Cargo.toml").read_text())
        for name in (binary["name"] for binary in manifest["bin"]):
            found[name] = Target(name, folder, manifest["package"]["metadata"]["minute"][name])
    return found


def seconds() -> int:
    """How long a target explores. Raises StepFailed where ``FUZZ_SECONDS`` is no number above zero."""
    given = os.environ.get("FUZZ_SECONDS", str(SECONDS))
    if not re.fullmatch(r"[1-9][0-9]{0,5}", given):
        raise progress.StepFailed(f"FUZZ_SECONDS must be a number of seconds, not {given!r}")
    return int(given)


def repeat(wanted: Iterable[Target]) -> list[Ran]:
    """Builds the targets and runs each from the fixed seed. Raises StepFailed where they cannot be built."""
    return _run(wanted, _repeat)


def explore(wanted: Iterable[Target]) -> list[Ran]:
    """Builds the targets and runs each for ``seconds()``. Raises StepFailed where they cannot be built."""
    duration = seconds()
    return _run(wanted, lambda binary, target: _explore(binary, target, duration))


def _run(wanted: Iterable[Target], one: Callable[[Path, Target], Ran]) -> list[Ran]:
    wanted = list(wanted)
    binaries = _build(sorted({target.folder for target in wanted}))
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        ran = []
        for result in pool.map(lambda target: one(binaries / target.name, target), wanted):
            progress.say(result.line())
            if result.broken:
                print(result.broken, file=sys.stderr)
            ran.append(result)
    return ran


def _build(folders: Iterable[Path]) -> Path:
    """Builds the targets of these crates with counters for their branches; the folder of the programs."""
    host = re.search(r"^host: (\S+)$", progress.run(["rustc", "-vV"]), re.MULTILINE)
    if not host:
        raise progress.StepFailed("rustc does not say what it compiles for")
    for folder in folders:
        with progress.step(f"fuzz targets of {folder.relative_to(paths.CHECKOUT)} built"):
            # With a target named, the flags are not for build scripts.
            progress.run(
                ["cargo", "build", "--release", "--locked", "--bins", "--target", host[1]],
                cwd=folder,
                env={"RUSTFLAGS": " ".join(_COVERAGE), "CARGO_TARGET_DIR": str(BUILT)},
            )
    return BUILT / host[1] / "release"


def _repeat(binary: Path, target: Target) -> Ran:
    listed = BUILT / f"{target.name}.seeds"
    listed.parent.mkdir(parents=True, exist_ok=True)
    seeds = sorted(target.seeds().iterdir())
    listed.write_text(",".join(str(seed.relative_to(target.folder)) for seed in seeds))
    return _fuzz(binary, target, SEED, target.minute, [f"-seed_inputs=@{_from(target.folder, listed)}"])


def _explore(binary: Path, target: Target, duration: int) -> Ran:
    # What is new goes to the first folder.
    found = BUILT / "corpus" / target.name
    found.mkdir(parents=True, exist_ok=True)
    total = Ran(target.name, 0, 0)
    # In rounds, since a target may have no clock of its own (see ``seeded.rs``).
    while total.seconds < duration and not total.broken:
        ran = _fuzz(binary, target, 1 + secrets.randbelow(2**31), max(1, target.minute // 6), [found, target.seeds()])
        total = Ran(target.name, total.runs + ran.runs, total.seconds + max(1, ran.seconds), ran.broken)
    return total


def _from(folder: Path, path: Path) -> Path:
    """A path as it is named in a folder: one that names the checkout would move the stack."""
    return Path(os.path.relpath(path, folder))


def _fuzz(binary: Path, target: Target, seed: int, runs: int, corpus: Sequence[str | Path]) -> Ran:
    broken = BUILT / "artifacts" / target.name
    broken.mkdir(parents=True, exist_ok=True)
    log = BUILT / f"{target.name}.log"
    log.unlink(missing_ok=True)
    # Without randomness in addresses: the fuzzer remembers branches and comparisons by theirs.
    command = ["setarch", "-R", "env", "-i", _from(target.folder, binary), f"-seed={seed}", f"-runs={runs}"]
    command += ["-timeout=10", "-rss_limit_mb=2048", f"-artifact_prefix={_from(target.folder, broken)}/", *corpus]
    began = time.monotonic()
    try:
        said = progress.run(command, cwd=target.folder, log=log)
    except progress.StepFailed as error:
        return Ran(target.name, 0, 0, broken=str(error))
    done = re.search(r"^Done (\d+) runs", said, re.MULTILINE)
    if not done:
        return Ran(target.name, 0, 0, broken=f"{target.name} did not say that it ran")
    return Ran(target.name, int(done[1]), round(time.monotonic() - began))


def main() -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python3 -m tools.suite.fuzz", description=__doc__)
    parser.add_argument("targets", nargs="*", metavar="target", help="all when none is named")
    parser.add_argument("--repeatable", action="store_true", help="the same inputs every time, as in the tests")
    options = parser.parse_args()
    asked, known = options.targets, targets()
    if unknown := set(asked) - set(known):
        parser.error(f"no such target: {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    try:
        setup.ensure("rust", "fuzz")
        ran = (repeat if options.repeatable else explore)(known[name] for name in asked or known)
    except progress.StepFailed as error:
        print(f"\n{error}", file=sys.stderr)
        return 1
    return 1 if any(result.broken for result in ran) else 0


if __name__ == "__main__":
    sys.exit(main())
