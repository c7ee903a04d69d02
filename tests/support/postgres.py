"""A real PostgreSQL server of a test's own: made by `initdb`, stopped, killed and started again at will.

Debian's package puts the programs under /usr/lib/postgresql. The server refuses to run as root; then it runs as the
package's own user. Durability is left as it is shipped (`fsync` on): crash tests mean what they say.
"""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.ports import free_port

START_S = 60.0


def programs() -> Path | None:
    """The folder of the newest PostgreSQL's programs, or None."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=lambda path: int(path.parts[-3]))
    if found:
        return found[-1].parent
    elsewhere = shutil.which("postgres")
    return Path(elsewhere).resolve().parent if elsewhere else None


def _drop_root() -> Callable[[], None] | None:
    if os.geteuid() != 0:
        return None
    user = pwd.getpwnam("postgres")

    def drop() -> None:
        os.setgroups([])
        os.setgid(user.pw_gid)
        os.setuid(user.pw_uid)

    return drop


class Postgres:
    """One server on loopback. `options` are `-c` settings, as `{"max_connections": "20"}`."""

    def __init__(self, **options: str) -> None:
        found = programs()
        if found is None:
            pytest.skip("PostgreSQL's server is not on this machine (Debian: apt install postgresql)")
        self._programs = found
        self._root = Path(tempfile.mkdtemp(prefix="ostiary-pg-", dir="/tmp"))
        self._options = options
        self._drop = _drop_root()
        if self._drop is not None:
            user = pwd.getpwnam("postgres")
            os.chown(self._root, user.pw_uid, user.pw_gid)
        self.port = free_port()
        self.password = secrets.token_hex(8)
        self._process: subprocess.Popen[bytes] | None = None
        secret = self._root / "password"
        secret.write_text(self.password)
        secret.chmod(0o644)
        self._run(
            "initdb", "-D", str(self.data), "-U", "postgres", "--auth=scram-sha-256", f"--pwfile={secret}",
            "--encoding=UTF8", "--locale=C", "--no-sync",
        )  # fmt: skip

    @property
    def data(self) -> Path:
        """The server's own folder."""
        return self._root / "data"

    @property
    def pid(self) -> int:
        """Its first process."""
        if self._process is None:
            raise RuntimeError("it does not run")
        return self._process.pid

    @property
    def url(self) -> str:
        """Of the database `postgres`, as its superuser."""
        return self.url_of("postgres")

    def url_of(self, database: str, user: str = "postgres", password: str | None = None) -> str:
        """`postgresql://USER:PASSWORD@127.0.0.1:PORT/DATABASE`."""
        return f"postgresql://{user}:{password or self.password}@127.0.0.1:{self.port}/{database}"

    def _run(self, program: str, *arguments: str) -> str:
        done = subprocess.run(
            [str(self._programs / program), *arguments],
            preexec_fn=self._drop,
            capture_output=True,
            text=True,
            check=False,
            cwd=self._root,
            timeout=START_S,
        )
        if done.returncode != 0:
            raise RuntimeError(f"{program}: {done.stderr or done.stdout}")
        return done.stdout

    def start(self) -> None:
        """Start it on the same port and folder as ever; returns when it answers."""
        told = [f"-c{name}={value}" for name, value in self._options.items()]
        with (self._root / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    str(self._programs / "postgres"), "-D", str(self.data), "-p", str(self.port),
                    "-c", "listen_addresses=127.0.0.1", "-c", f"unix_socket_directories={self._root}", *told,
                ],
                preexec_fn=self._drop,  # noqa: PLW1509
                stdout=log,
                stderr=log,
                cwd=self._root,
            )  # fmt: skip
        end = time.monotonic() + START_S
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > end:
                raise RuntimeError((self._root / "log").read_text()[-2000:])
            time.sleep(0.05)

    def _answers(self) -> bool:
        asked = subprocess.run(
            [str(self._programs / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(self.port), "-t", "1"],
            check=False,
        )
        return asked.returncode == 0

    def sql(self, statement: str, database: str = "postgres") -> str:
        """What `psql` prints for a statement, as the superuser: one row a line, `|` between columns."""
        quiet = ("-X", "-A", "-t", "-q", "-v", "ON_ERROR_STOP=1")
        return self._run("psql", *quiet, self.url_of(database), "-c", statement).strip()

    def create(self, database: str | None = None, place: Path | None = None) -> str:
        """A fresh, empty database -> its URL; its tables are in the empty folder `place`, if there is one."""
        name = database or f"d{secrets.token_hex(6)}"
        if place is not None:
            if self._drop is not None:
                shutil.chown(place, "postgres", "postgres")
            self.sql(f"CREATE TABLESPACE \"{name}\" LOCATION '{place}'")
        self.sql(f'CREATE DATABASE "{name}"' + (f' TABLESPACE "{name}"' if place is not None else ""))
        return self.url_of(name)

    def kill(self) -> None:
        """Every process of it dies at once, as when the machine does."""
        if self._process is not None:
            children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()
            for pid in (self._process.pid, *map(int, children)):
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            self._process.wait()
            self._process = None

    def stop(self) -> None:
        """Fast shutdown: connections are cut, what was committed is kept."""
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)
            try:
                self._process.wait(timeout=START_S)
            except subprocess.TimeoutExpired:
                self.kill()
            self._process = None

    def pause(self) -> None:
        """It hangs: connections stand and nothing answers, until `resume()`."""
        self._signal_all(signal.SIGSTOP)

    def resume(self) -> None:
        """It goes on where it hung."""
        self._signal_all(signal.SIGCONT)

    def _signal_all(self, number: signal.Signals) -> None:
        if self._process is None:
            raise RuntimeError("it does not run")
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()
        for pid in (self._process.pid, *map(int, children)):
            os.kill(pid, number)

    def remove(self) -> None:
        """Stop it and forget its files."""
        self.kill()
        shutil.rmtree(self._root, ignore_errors=True)
