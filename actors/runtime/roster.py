"""Which topologies run on this host, for `pageant ps`: one file each, of the process that started it.

The root writes its directory there whenever it changes, and holds a lock for as long as it lives: so nobody has to
be asked, a hung topology is listed too, and a file that a dead root left behind is known by its lock being free.
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
    """A topology: `pid` is of the process that started it, `endpoint` where nodes join, if any do."""

    pid: int
    name: str
    placement: str
    started_at: float
    endpoint: str
    directory: Directory


class Roster:
    """One topology's entry.

    Raises:
        TopologyError: somebody else may write where it is to be.
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
        """Everybody as of now. Where that cannot be written, the topology goes on without."""
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
        """The topology has ended."""
        for suffix in (".new", ".json", ".lock"):
            self._path.with_suffix(suffix).unlink(missing_ok=True)
        os.close(self._lock)


def running() -> list[Running]:
    """Every topology of this user on this host, the eldest first."""
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
    """This user's, and nobody else's."""
    path = Path(os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()) / f"pageant-{os.getuid()}"
    path.mkdir(mode=0o700, exist_ok=True)
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o022:
        raise TopologyError("", f"{path} is not a folder that only this user can write to")
    return path
