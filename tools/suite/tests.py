"""Runs the tests and adds up the reports of their runners."""

from __future__ import annotations

import filecmp
import os
import shutil
import subprocess
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tools import paths, progress
from tools.cluster import Cluster
from tools.services.postgres import Postgres
from tools.setup import debian, venv
from tools.suite import fuzz, queries

__all__ = ["Counts", "run", "run_unit"]

# Unit tests, the repository's rules, and the golden files of wire formats and custom resources.
_RUST_UNIT = ("--lib", "--test=checkout", "--test=golden", "--test=definition")
# Folders of Python tests that involve no other process.
_PYTHON_UNIT = ("tools/tests", "e2e/bench/tests", "e2e/services/tests")


@dataclass
class Counts:
    """Numbers of passed, failed and skipped tests, over all runners."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0

    def add(self, report: Path) -> None:
        """Adds a JUnit report. Raises StepFailed if there is none: a runner without a report has failed."""
        try:
            suites = list(ElementTree.parse(report).getroot().iter("testsuite"))
        except (OSError, ElementTree.ParseError) as error:
            raise progress.StepFailed(f"no test report: {error}") from error
        for suite in suites:
            total, failed, skipped = (int(suite.get(name) or 0) for name in ("tests", "failures", "skipped"))
            failed += int(suite.get("errors") or 0)
            self.passed += total - failed - skipped
            self.failed += failed
            self.skipped += skipped

    def line(self) -> str:
        """The closing line."""
        return f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped"

    def good(self) -> bool:
        """Whether at least one test ran and none failed."""
        return self.passed > 0 and self.failed == 0


def run() -> Counts:
    """Runs all tests, also after failures, and returns the counts."""
    counts = Counts()
    debian.install_missing({"pooler"})
    with Postgres("test", "127.0.0.1:0") as postgres, Cluster("test-api", profile="api") as api:
        environment = {
            "DATABASE_URL": postgres.url,
            "SQLX_OFFLINE": "true",
            "FASTLLM_TEST_KUBECONFIG": str(api.kubeconfig),
            "FASTLLM_TEST_AUDIT_LOG": str(api.audit_log),
        }
        with progress.step("Rust tests", heartbeat=False):
            counts.add(_nextest([], environment))
        with progress.step("prepared queries match the code"):
            counts.failed += not _prepared_queries_match(postgres.url)
    for result in fuzz.repeat(fuzz.targets().values()):
        counts.passed += result.failure is None
        counts.failed += result.failure is not None
    with progress.step("Python tests", heartbeat=False):
        counts.add(_pytest(["-m", "", "e2e", "tools"]))
    return counts


def run_unit() -> Counts:
    """Runs the tests that need neither a cluster nor a database, and returns the counts."""
    counts = Counts()
    with progress.step("Rust unit tests", heartbeat=False):
        counts.add(_nextest(_RUST_UNIT, {"SQLX_OFFLINE": "true"}))
    with progress.step("Python unit tests", heartbeat=False):
        counts.add(_pytest(_PYTHON_UNIT))
    return counts


def _nextest(selection: Sequence[str], environment: Mapping[str, str]) -> Path:
    report = paths.CHECKOUT / "target" / "nextest" / "ci" / "junit.xml"
    nextest = venv.tools_venv() / "bin" / "cargo-nextest"
    command = [nextest, "nextest", "run", "--release", "--locked", "--workspace", "--profile", "ci", *selection]
    return _run(command, environment, report)


def _pytest(arguments: Sequence[str]) -> Path:
    report = paths.CHECKOUT / "target" / "pytest.xml"
    python = venv.tests_venv() / "bin" / "python"
    return _run([python, "-m", "pytest", "-q", f"--junit-xml={report}", *arguments], {}, report)


def _run(command: Sequence[str | Path], environment: Mapping[str, str], report: Path) -> Path:
    """Runs a test runner with its own output and returns its report, which contains the failures."""
    report.unlink(missing_ok=True)
    subprocess.run([str(word) for word in command], cwd=paths.CHECKOUT, check=False, env={**os.environ, **environment})
    return report


def _prepared_queries_match(database: str) -> bool:
    """Whether ``.sqlx`` equals the output of sqlx's macros for a migrated database."""
    fresh = queries.prepare(database)
    checked_in = paths.CHECKOUT / ".sqlx"
    difference = filecmp.dircmp(checked_in, fresh)
    _, wrong, errors = filecmp.cmpfiles(checked_in, fresh, difference.common_files, shallow=False)
    stale = [*difference.left_only, *difference.right_only, *wrong, *errors]
    if stale:
        progress.say(f".sqlx is stale ({len(stale)} files); `make sqlx-prepare` regenerates it")
    shutil.rmtree(fresh)
    return not stale
