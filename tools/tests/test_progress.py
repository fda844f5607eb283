"""Progress output, and the builds of the demo."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from tools import cargo, progress, setup
from tools.demo import __main__ as demo
from tools.setup import debian


def test_a_running_step_reports_its_status(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(progress, "_INTERVAL", 0.01)
    with progress.step("build", lambda: "3 crates compiled"):
        time.sleep(0.1)
    with progress.step("tests", heartbeat=False):
        time.sleep(0.05)
    output = capsys.readouterr().err
    assert "build: 3 crates compiled, 0 s so far" in output
    assert "tests: " not in output
    assert "tests (0." in output


def test_a_failed_step_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError), progress.step("build"):
        raise ValueError
    assert "build: FAILED after 0.0 s" in capsys.readouterr().err


def test_the_demo_builds_only_its_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[list[str]] = []

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(cargo.subprocess, "run", run)
    cargo.build(terminal=True)
    assert "--workspace" not in commands[0]
    assert [word for word in commands[0] if word.startswith("--package")] == [
        f"--package={name}" for name in cargo.PROGRAMS
    ]


@pytest.fixture
def background(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The demo without installations, and a setup that creates the returned file after three seconds."""
    finished = tmp_path / "finished"
    script = tmp_path / "python"
    script.write_text(f"#!/bin/sh\nsleep 3\ntouch {finished}\n")
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))
    monkeypatch.setattr(setup, "ensure", lambda *_: None)
    monkeypatch.setattr(debian, "install_missing", lambda _: None)
    return finished


def test_with_more_than_two_cores_both_builds_run_side_by_side(
    monkeypatch: pytest.MonkeyPatch, background: Path
) -> None:
    finished_before_cargo = []
    monkeypatch.setattr(cargo, "build", lambda **_: finished_before_cargo.append(background.exists()))
    demo.prepare(4)
    assert finished_before_cargo == [False]
    assert background.exists()


def test_a_failed_cargo_build_stops_the_other_one(monkeypatch: pytest.MonkeyPatch, background: Path) -> None:
    def fail(**_: object) -> None:
        raise progress.StepFailed("cargo build failed")

    monkeypatch.setattr(cargo, "build", fail)
    began = time.monotonic()
    with pytest.raises(progress.StepFailed, match="cargo build failed"):
        demo.prepare(4)
    assert time.monotonic() - began < 2.5
    assert not background.exists()
