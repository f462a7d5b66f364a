"""Headers of GGUF files: what is read of them, and broken ones, each refused by file, key, found and expected."""

from __future__ import annotations

import json
import shutil
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch

from pageant.models import Checkpoint, CheckpointError, resolve
from pageant.models.gguf.container import read_gguf
from pageant.models.gguf.folder import as_folder

OVERHEAD_BYTES = 1 << 20  # of Python's own objects for a header, whatever it says


def header(tensors: int = 0, values: int = 0, rest: bytes = b"", version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, values) + rest


def text(content: bytes, length: int | None = None) -> bytes:
    return struct.pack("<Q", len(content) if length is None else length) + content


def entry(dimensions: list[int], kind: int = 0, offset: int = 0, name: bytes = b"a") -> bytes:
    return (
        text(name)
        + struct.pack("<I", len(dimensions))
        + struct.pack(f"<{len(dimensions)}Q", *dimensions)
        + struct.pack("<IQ", kind, offset)
    )


def test_a_header_is_read_as_the_gguf_package_reads_it(written: Callable[..., Any]) -> None:
    path = written("qwen3_moe", {"ffn": "Q8_0", "attn": "Q5_0", "token_embd": "F16"}).path
    ours, theirs = read_gguf(path), gguf.GGUFReader(path)
    assert {name: (t.kind.name, t.shape, t.offset, t.num_bytes) for name, t in ours.tensors.items()} == {
        t.name: (t.tensor_type.name, tuple(map(int, t.shape))[::-1], t.data_offset, t.n_bytes)
        for t in theirs.tensors
    }
    for key, value in ours.metadata.items():
        expected = theirs.fields[key].contents()
        if isinstance(value, str | int | float):
            assert value == expected
        elif isinstance(expected[0], str):
            assert value.texts() == expected
        else:
            assert value.numbers().tolist() == expected


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "an empty file; expected a GGUF file"),
        (b"\x80\x02ckpt\n", "7 bytes that begin with b'\\x80\\x02ck'; expected a GGUF file"),
        (b"GGUF", "4 bytes that begin with b'GGUF'"),
        (header(version=1), "version is 1; expected 2 or 3 in little endian"),
        (header(version=3 << 24), "version is 3 in big endian; expected 2 or 3 in little endian"),
        (
            b"GGUF" + struct.pack("<IQ", 3, 0),
            "metadata count is 8 bytes; expected no more than the 0 that are left",
        ),
        (
            header(tensors=10**9),
            "tensor count is 1000000000; expected no more than the 8 bytes hold that follow",
        ),
        (
            header(values=2**63),
            "metadata count is 9223372036854775808; expected no more than the 0 bytes hold",
        ),
        (
            header(values=1, rest=text(b"", 2**60) + bytes(40)),
            "length of key 0 of 1 is 1152921504606846976; expected 65536 bytes at most",
        ),
        (
            header(values=1, rest=text(b"k") + struct.pack("<I", 8) + text(b"", 2**60) + bytes(40)),
            "length of k is 1152921504606846976; expected",
        ),
        (
            header(values=1, rest=text(b"k") + struct.pack("<IIQ", 9, 8, 2**60) + bytes(40)),
            "k is 1152921504606846976; expected no more than the 40 bytes hold that follow",
        ),
        (
            header(values=1, rest=text(b"k") + struct.pack("<IIQ", 9, 8, 3) + text(b"", 2**60) + bytes(24)),
            "k[1] is cut off; expected 3 strings in the file (truncated)",
        ),
        (
            header(values=1, rest=text(b"k") + struct.pack("<IIQ", 9, 12, 2**61) + bytes(40)),
            "k is 18446744073709551616 bytes; expected no more than the 40 that are left (truncated)",
        ),
        (
            header(values=1, rest=text(b"k") + struct.pack("<IIQ", 9, 9, 1) + bytes(40)),
            "k is an array of arrays",
        ),
        (
            header(values=1, rest=text(b"k") + struct.pack("<I", 99) + bytes(40)),
            "type of k is 99; expected a type",
        ),
        (
            header(values=1, rest=text(b"k") + struct.pack("<IB", 7, 9) + bytes(9)),
            "k is the byte 9; expected a truth",
        ),
        (header(values=1, rest=text(b"\xff\xfe") + bytes(40)), "key 0 of 1 is b'\\xff\\xfe'; expected UTF-8"),
        (
            header(values=2, rest=2 * (text(b"k") + struct.pack("<IB", 0, 1)) + bytes(9)),
            "k is there twice; expected each key once",
        ),
        (header(tensors=1, rest=entry([]) + bytes(40)), "number of dimensions of a is 0; expected 1 to 4"),
        (
            header(tensors=1, rest=entry([1] * 9) + bytes(40)),
            "number of dimensions of a is 9; expected 1 to 4",
        ),
        (
            header(tensors=1, rest=entry([2**32, 2**32]) + bytes(64)),
            "a is bytes 96 to 73786976294838206560 of a file of 129 (truncated); expected bytes of the file",
        ),
        (
            header(tensors=1, rest=entry([0, 4]) + bytes(40)),
            "shape of a is [4, 0]; expected rows of whole blocks",
        ),
        (
            header(tensors=1, rest=entry([48], kind=2) + bytes(40)),
            "shape of a is [48]; expected rows of whole blocks",
        ),
        (
            header(tensors=1, rest=entry([32], kind=77) + bytes(99)),
            "type of a is 77; expected a type that is known",
        ),
        (header(tensors=1, rest=entry([4], offset=2**63) + bytes(40)), "a is bytes 9223372036854775"),
        (
            header(tensors=1, rest=entry([4], offset=5) + bytes(99)),
            "offset of a is 5; expected a multiple of 32",
        ),
        (header(tensors=2, rest=2 * entry([4]) + bytes(99)), "a is there twice; expected each tensor once"),
        (
            header(values=1, rest=text(b"general.alignment") + struct.pack("<II", 4, 24) + bytes(20)),
            "general.alignment is 24; expected a power of two",
        ),
        (header(), "no general.architecture; expected it in the file's metadata"),
        (
            header(
                values=1,
                rest=text(b"general.architecture") + struct.pack("<I", 8) + text(b"mamba") + bytes(9),
            ),
            "general.architecture is 'mamba'; expected one of llama, qwen2",
        ),
    ],
)
def test_broken_headers_are_refused(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    tracemalloc.start()
    with pytest.raises(CheckpointError) as error:
        resolve(str(path))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert str(error.value).startswith(f"{path}: ") and said in str(error.value), str(error.value)
    assert peak < OVERHEAD_BYTES, "nothing is allocated by what a header says"


def test_a_file_that_is_cut_anywhere_is_refused(written: Callable[..., Any], tmp_path: Path) -> None:
    whole = written("qwen2", "Q8_0").path.read_bytes()
    path = tmp_path / "cut.gguf"
    for share in range(1, 40):
        path.write_bytes(whole[: len(whole) * share // 40])
        with pytest.raises(CheckpointError, match="expected"):
            as_folder(path)


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (
            lambda w: w.kv_data[0].pop("qwen2.block_count"),
            "no qwen2.block_count; expected it in the file's metadata",
        ),
        (
            lambda w: w.kv_data[0]["qwen2.block_count"].__setattr__("value", 10**6),
            "num_hidden_layers is 1000000",
        ),
        (
            lambda w: w.kv_data[0]["qwen2.embedding_length"].__setattr__("value", 0),
            "qwen2.embedding_length is 0",
        ),
        (
            lambda w: w.kv_data[0]["qwen2.attention.head_count"].__setattr__("value", 5),
            "is 2; expected a divisor of 5",
        ),
        (lambda w: w.add_rope_scaling_type(gguf.RopeScalingType.YARN), "no qwen2.rope.scaling.factor"),
        (
            lambda w: w.add_string("qwen2.rope.scaling.type", "moebius"),
            "qwen2.rope.scaling.type is 'moebius'",
        ),
        (lambda w: w.add_float32("qwen2.rope.freq_base", float("nan")), "qwen2.rope.freq_base is nan"),
        (
            lambda w: w.add_value_length(64),
            "qwen2.attention.value_length is 64; expected 16, the size of keys",
        ),
    ],
)
def test_metadata_that_makes_no_sense_is_refused(written: Callable[..., Any], edit: Any, said: str) -> None:
    def change(writer: Any) -> None:
        if "freq_base" in said:
            del writer.kv_data[0]["qwen2.rope.freq_base"]
        edit(writer)

    file = written("qwen2", "F16", change)
    with pytest.raises(CheckpointError) as error:
        file.checkpoint().check()
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("name", "kind", "said"),
    [
        ("blk.1.ffn_up.weight", "missing", "missing tensors: blk.1.ffn_up.weight"),
        ("blk.0.surprise.weight", "unknown", "unknown tensors: blk.0.surprise.weight"),
    ],
)
def test_other_tensors_than_the_architectures_are_refused(
    written: Callable[..., Any], name: str, kind: str, said: str
) -> None:
    def change(writer: Any) -> None:
        add = writer.add_tensor

        def renamed(tensor: str, *arguments: Any, **options: Any) -> None:
            if not (kind == "missing" and tensor == name):
                add(tensor, *arguments, **options)

        writer.add_tensor = renamed
        if kind == "unknown":
            add(name, np.zeros((32, 32), np.float32))

    with pytest.raises(CheckpointError) as error:
        written("qwen2", "F32", change).checkpoint().check()
    assert said in str(error.value)


