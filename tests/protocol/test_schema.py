"""The schema: complete, and the same in every process."""

from __future__ import annotations

import os
import subprocess
import sys

from pageant.protocol.handshake import fingerprint
from pageant.protocol.message import Message, all_kinds
from pageant.protocol.schema import canonical_schema, protocol_kinds, schema


def test_every_kind_of_the_protocol_is_in_it():
    names = {kind.__name__ for kind in all_kinds() if kind.__module__.startswith("pageant.protocol.")}
    assert set(schema()["messages"]) == names
    assert {"Hello", "Submit", "StepPlan", "OutputBatch", "Directory", "Failure", "Resume"} <= names


def test_a_users_own_messages_are_not():
    class Homemade(Message, frozen=True, kw_only=True):
        value: int

    assert Homemade not in protocol_kinds()
    assert "Homemade" not in schema()["messages"]


def test_arrays_are_described_with_dtype_and_rank():
    field = schema()["components"]["Tokenized"]["properties"]["token_ids"]
    assert field["x-dtype"] == "int32" and field["x-rank"] == 1
    assert field["prefixItems"][1] == {"const": "i4"}


def test_the_fingerprint_is_the_same_in_every_process():
    code = (
        "from pageant.protocol.handshake import fingerprint; print(fingerprint());"
        "from pageant.protocol.schema import canonical_schema; print(len(canonical_schema()))"
    )
    for seed in ("1", "2"):
        environment = os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)}
        output = subprocess.check_output([sys.executable, "-c", code], env=environment, text=True)
        assert output.split() == [fingerprint(), str(len(canonical_schema()))]
