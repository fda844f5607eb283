"""Runs the tests and adds up what their runners report."""

from __future__ import annotations

import filecmp
import os
import shutil
import subprocess
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tools import paths, progress
from tools.cluster import Cluster
from tools.services.postgres import Postgres
from tools.setup import venv
from tools.suite import fuzz

__all__ = ["Counts", "run"]


@dataclass
class Counts:
    """How many tests passed, failed and were skipped, over all runners."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0

    def add(self, report: Path) -> None:
        """Adds a JUnit report. Raises StepFailed when there is none: a runner that ran nothing is a failure."""
        try:
            suites = list(ElementTree.parse(report).getroot().iter("testsuite"))
        except (OSError, ElementTree.ParseError) as error:
            raise progress.StepFailed(f"no report of the tests: {error}") from error
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
        """Whether something ran and nothing failed."""
        return self.passed > 0 and self.failed == 0


def run() -> Counts:
    """Runs everything, whatever fails on the way; the counts."""
    counts = Counts()
    with Postgres("test", "127.0.0.1:0") as postgres, Cluster("test-api", profile="api") as api:
        environment = {
            "DATABASE_URL": postgres.url,
            "SQLX_OFFLINE": "true",
            "FASTLLM_TEST_KUBECONFIG": str(api.kubeconfig),
            "FASTLLM_TEST_AUDIT_LOG": str(api.audit_log),
        }
        with progress.step("Rust tests"):
            report = paths.CHECKOUT / "target" / "nextest" / "ci" / "junit.xml"
            report.unlink(missing_ok=True)
            nextest = venv.tools_venv() / "bin" / "cargo-nextest"
            _run([nextest, "nextest", "run", "--release", "--locked", "--workspace", "--profile", "ci"], environment)
            counts.add(report)
        with progress.step("prepared queries are those of the code"):
            counts.failed += not _prepared_queries_match(postgres.url)
    with progress.step("fuzzing"):
        for ran in fuzz.repeat(fuzz.targets().values()):
            counts.passed += ran.broken is None
            counts.failed += ran.broken is not None
    with progress.step("tests across processes"):
        report = paths.CHECKOUT / "target" / "pytest.xml"
        report.unlink(missing_ok=True)
        python = venv.tests_venv() / "bin" / "python"
        _run([python, "-m", "pytest", "-q", "-m", "", f"--junit-xml={report}", "e2e", "tools"], {})
        counts.add(report)
    return counts


def _run(command: Sequence[str | Path], environment: dict[str, str]) -> None:
    """Runs a test runner with its own output; its failures are in its report."""
    subprocess.run([str(word) for word in command], cwd=paths.CHECKOUT, check=False, env={**os.environ, **environment})


def _prepared_queries_match(database: str) -> bool:
    """Whether ``.sqlx`` is what the macros say against a migrated database."""
    from tools.suite import queries

    fresh = queries.prepare(database)
    checked_in = paths.CHECKOUT / ".sqlx"
    difference = filecmp.dircmp(checked_in, fresh)
    _, wrong, errors = filecmp.cmpfiles(checked_in, fresh, difference.common_files, shallow=False)
    stale = [*difference.left_only, *difference.right_only, *wrong, *errors]
    if stale:
        progress.say(f".sqlx is stale ({len(stale)} files); `make sqlx-prepare` writes it anew")
    shutil.rmtree(fresh)
    return not stale