def test_types_that_cannot_be_read_are_named(written: Callable[..., Any]) -> None:
    def change(writer: Any) -> None:
        kind = gguf.GGMLQuantizationType.IQ2_XXS
        writer.add_tensor("blk.9.x", np.zeros((4, 66), np.uint8), raw_dtype=kind)

    with pytest.raises(CheckpointError, match=r"blk\.9\.x has type IQ2_XXS; expected one of F32, F16"):
        as_folder(written("qwen2", "F32", change).path)


def test_shards_are_one_model(written: Callable[..., Any], tmp_path: Path, pages: Any) -> None:
    file = written("llama", "Q8_0")
    reader = gguf.GGUFReader(file.path)
    paths = [tmp_path / f"model-0000{number}-of-00002.gguf" for number in (1, 2)]
    for number, path in enumerate(paths):
        writer = gguf.GGUFWriter(path, "llama")
        if number == 0:
            for field in reader.fields.values():
                if not field.name.startswith("GGUF.") and field.name != "general.architecture":
                    sub = field.types[-1] if len(field.types) > 1 else None
                    writer.add_key_value(field.name, field.contents(), field.types[0], sub)
        writer.add_uint16("split.no", number)
        writer.add_uint16("split.count", 2)
        for index, tensor in enumerate(reader.tensors):
            if index % 2 == number:
                writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    whole, parted = file.load(), Checkpoint(paths[0])
    from pageant import kernels
    from pageant.models.loading import load_decoder

    decoder = load_decoder(parted, "float32", kernels=kernels.load("reference"))
    for ours, theirs in zip(decoder.tensors(), whole.tensors(), strict=True):
        assert torch.equal(ours, theirs)
    assert as_folder(tmp_path) == parted.path, "a folder of one model's shards is that model"
    with pytest.raises(
        CheckpointError, match=r"shard 2 of 2; expected the first one. Name model-00001-of-00002"
    ):
        as_folder(paths[1])
    paths[1].unlink()
    with pytest.raises(
        CheckpointError, match=r"model-00002-of-00002.gguf: no such file; expected all 2 shards"
    ):
        as_folder(paths[0])


def test_a_folder_with_one_file_is_that_file_and_one_with_two_is_refused(
    written: Callable[..., Any], tmp_path: Path
) -> None:
    file = written("qwen2", "Q8_0")
    shutil.copy(file.path, tmp_path / "a.gguf")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen2"}))  # as some repositories have it
    assert Checkpoint(resolve(str(tmp_path))).architecture.name == "Qwen2ForCausalLM"
    shutil.copy(file.path, tmp_path / "b.gguf")
    with pytest.raises(
        CheckpointError, match=r"2 models \(a\.gguf, b\.gguf\); expected one\. Name the file itself"
    ):
        resolve(str(tmp_path))
    with pytest.raises(CheckpointError, match=r"no such file; expected a folder with config\.json"):
        resolve(str(tmp_path / "c.gguf"))


def test_a_file_that_changes_is_read_anew(written: Callable[..., Any], tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    shutil.copy(written("qwen2", "Q8_0").path, path)
    first = as_folder(path)
    assert as_folder(path) == first
    shutil.copy(written("qwen3", "Q8_0").path, path)
    assert as_folder(path) != first and Checkpoint(path).architecture.name == "Qwen3ForCausalLM"
