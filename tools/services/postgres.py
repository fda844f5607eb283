"""A disposable PostgreSQL server from the installed programs: not durable, but protected by a password."""

from __future__ import annotations

import json
import os
import pwd
import secrets
import shutil
import signal
import subprocess
from pathlib import Path

from tools import progress
from tools.cluster.process import Daemon
from tools.paths import checked_name, state_dir
from tools.services.address import parse
from tools.setup import ensure
from tools.setup.versions import POSTGRES_PROGRAMS

USER = "fastllm"

_FAST = {
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "wal_level": "minimal",
    "max_wal_senders": "0",
    "max_connections": "200",
    "shared_buffers": "64MB",
    "unix_socket_directories": "''",
    "logging_collector": "off",
    "log_destination": "stderr",
    "timezone": "UTC",
}


class Postgres:
    """A PostgreSQL server. ``listen`` is ``ADDR:PORT``; every connection needs the password.

    ``up``/``down`` (or ``with``) create and remove it; ``stop``/``start`` keep its data, to simulate outages.
    Started by root, it runs as the user ``postgres``, because PostgreSQL refuses to run as root.
    """

    def __init__(self, name: str = "postgres", listen: str = "127.0.0.1:0") -> None:
        self.name = checked_name(name)
        self._listen = listen
        self._folder = state_dir() / "services" / f"postgres-{self.name}"
        self._daemon = Daemon("postgres", self._folder)

    def __enter__(self) -> Postgres:
        try:
            return self.up()
        except BaseException:
            self.down()
            raise

    def __exit__(self, *_: object) -> None:
        self.down()

    @property
    def log(self) -> Path:
        """The server's log."""
        return self._daemon.log

    @property
    def url(self) -> str:
        """The DATABASE_URL of the database ``fastllm``. Raises StepFailed if the server is not up."""
        return self.url_of(USER)

    def url_of(self, database: str) -> str:
        """The DATABASE_URL of another database of this server."""
        about = self._about()
        return f"postgres://{USER}:{about['password']}@{about['host']}:{about['port']}/{database}"

    def up(self) -> Postgres:
        """Creates an empty server and waits until it is ready. Replaces an earlier one of the same name."""
        ensure("postgres")
        self.down()
        with progress.step(f"postgres {self.name}"):
            self._folder.mkdir(parents=True, mode=0o700)
            host, port = parse(self._listen)
            about = {"host": host, "port": port, "password": secrets.token_hex(16)}
            note = self._folder / "about.json"
            note.touch(mode=0o600)
            note.write_text(json.dumps(about))
            self._initialize(about["password"])
            self.start()
            self.create_database(USER)
        return self

    def _initialize(self, password: str) -> None:
        owner = _owner()
        data = self._data()
        data.mkdir(mode=0o700)
        os.chown(data, owner.pw_uid, owner.pw_gid)
        password_file = data.parent / f"{data.name}.password"
        password_file.touch(mode=0o600)
        os.chown(password_file, owner.pw_uid, owner.pw_gid)
        try:
            password_file.write_text(password)
            self._as_owner(
                [
                    _program("initdb"),
                    "--pgdata",
                    data,
                    "--username",
                    USER,
                    "--pwfile",
                    password_file,
                    "--auth",
                    "scram-sha-256",
                    "--encoding",
                    "UTF8",
                    "--locale",
                    "C.UTF-8",
                    "--no-sync",
                    "--no-instructions",
                ]
            )
        finally:
            password_file.unlink()
        with (data / "postgresql.auto.conf").open("a") as settings:
            settings.writelines(f"{name} = {value}\n" for name, value in _FAST.items())
        (data / "pg_hba.conf").write_text("host all all all scram-sha-256\n")

    def _as_owner(self, command: list[str | Path]) -> None:
        owner = _owner()
        identity = {"user": owner.pw_uid, "group": owner.pw_gid, "extra_groups": []} if os.geteuid() == 0 else {}
        done = subprocess.run(
            [str(word) for word in command], cwd="/", capture_output=True, text=True, check=False, **identity
        )
        if done.returncode:
            raise progress.StepFailed(f"{command[0]}:\n{done.stdout}{done.stderr}")

    def start(self) -> None:
        """Starts the server on its data and waits until it is ready."""
        about = self._about()
        owner = _owner()
        self._daemon.start(
            [_program("postgres"), "-D", self._data(), "-h", about["host"], "-p", str(about["port"])],
            cwd=Path("/"),
            user=owner.pw_uid if os.geteuid() == 0 else None,
        )

        def ready() -> bool:
            self._daemon.alive()
            return self._psql("postgres", "select 1").returncode == 0

        progress.wait_until(f"postgres {self.name}", ready, seconds=30, log=self.log)

    def stop(self) -> None:
        """Stops the server immediately and aborts its connections; the data stays."""
        self._daemon.stop(how=signal.SIGINT)

    def down(self) -> None:
        """Stops the server and removes its data. Idempotent."""
        self._daemon.stop(how=signal.SIGQUIT)
        for folder in (self._data(), self._folder):
            if folder.exists():
                shutil.rmtree(folder)

    def create_database(self, name: str) -> str:
        """Creates an empty database and returns its URL."""
        self.execute(f'create database "{checked_name(name)}"', database="postgres")
        return self.url_of(name)

    def execute(self, sql: str, *, database: str = USER) -> str:
        """Runs SQL with psql and returns the rows, unaligned, one per line. Raises StepFailed on errors."""
        done = self._psql(database, sql)
        if done.returncode:
            raise progress.StepFailed(f"psql: {done.stderr.strip()}")
        return done.stdout

    def _psql(self, database: str, sql: str) -> subprocess.CompletedProcess[str]:
        about = self._about()
        env = {**os.environ, "PGPASSWORD": about["password"], "PGCONNECT_TIMEOUT": "3"}
        command = [
            _program("psql"),
            "-X",
            "-q",
            "-A",
            "-t",
            "-v",
            "ON_ERROR_STOP=1",
            "-h",
            about["host"],
            "-p",
            str(about["port"]),
            "-U",
            USER,
            "-d",
            database,
            "-c",
            sql,
        ]
        return subprocess.run(command, env=env, capture_output=True, text=True, check=False)

    def _about(self) -> dict:
        try:
            return json.loads((self._folder / "about.json").read_text())
        except OSError as error:
            raise progress.StepFailed(f"postgres {self.name} is not up") from error

    def _data(self) -> Path:
        # The user postgres cannot access root's home, the usual place of the state.
        if os.geteuid() == 0:
            return Path("/var/tmp") / f"fastllm-postgres-{self.name}"
        return self._folder / "data"


def _owner() -> pwd.struct_passwd:
    return pwd.getpwnam("postgres") if os.geteuid() == 0 else pwd.getpwuid(os.geteuid())


def _program(name: str) -> str:
    found = sorted(POSTGRES_PROGRAMS.glob(f"*/bin/{name}"), key=lambda path: float(path.parent.parent.name))
    if not found:
        raise progress.StepFailed(f"{name} of PostgreSQL is not installed; run `python3 -m tools.setup postgres`")
    return str(found[-1])
