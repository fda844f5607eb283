"""Coverage-guided fuzzing of every parser of untrusted input, with the compiler that builds the product.

``python3 -m tools.suite.fuzz [target …]`` explores: it runs the given targets of ``gateway/wire/fuzz`` and
``gateway/fuzz``, or all of them, in parallel on all cores, each for ``FUZZ_SECONDS`` (60) with new random inputs.
Interesting inputs of earlier runs and inputs that broke a target are kept in ``target/fuzz``; the checked-in seeds in
the ``corpus`` folders do not change.

With ``--repeatable``, as in ``make test``, every target makes the number of runs in its ``package.metadata.minute``
from a fixed seed and the checked-in corpus only. The same code built in the same place gets the same inputs, so that a
failure is caused by the change and not by chance. Addresses, environment and hash seeds are fixed for that. Cargo
derives symbol names from the path of a crate, so that a checkout in another place gets other inputs.
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

__all__ = ["Result", "Target", "explore", "repeat", "targets"]

FOLDERS = (paths.CHECKOUT / "gateway" / "wire" / "fuzz", paths.CHECKOUT / "gateway" / "fuzz")
# Separate from the product's builds, which have other flags.
BUILT = paths.CHECKOUT / "target" / "fuzz"
SECONDS = 60
SEED = 1

# The flags of cargo-fuzz without the sanitizers, which need a nightly compiler and find errors of unsafe code only.
_COVERAGE = (
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
    "--cfg=fuzzing",
)


@dataclass(frozen=True)
class Result:
    """The result of one target; ``failure`` is its output if it failed."""

    target: str
    runs: int
    seconds: int
    failure: str | None = None

    def line(self) -> str:
        """One line for the user."""
        if self.failure:
            return f"fuzz {self.target}: FAILED"
        return f"fuzz {self.target}: {self.runs} runs, {self.runs // max(1, self.seconds)} per second"


@dataclass(frozen=True)
class Target:
    """A fuzz target: its name, the folder of its crate, and the number of runs that take about a minute."""

    name: str
    folder: Path
    runs_per_minute: int

    def seeds(self) -> Path:
        """The folder of its checked-in corpus."""
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
    """The duration of exploring one target. Raises StepFailed if ``FUZZ_SECONDS`` is not a positive number."""
    given = os.environ.get("FUZZ_SECONDS", str(SECONDS))
    if not re.fullmatch(r"[1-9][0-9]{0,5}", given):
        raise progress.StepFailed(f"FUZZ_SECONDS must be a number of seconds, not {given!r}")
    return int(given)


def repeat(wanted: Iterable[Target]) -> list[Result]:
    """Builds the targets and runs each from the fixed seed. Raises StepFailed if they cannot be built."""
    return _run(wanted, _repeat)


def explore(wanted: Iterable[Target]) -> list[Result]:
    """Builds the targets and runs each for ``seconds()``. Raises StepFailed if they cannot be built."""
    duration = seconds()
    return _run(wanted, lambda binary, target: _explore(binary, target, duration))


def _run(wanted: Iterable[Target], one: Callable[[Path, Target], Result]) -> list[Result]:
    wanted = list(wanted)
    binaries = _build(sorted({target.folder for target in wanted}))
    with progress.step("fuzzing"), ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        results = []
        for result in pool.map(lambda target: one(binaries / target.name, target), wanted):
            progress.say(result.line())
            if result.failure:
                print(result.failure, file=sys.stderr)
            results.append(result)
    return results


def _build(folders: Iterable[Path]) -> Path:
    """Builds the targets of these crates with coverage counters and returns the folder of the programs."""
    host = re.search(r"^host: (\S+)$", progress.run(["rustc", "-vV"]), re.MULTILINE)
    if not host:
        raise progress.StepFailed("rustc -vV prints no host")
    for folder in folders:
        with progress.step(f"build the fuzz targets of {folder.relative_to(paths.CHECKOUT)}"):
            # With --target, RUSTFLAGS do not apply to build scripts.
            progress.run(
                ["cargo", "build", "--release", "--locked", "--bins", "--target", host[1]],
                cwd=folder,
                env={"RUSTFLAGS": " ".join(_COVERAGE), "CARGO_TARGET_DIR": str(BUILT)},
            )
    return BUILT / host[1] / "release"


def _repeat(binary: Path, target: Target) -> Result:
    listed = BUILT / f"{target.name}.seeds"
    listed.parent.mkdir(parents=True, exist_ok=True)
    seeds = sorted(target.seeds().iterdir())
    listed.write_text(",".join(str(seed.relative_to(target.folder)) for seed in seeds))
    return _fuzz(binary, target, SEED, target.runs_per_minute, [f"-seed_inputs=@{_from(target.folder, listed)}"])


def _explore(binary: Path, target: Target, duration: int) -> Result:
    # The fuzzer writes new inputs to the first folder.
    found = BUILT / "corpus" / target.name
    found.mkdir(parents=True, exist_ok=True)
    total = Result(target.name, 0, 0)
    # In rounds, since a target may have no clock of its own (see ``seeded.rs``).
    while total.seconds < duration and not total.failure:
        round_ = _fuzz(
            binary, target, 1 + secrets.randbelow(2**31), max(1, target.runs_per_minute // 6), [found, target.seeds()]
        )
        total = Result(target.name, total.runs + round_.runs, total.seconds + max(1, round_.seconds), round_.failure)
    return total


def _from(folder: Path, path: Path) -> Path:
    """The path relative to a folder. The length of an absolute path would change addresses on the stack."""
    return Path(os.path.relpath(path, folder))


def _fuzz(binary: Path, target: Target, seed: int, runs: int, corpus: Sequence[str | Path]) -> Result:
    artifacts = BUILT / "artifacts" / target.name
    artifacts.mkdir(parents=True, exist_ok=True)
    log = BUILT / f"{target.name}.log"
    log.unlink(missing_ok=True)
    # Without address randomization: the fuzzer identifies branches and comparisons by address.
    command = ["setarch", "-R", "env", "-i", _from(target.folder, binary), f"-seed={seed}", f"-runs={runs}"]
    command += ["-timeout=10", "-rss_limit_mb=2048", f"-artifact_prefix={_from(target.folder, artifacts)}/", *corpus]
    began = time.monotonic()
    try:
        output = progress.run(command, cwd=target.folder, log=log)
    except progress.StepFailed as error:
        return Result(target.name, 0, 0, failure=str(error))
    done = re.search(r"^Done (\d+) runs", output, re.MULTILINE)
    if not done:
        return Result(target.name, 0, 0, failure=f"{target.name} did not report its runs")
    return Result(target.name, int(done[1]), round(time.monotonic() - began))


def main() -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python3 -m tools.suite.fuzz",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("targets", nargs="*", metavar="target", help="default: all")
    parser.add_argument("--repeatable", action="store_true", help="fixed inputs, as in make test")
    options = parser.parse_args()
    wanted, known = options.targets, targets()
    if unknown := set(wanted) - set(known):
        parser.error(f"no such target: {', '.join(sorted(unknown))}; known targets: {', '.join(known)}")
    try:
        setup.ensure("rust", "fuzz")
        results = (repeat if options.repeatable else explore)(known[name] for name in wanted or known)
    except progress.StepFailed as error:
        print(f"\n{error}", file=sys.stderr)
        return 1
    return 1 if any(result.failure for result in results) else 0


if __name__ == "__main__":
    sys.exit(main())
