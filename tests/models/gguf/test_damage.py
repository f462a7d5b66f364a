"""Random damage to GGUF and safetensors headers and quantisation configurations: refused, in little memory."""

from __future__ import annotations

import json
import random
import shutil
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from pageant.models import Checkpoint, CheckpointError
from pageant.models.gguf.container import read_gguf

SEEDS = 1000
OVERHEAD_BYTES = 1 << 20  # of Python's own objects for a header, whatever it says


def _damaged(whole: bytes, end: int, generator: random.Random) -> bytes:
    """A file with a few bytes of its header changed, or cut, or with a piece of it moved."""
    content = bytearray(whole)
    for _ in range(generator.randint(1, 4)):
        place = generator.randrange(4, end)
        match generator.randrange(4):
            case 0:
                content[place] = generator.randrange(256)
            case 1:
                huge = generator.choice((2**60, 2**63, 2**64 - 1, 10**9, 0, 1))
                content[place : place + 8] = struct.pack("<Q", huge)
            case 2:
                del content[place : place + generator.randint(1, 64)]
            case 3:
                return bytes(content[:place])
    return bytes(content)


def _tried(read: Callable[[], Any], size: int) -> None:
    """Read; refuse or accept, but within memory that follows from the file's size."""
    tracemalloc.reset_peak()
    before = tracemalloc.get_traced_memory()[0]
    try:
        read()
    except CheckpointError as error:
        assert "expected" in str(error)
    peak = tracemalloc.get_traced_memory()[1] - before
    assert peak < size + OVERHEAD_BYTES


def test_no_damage_to_a_gguf_header_crashes_or_takes_memory(
    written: Callable[..., Any], tmp_path: Path
) -> None:
    whole = written("qwen3_moe", "Q8_0").path.read_bytes()
    end = min(tensor.offset for tensor in read_gguf(written("qwen3_moe", "Q8_0").path).tensors.values())
    path = tmp_path / "model.gguf"
    tracemalloc.start()
    try:
        for seed in range(SEEDS):
            path.write_bytes(_damaged(whole, end, random.Random(seed)))
            _tried(lambda: _read_all(path), len(whole))
    finally:
        tracemalloc.stop()


def _read_all(path: Path) -> None:
    from pageant.models.gguf.folder import _files

    _files([path])


def test_no_damage_to_a_safetensors_header_crashes_or_takes_memory(tmp_path: Path) -> None:
    from pageant.models.tensor_files import read_header

    path = tmp_path / "model.safetensors"
    save_file({f"layer.{index}.weight": torch.zeros(8, 16) for index in range(8)}, path)
    whole = path.read_bytes()
    end = 8 + int.from_bytes(whole[:8], "little")
    tracemalloc.start()
    try:
        for seed in range(SEEDS):
            path.write_bytes(_damaged(b"GGUF" + whole, end + 4, random.Random(seed))[4:])
            _tried(lambda: read_header(path), len(whole))
    finally:
        tracemalloc.stop()


def test_no_damage_to_a_quantization_config_crashes(tmp_path: Path) -> None:
    """Every key of every maker's configuration, in turn of another type, and keys of one in another's."""
    source = Path(__file__).parents[1] / "ready" / "fixtures"
    sections = [json.loads((folder / "config.json").read_text()) for folder in sorted(source.iterdir())]
    names = [folder.name for folder in sorted(source.iterdir())]
    odd: list[Any] = [
        None,
        -1,
        0,
        2**64,
        1.5,
        float("nan"),
        "",
        "x",
        "re:(a+)+$",
        [],
        [[]],
        {},
        {"a": {}},
        True,
        [1],
    ]
    link = tmp_path / "model"
    for seed in range(SEEDS):
        generator = random.Random(seed)
        index = generator.randrange(len(sections))
        config = json.loads(json.dumps(sections[index]))
        section = config["quantization_config"]
        for _ in range(generator.randint(1, 3)):
            others = generator.choice(sections)["quantization_config"]
            key = generator.choice(list({**section, **others}))
            _set(section, key, generator.choice(odd), generator)
        shutil.rmtree(link, ignore_errors=True)
        link.mkdir()
        (link / "config.json").write_text(json.dumps(config))
        (link / "model.safetensors").symlink_to(source / names[index] / "model.safetensors")
        try:
            Checkpoint(link).check()
        except CheckpointError as error:
            assert "expected" in str(error)


def _set(section: dict[str, Any], key: str, value: Any, generator: random.Random) -> None:
    """Put a value at a key, or somewhere in what is there."""
    inner = section.get(key)
    if isinstance(inner, dict) and inner and generator.random() < 0.7:
        _set(inner, generator.choice(list(inner)), value, generator)
    else:
        section[key] = value
