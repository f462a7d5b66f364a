"""Roster that `pageant ps` reads."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import msgspec
import pytest

from pageant.actors.runtime.roster import Roster, running
from pageant.protocol.errors import TopologyError
from pageant.protocol.supervision import ActorEntry, Directory, NodeEntry

DIRECTORY = Directory(
    version=3,
    nodes=(NodeEntry(name="front", incarnation=1, endpoint="", pid=7),),
    actors=(ActorEntry(name="echo", node="front", incarnation=2, up=True, restarts=1),),
)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return tmp_path / f"pageant-{os.getuid()}"


def test_topologies_are_listed_from_their_first_directory_to_their_end(folder):
    late, early = (Roster(name, "each", "", at) for name, at in (("late", 2.0), ("early", 1.0)))
    assert running() == []
    late.write(DIRECTORY)
    early.write(DIRECTORY)
    assert [(one.name, one.pid, msgspec.to_builtins(one.directory)) for one in running()] == [
        ("early", os.getpid(), msgspec.to_builtins(DIRECTORY)),
        ("late", os.getpid(), msgspec.to_builtins(DIRECTORY)),
    ]
    early.close()
    late.close()
    assert running() == [] and list(folder.iterdir()) == []


def test_what_a_killed_root_left_behind_is_swept_up(folder):
    code = f"""
import os, signal, msgspec
from pageant.actors.runtime.roster import Roster
from pageant.protocol.supervision import Directory
roster = Roster("gone", "one", "", 0.0)
roster.write(msgspec.msgpack.decode({msgspec.msgpack.encode(DIRECTORY)!r}, type=Directory))
os.kill(os.getpid(), signal.SIGKILL)
"""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    assert subprocess.run([sys.executable, "-c", code], env=environment, check=False).returncode == -9
    assert len(list(folder.glob("*.json"))) == 1
    assert running() == [] and list(folder.iterdir()) == []


def test_a_folder_that_others_may_write_to_is_not_used(folder):
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(TopologyError, match="only this user can write"):
        Roster("any", "one", "", 0.0)


def test_where_nothing_can_be_written_the_topology_goes_on(folder, caplog):
    roster = Roster("here", "each", "", 1.0)
    roster.write(DIRECTORY)
    shutil.rmtree(folder)
    roster.write(DIRECTORY)
    roster.write(DIRECTORY)
    assert len([one for one in caplog.records if "out of date" in one.message]) == 1
    roster.close()
