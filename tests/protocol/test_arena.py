"""Memory of a store: what is left of it where the system refuses a part."""

from __future__ import annotations

import gc
import mmap
import os

import pytest

from pageant.protocol.arena import Arena
from pageant.protocol.errors import ConfigurationError


def open_arenas() -> int:
    found = 0
    for file in os.listdir("/proc/self/fd"):
        try:
            found += "pageant-store" in os.readlink(f"/proc/self/fd/{file}")
        except FileNotFoundError:  # the folder's own
            continue
    return found


@pytest.mark.parametrize(("module", "function"), [(os, "ftruncate"), (mmap, "mmap")])
def test_memory_that_the_system_refuses_leaves_no_open_file(monkeypatch, module, function):
    def refused(*_: object) -> None:
        raise OSError("no memory")

    gc.collect()
    before = open_arenas()
    with monkeypatch.context() as patch:
        patch.setattr(module, function, refused)
        with pytest.raises(ConfigurationError, match="which cannot be shared: no memory"):
            Arena.create(4096)
    assert open_arenas() == before


def test_the_file_of_a_memory_is_closed_with_it():
    gc.collect()
    before = open_arenas()
    arena = Arena.create(4096)
    assert open_arenas() > before
    del arena
    gc.collect()
    assert open_arenas() == before
