"""Texts of calibration: what files may hold, and what is refused before anything is written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pageant import models
from pageant.models.quantizing.calibration import Calibration, read_sequences
from pageant.models.quantizing.layerwise import Solving
from pageant.models.quantizing.quantizer import quantize
from pageant.models.tokenization import Tokenization
from pageant.protocol.errors import ArgumentError

DEMO = Path(models.__file__).parent / "demo"
VOCAB = 4096


def read(file: Path, **limits: Any) -> list[list[int]]:
    return read_sequences(Calibration(file, **limits), DEMO, VOCAB)


def test_plain_text_is_cut_into_sequences(tmp_path: Path) -> None:
    text = "A list is a sequence. " * 50
    (tmp_path / "a.txt").write_text(text)
    ids = Tokenization.from_checkpoint(DEMO).encode(text, add_special_tokens=False)
    found = read(tmp_path / "a.txt", length=30)
    assert [token for sequence in found for token in sequence] == ids
    assert {len(sequence) for sequence in found[:-1]} == {30}
    assert read(tmp_path / "a.txt", length=30, sequences=2) == found[:2]


def test_lines_are_texts_conversations_or_ids(tmp_path: Path) -> None:
    tokenizer = Tokenization.from_checkpoint(DEMO)
    chat = [{"role": "user", "content": "What is a list?"}, {"role": "assistant", "content": "A sequence."}]
    lines = [{"text": "A list."}, {"prompt": "A dict."}, {"messages": chat}, {"token_ids": [5, 6, 7]}]
    file = tmp_path / "a.jsonl"
    file.write_text("\n\n".join(map(json.dumps, lines)))
    expected = [
        tokenizer.encode("A list."),
        tokenizer.encode("A dict."),
        tokenizer.encode_chat(chat, add_generation_prompt=False),
        [5, 6, 7],
    ]
    assert read(file) == expected
    assert read(file, length=3, sequences=3) == [ids[:3] for ids in expected[:3]]


@pytest.mark.parametrize(
    ("name", "content", "found"),
    [
        ("a.txt", b"", "a.txt: nothing in it; expected texts"),
        ("a.txt", b" \n\n", "a.txt: nothing in it; expected texts"),
        ("a.txt", b"\xff\xfe\x00", "a.txt: 'utf-8' codec can't decode byte 0xff in position 0"),
        ("a.jsonl", b"", "a.jsonl: nothing in it"),
        ("a.jsonl", b'{"text": "a list"}\n{"text', "a.jsonl, line 2: no JSON ("),
        (
            "a.jsonl",
            b"[1]",
            "a.jsonl, line 1: a JSON list; expected a JSON object with text, prompt, messages",
        ),
        ("a.jsonl", b'{"content": "x"}', "line 1: the keys ['content']; expected a JSON object with text"),
        ("a.jsonl", b'{"text": 5}', "line 1: the keys ['text']; expected"),
        ("a.jsonl", b'{"token_ids": [4096]}', "line 1: [4096]; expected ids below 4096"),
        ("a.jsonl", b'{"token_ids": [-1]}', "line 1: [-1]; expected ids below 4096"),
        ("a.jsonl", b'{"token_ids": "5"}', "line 1: '5'; expected ids below 4096"),
        ("a.jsonl", b'{"token_ids": []}', "a.jsonl: nothing in it"),
        ("a.jsonl", b'{"messages": [{"role": 5}]}', "line 1: "),
        ("a.jsonl", b"[" * 100_000, "line 1: no JSON ("),
    ],
    ids=str,
)
def test_files_without_texts_are_refused_by_line(
    tmp_path: Path, name: str, content: bytes, found: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ArgumentError) as error:
        quantize(DEMO, tmp_path / "out", "w4a16", calibrate=tmp_path / name)
    assert str(error.value).startswith("calibrate: ") and found in str(error.value)
    assert [file.name for file in tmp_path.iterdir()] == [name]


def test_a_file_that_is_not_there_and_settings_out_of_range_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="no such file; expected a file of text or JSON lines"):
        quantize(DEMO, tmp_path / "out", "w4a16", calibrate=tmp_path / "nothing")
    with pytest.raises(ArgumentError, match="a folder; expected a file"):
        quantize(DEMO, tmp_path / "out", "w4a16", calibrate=tmp_path)
    file = tmp_path / "a.txt"
    file.write_text("A list.")
    with pytest.raises(ArgumentError, match="sequences: found 0; expected a whole number from 1 up"):
        Calibration(file, sequences=0)
    with pytest.raises(ArgumentError, match="sequence-length: found -1"):
        Calibration(file, length=-1)
    for damping in (-0.1, 1.5, float("nan")):
        with pytest.raises(ArgumentError, match="damping: found"):
            Solving(damping=damping)


def test_a_checkpoint_without_a_tokenizer_takes_ids_alone(llama: Path, tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text('{"token_ids": [3, 4, 5]}')
    assert read_sequences(Calibration(file), llama, 97) == [[3, 4, 5]]
