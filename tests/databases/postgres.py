"""A Postgres server of the tests' own, started from the programs that Debian's package brings."""

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PLACES = "/usr/lib/postgresql"
SETTINGS = {
    "fsync": "off",
    "listen_addresses": "''",
    "max_connections": "40",
    "autovacuum": "off",
    "wal_level": "logical",
}


def programs() -> Path:
    """Return the folder of the server's programs; raises AssertionError where none is installed."""
    found = shutil.which("initdb")
    folders = [Path(found).parent] if found else sorted(Path(PLACES).glob("*/bin"), reverse=True)
    assert folders, "Postgres is not installed: apt-get install postgresql"
    return folders[0].resolve()


@contextmanager
def running() -> Iterator[str]:
    """Yield the URL of a server that is empty, and gone at the end of the block."""
    # A server refuses to be run by root, and to have its files read by others; a socket's path is short.
    user = "postgres" if os.geteuid() == 0 else None
    directory = Path(tempfile.mkdtemp(prefix="pg-"))
    try:
        if user is not None:
            os.chown(directory, pwd.getpwnam(user).pw_uid, -1)
        data, options = directory / "data", " ".join(f"-c {name}={value}" for name, value in SETTINGS.items())
        _called(user, directory, "initdb", "-D", data, "-U", "postgres", "--no-sync", "-A", "trust", "-E", "UTF8")
        _called(
            user,
            directory,
            "pg_ctl",
            "-D",
            data,
            "-w",
            "-l",
            directory / "log",
            "-o",
            f"{options} -k {directory}",
            "start",
        )
        try:
            yield f"postgres://postgres@/postgres?host={directory}"
        finally:
            _called(user, directory, "pg_ctl", "-D", data, "-m", "immediate", "stop")
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def restart(url: str) -> None:
    """Restart a server that is running, which ends all connections."""
    directory = Path(url.partition("host=")[2])
    user = "postgres" if os.geteuid() == 0 else None
    _called(user, directory, "pg_ctl", "-D", directory / "data", "-w", "-l", directory / "log", "-m", "fast", "restart")


def _called(user: str | None, directory: Path, program: str, *arguments: object) -> None:
    command = [str(programs() / program), *map(str, arguments)]
    done = subprocess.run(command, user=user, cwd=directory, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stdout}{done.stderr}"
