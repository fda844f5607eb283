"""The decisions of the setup; nothing is installed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tools import progress
from tools.cluster import process
from tools.services import address
from tools.setup import debian, ensure, golang, rust
from tools.setup.versions import GO_MODULES


def test_the_minimum_compiler_version_comes_from_the_workspace() -> None:
    assert rust.oldest('[workspace.package]\nrust-version = "1.95"\n') == (1, 95)
    with pytest.raises(progress.StepFailed):
        rust.oldest("[workspace]\n")


def test_an_outdated_compiler_is_rejected_with_instructions(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("rustc", "cargo"):
        (tmp_path / name).write_text("#!/bin/sh\necho 'rustc 1.60.0 (old)'\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(progress.StepFailed, match="rustup update stable"):
        rust.check()


def test_only_packages_of_missing_commands_are_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(debian, "program", lambda name: None if name == "socat" else f"/bin/{name}")
    monkeypatch.setattr(debian.glob, "glob", lambda pattern: [pattern])
    assert debian.missing({"full", "images"}) == ["socat"]


def test_every_module_is_pinned_and_stamped_with_its_version() -> None:
    for module in GO_MODULES:
        assert golang.version(module).startswith("v")
        assert (module.folder / "go.sum").stat().st_size > 0
    assert "gitMinor=37" in golang.ldflags(next(m for m in GO_MODULES if m.name == "kubernetes"))


def test_programs_of_one_module_share_a_versioned_folder() -> None:
    folder = golang.path("kubelet").parent
    assert folder == golang.path("kube-apiserver").parent
    assert folder.name.startswith("kubernetes-v1.")
    with pytest.raises(progress.StepFailed):
        golang.path("no-such-program")


def test_an_unknown_part_is_rejected() -> None:
    with pytest.raises(ValueError, match="unknown part: nonsense"):
        ensure("nonsense")


def test_listen_addresses_are_validated_and_port_0_selects_a_free_port() -> None:
    assert address.parse("127.0.0.1:5432") == ("127.0.0.1", 5432)
    assert address.parse("127.0.0.1:0")[1] > 0
    for wrong in ("5432", "127.0.0.1", "host:1", "127.0.0.1:99999", "127.0.0.1:x"):
        with pytest.raises(ValueError):
            address.parse(wrong)


def test_a_failed_step_shows_the_end_of_the_log(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    log.write_text("".join(f"line {number}\n" for number in range(100)))
    with pytest.raises(progress.StepFailed, match="line 99") as failure:
        progress.wait_until("x", lambda: False, seconds=0, log=log)
    assert "line 10\n" not in str(failure.value)


def test_a_daemon_is_stopped_by_pid_and_a_reused_pid_is_ignored(tmp_path: Path) -> None:
    daemon = process.Daemon("sleeper", tmp_path)
    pid = daemon.start([sys.executable, "-c", "import time; time.sleep(600)"])
    assert daemon.alive()
    assert daemon.pid == pid
    daemon.stop()
    assert daemon.pid is None
    with subprocess.Popen(["sleep", "600"]) as stranger:
        daemon.pid_file.write_text(f"{stranger.pid} 1\n")
        daemon.stop()
        assert stranger.poll() is None
        stranger.kill()


def test_an_exited_daemon_is_reported_with_its_log(tmp_path: Path) -> None:
    daemon = process.Daemon("failing", tmp_path)
    pid = daemon.start([sys.executable, "-c", "raise SystemExit('the reason')"])
    progress.wait_until("its end", lambda: process.started_at(pid) is None, seconds=10)
    with pytest.raises(progress.StepFailed, match="the reason"):
        daemon.alive()
