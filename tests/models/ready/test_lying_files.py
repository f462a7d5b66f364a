"""Headers and configurations that lie are refused, whatever is wrong with them."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pageant.models import Checkpoint, CheckpointError
from pageant.models.tensor_files import read_header


def test_headers_that_lie_never_crash(copied: Callable[[str], Any], tmp_path: Path) -> None:
    """Bytes of a header are changed at random: it is refused, or it is as good as before."""
    checkpoint = copied("gptq")
    file = checkpoint.path / "model.safetensors"
    whole = file.read_bytes()
    length = 8 + int.from_bytes(whole[:8], "little")
    outcomes = set()
    for seed in range(1000):
        changed, chance = bytearray(whole), random.Random(seed)
        for _ in range(chance.choice((1, 1, 2, 5, 40))):
            changed[chance.randrange(length)] = chance.choice((chance.randrange(256), *b'0123456789[]{}",:-'))
        file.write_bytes(changed[: chance.choice((len(whole), len(whole), chance.randrange(len(whole))))])
        try:
            Checkpoint(checkpoint.path).check()
            outcomes.add("sound")
        except CheckpointError as error:
            assert str(checkpoint.path) in str(error)
            outcomes.add("refused")
    assert outcomes == {"sound", "refused"}


def junk(chance: random.Random, depth: int = 0) -> Any:
    """Return something that JSON can say."""
    kinds = [
        None,
        True,
        0,
        -1,
        3,
        2**70,
        1.5,
        "",
        "group",
        "re:(",
        "int",
        [],
        {},
        ["Linear"],
        [128, 0],
        "128",
    ]
    if depth < 2 and chance.random() < 0.3:
        keys = ["weights", "group_0", "num_bits", "targets", "format", "x"]
        return {key: junk(chance, depth + 1) for key in chance.sample(keys, 2)}
    return chance.choice(kinds)


@pytest.mark.parametrize("name", ["gptq_dynamic", "awq", "ct_w4a16_asym", "ct_fp8_block", "bnb_nested"])
def test_configurations_that_lie_never_crash(copied: Callable[[str], Any], name: str) -> None:
    checkpoint = copied(name)
    (checkpoint.path / "quantize_config.json").unlink(missing_ok=True)
    whole, outcomes = checkpoint.config, set()

    def places(value: Any) -> list[tuple[dict[str, Any], str]]:
        if not isinstance(value, dict):
            return []
        return [(value, key) for key in value] + [place for one in value.values() for place in places(one)]

    for seed in range(200):
        chance = random.Random(seed)
        config = json.loads(json.dumps(whole))
        holder, key = chance.choice(places(config["quantization_config"]))
        holder[key] = junk(chance)
        (checkpoint.path / "config.json").write_text(json.dumps(config))
        try:
            Checkpoint(checkpoint.path).check()
            outcomes.add("sound")
        except CheckpointError as error:
            assert str(checkpoint.path) in str(error)
            outcomes.add("refused")
    assert outcomes == {"sound", "refused"}


@pytest.mark.parametrize(
    "entry",
    [
        {"dtype": "F32", "shape": [2**62, 2**62], "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": [2**31, 2**31, 0], "data_offsets": [0, 4]},
        {"dtype": "I32", "shape": [1] * 100_000, "data_offsets": [0, 4]},
        {"dtype": "U8", "shape": [-4, -1], "data_offsets": [0, 4]},
        {"dtype": "U8", "shape": [4.0], "data_offsets": [0, 4]},
        {"dtype": "U8", "shape": [4], "data_offsets": [0, 10**18]},
        {"dtype": "U8", "shape": [4], "data_offsets": [10**30, 10**30 + 4]},
        {"dtype": "F4", "shape": [4], "data_offsets": [4, 0]},
        {"dtype": ["U8"], "shape": [4], "data_offsets": [0, 4]},
    ],
    ids=lambda entry: str(entry)[:60],
)
def test_an_entry_that_lies_is_refused(tmp_path: Path, entry: dict[str, Any]) -> None:
    header = json.dumps({"x": entry}).encode()
    file = tmp_path / "model.safetensors"
    file.write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
    with pytest.raises(CheckpointError, match=r"model\.safetensors: "):
        read_header(file)


@pytest.mark.parametrize(("second", "size"), [((0, 4), 8), ((2, 6), 8), ((5, 9), 9), ((4, 8), 9)])
def test_tensors_that_overlap_or_leave_gaps_are_refused(
    tmp_path: Path, second: tuple[int, int], size: int
) -> None:
    entries = {"x": (0, 4), "y": second}
    header = json.dumps(
        {name: {"dtype": "U8", "shape": [4], "data_offsets": at} for name, at in entries.items()}
    )
    file = tmp_path / "model.safetensors"
    file.write_bytes(len(header).to_bytes(8, "little") + header.encode() + bytes(size))
    with pytest.raises(CheckpointError, match=r"model\.safetensors: "):
        read_header(file)


def test_a_header_longer_than_the_file_is_not_read(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    for length in (2**63, 10**9, 99_999_999):
        file.write_bytes(length.to_bytes(8, "little") + b"{}")
        with pytest.raises(CheckpointError, match="10 bytes \\(truncated\\)"):
            read_header(file)
