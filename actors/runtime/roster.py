"""The topologies that run on this host, for `pageant ps`: one file each, written by the process that started
it.

The root writes its directory there whenever it changes, and holds a lock for as long as it lives. No process
has to be asked, and a hung topology is listed too. A file that a dead root left behind is known by its free
lock.
"""

from __future__ import annotations

import fcntl
import logging
import os
import stat
import tempfile
from pathlib import Path

import msgspec

from pageant.protocol.errors import TopologyError
from pageant.protocol.supervision import Directory

log = logging.getLogger("pageant.roster")


class Running(msgspec.Struct, frozen=True, kw_only=True):
    """A running topology."""

    pid: int
    """The process that started it."""
    name: str
    placement: str
    started_at: float
    """Seconds since 1970."""
    endpoint: str
    """The address where nodes join; "" if none do."""
    directory: Directory


class Roster:
    """The entry of one topology.

    Args:
        started_at: seconds since 1970.

    Raises:
        TopologyError: another user may write to the folder.
    """

    def __init__(self, name: str, placement: str, endpoint: str, started_at: float) -> None:
        nobody = Directory(version=0, nodes=(), actors=())
        self._entry = Running(
            pid=os.getpid(),
            name=name,
            placement=placement,
            started_at=started_at,
            endpoint=endpoint,
            directory=nobody,
        )
        self._lock, path = tempfile.mkstemp(".lock", f"{os.getpid()}-", _folder())
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        self._path = Path(path)
        self._is_stale = False

    def write(self, directory: Directory) -> None:
        """Write the present directory. If that fails, the topology goes on with an outdated entry."""
        entry = msgspec.structs.replace(self._entry, directory=directory)
        scratch = self._path.with_suffix(".new")
        try:
            scratch.write_bytes(msgspec.json.encode(entry))
            scratch.replace(self._path.with_suffix(".json"))
        except OSError as error:
            if not self._is_stale:
                log.warning("what pageant ps shows of this topology is out of date: %s", error)
            self._is_stale = True
        else:
            self._is_stale = False

    def close(self) -> None:
        """Remove the entry: the topology has ended."""
        for suffix in (".new", ".json", ".lock"):
            self._path.with_suffix(suffix).unlink(missing_ok=True)
        os.close(self._lock)


def running() -> list[Running]:
    """Return every topology of this user on this host, the eldest first."""
    found = []
    for lock in _folder().glob("*.lock"):
        entry = lock.with_suffix(".json")
        try:
            if _is_held(lock):
                found.append(msgspec.json.decode(entry.read_bytes(), type=Running))
            else:
                entry.unlink(missing_ok=True)
                lock.unlink(missing_ok=True)
        except FileNotFoundError:  # it has just ended, or has not said anything yet
            continue
        except msgspec.DecodeError:  # of another version
            continue
    return sorted(found, key=lambda one: one.started_at)


def _is_held(lock: Path) -> bool:
    with lock.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def _folder() -> Path:
    """Return the folder of this user's entries, which no other user can write to."""
    path = Path(os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()) / f"pageant-{os.getuid()}"
    path.mkdir(mode=0o700, exist_ok=True)
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o022:
        raise TopologyError("", f"{path} is not a folder that only this user can write to")
    return path
