"""Coverage-guided fuzzing of every parser of outside bytes, on the compiler that builds the product.

``python3 -m e2e.suite.fuzz [target …]`` runs the targets of ``gateway/wire/fuzz`` and ``gateway/fuzz``, all when
none is named, as many at once as there are cores, each for ``FUZZ_SECONDS`` (60). What an earlier run found worth
keeping, and what broke a target, lies in ``target/fuzz``; the seeds in the ``corpus`` beside a target stay as they
are.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tomllib
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from e2e import paths, progress, setup

__all__ = ["Ran", "run", "targets"]

FOLDERS = (paths.CHECKOUT / "gateway" / "wire" / "fuzz", paths.CHECKOUT / "gateway" / "fuzz")
# Away from the product's own builds, which have other flags.
BUILT = paths.CHECKOUT / "target" / "fuzz"
SECONDS = 60

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


def targets() -> dict[str, Path]:
    """The names of all targets, each with the folder of its crate."""
    return {
        binary["name"]: folder
        for folder in FOLDERS
        for binary in tomllib.loads((folder / "Cargo.toml").read_text())["bin"]
    }


def seconds() -> int:
    """How long each target runs. Raises StepFailed where ``FUZZ_SECONDS`` is no number above zero."""
    given = os.environ.get("FUZZ_SECONDS", str(SECONDS))
    if not re.fullmatch(r"[1-9][0-9]{0,5}", given):
        raise progress.StepFailed(f"FUZZ_SECONDS must be a number of seconds, not {given!r}")
    return int(given)


def run(wanted: Mapping[str, Path]) -> list[Ran]:
    """Builds and runs the targets, given as by ``targets``. Raises StepFailed where they cannot be built."""
    duration = seconds()
    binaries = _build(sorted(set(wanted.values())))
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        ran = []
        for result in pool.map(lambda name: _fuzz(binaries / name, wanted[name], duration), wanted):
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


def _fuzz(binary: Path, folder: Path, duration: int) -> Ran:
    name = binary.name
    found = BUILT / "corpus" / name
    broken = BUILT / "artifacts" / name
    for kept in (found, broken):
        kept.mkdir(parents=True, exist_ok=True)
    command = [
        binary,
        f"-max_total_time={duration}",
        "-timeout=10",
        "-rss_limit_mb=2048",
        f"-artifact_prefix={broken}/",
        # What is new goes to the first folder.
        found,
        folder / "corpus" / name,
    ]
    log = BUILT / f"{name}.log"
    log.unlink(missing_ok=True)
    try:
        said = progress.run(command, cwd=folder, log=log)
    except progress.StepFailed as error:
        return Ran(name, 0, duration, broken=str(error))
    done = re.search(r"^Done (\d+) runs in (\d+) second", said, re.MULTILINE)
    if not done:
        return Ran(name, 0, duration, broken=f"{name} did not say that it ran")
    return Ran(name, int(done[1]), int(done[2]))


def main() -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python3 -m e2e.suite.fuzz", description=__doc__)
    parser.add_argument("targets", nargs="*", metavar="target", help="all when none is named")
    asked = parser.parse_args().targets
    known = targets()
    if unknown := set(asked) - set(known):
        parser.error(f"no such target: {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    try:
        setup.ensure("rust", "fuzz")
        ran = run({name: known[name] for name in asked or known})
    except progress.StepFailed as error:
        print(f"\n{error}", file=sys.stderr)
        return 1
    return 1 if any(result.broken for result in ran) else 0


if __name__ == "__main__":
    sys.exit(main())
