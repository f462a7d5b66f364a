"""Old paths of modules, which a user's topology or script may name, lead to the same modules."""

from __future__ import annotations

import importlib

import pytest

from pageant.actors.runtime.classes import load_actor_class

PLACE = "actors.http.class"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("frontend.http.server:HttpServer", "http.server:HttpServer"),
        ("frontend.frontend:Frontend", "frontend.frontend:Frontend"),
    ],
)
def test_a_topology_may_name_an_actor_by_its_old_path(old, new):
    found, expected = (load_actor_class(f"pageant.actors.{one}", PLACE) for one in (old, new))
    assert found is expected and found.__module__ == f"pageant.actors.{new.partition(':')[0]}"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("frontend.engine", "client.engine"),
        ("frontend.vllm_names.rows", "client.vllm_names.rows"),
        ("frontend.http.openai.chat", "http.openai.chat"),
        ("frontend.http.parsers.formats", "parsers.formats"),
    ],
)
def test_a_module_under_its_old_path_is_the_same_module(old, new):
    module = importlib.import_module(f"pageant.actors.{new}")
    spec = module.__spec__
    assert importlib.import_module(f"pageant.actors.{old}") is module
    assert module.__spec__ is spec and module.__name__ == f"pageant.actors.{new}"


def test_a_module_that_never_was_is_not_found():
    with pytest.raises(ModuleNotFoundError, match=r"pageant\.actors\.frontend\.nonsense"):
        importlib.import_module("pageant.actors.frontend.nonsense")
