"""sqlx's offline data: the schema for the checked query macros, so that a build needs no database."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tools import paths, progress
from tools.services.postgres import Postgres

__all__ = ["prepare"]


def prepare(server: str) -> Path:
    """Migrates a new database on ``server`` (a URL), writes the data into a new folder and returns that."""
    database = _migrated(server)
    fresh = Path(tempfile.mkdtemp(prefix="sqlx-"))
    environment = {"DATABASE_URL": database, "SQLX_OFFLINE": "false", "SQLX_OFFLINE_DIR": str(fresh)}
    # A newer file makes cargo expand the macros again. Restoring its time afterwards avoids rebuilding everything
    # that depends on it.
    root = paths.CHECKOUT / "control" / "src" / "lib.rs"
    before = root.stat()
    root.touch()
    try:
        progress.run(
            ["cargo", "check", "--release", "--locked", "-p", "fastllm-control", "--lib"],
            cwd=paths.CHECKOUT,
            env=environment,
        )
    finally:
        os.utime(root, ns=(before.st_atime_ns, before.st_mtime_ns))
    return fresh


def _migrated(server: str) -> str:
    name = f"prepare_{os.getpid()}"
    root, _, _ = server.rpartition("/")
    progress.run(["psql", "--quiet", "--no-psqlrc", server, "--command", f"CREATE DATABASE {name}"])
    database = f"{root}/{name}"
    for migration in sorted((paths.CHECKOUT / "migrations").glob("*.sql")):
        progress.run(
            [
                "psql",
                "--quiet",
                "--no-psqlrc",
                "--single-transaction",
                "--set",
                "ON_ERROR_STOP=1",
                database,
                "--file",
                migration,
            ]
        )
    return database


def main() -> int:
    """``python3 -m tools.suite.queries``: regenerates ``.sqlx``."""
    try:
        with Postgres("prepare", "127.0.0.1:0") as postgres:
            fresh = prepare(postgres.url)
    except (progress.StepFailed, subprocess.SubprocessError) as error:
        print(error, file=sys.stderr)
        return 1
    checked_in = paths.CHECKOUT / ".sqlx"
    shutil.rmtree(checked_in, ignore_errors=True)
    shutil.move(fresh, checked_in)
    checked_in.chmod(0o755)
    return 0


if __name__ == "__main__":
    sys.exit(main())
