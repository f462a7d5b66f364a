"""The compiler in a process of its own, where no source can be followed."""

from __future__ import annotations

import json

import msgspec

from pageant.actors.grammar.isolated import open_compiler
from pageant.protocol.structured_outputs import StructuredOutputsParams
from pageant.scripts.engine_options import DEMO_MODEL


def test_a_model_without_an_end_token_refuses_each_source_and_ends_no_process():
    compile_source = open_compiler(json.dumps([str(DEMO_MODEL), 4096, []]))
    asked = msgspec.msgpack.encode(StructuredOutputsParams(regex="a+"))
    assert compile_source(asked) == b"structured output needs a model that has an end token"
