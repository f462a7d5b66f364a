"""Joining of a group: members that would compute another model, or otherwise, are refused by the field's name."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

from pageant.actors.executor.group_shape import GroupShape
from pageant.actors.executor.groups import joining
from pageant.actors.executor.groups.joining import check_alike, check_cores, checkpoint_digest, describe
from pageant.actors.executor.groups.meeting import arranged
from pageant.actors.executor.options import ExecutorOptions, load_weights
from pageant.protocol.errors import ConfigurationError
from pageant.protocol.ranks import Fingerprint, RankReady

DEMO = Path(__file__).parents[4] / "models" / "demo"
ALIKE = {
    **{"pageant": "1", "torch": "2.13", "kernels": "cpu avx512", "dtype": "bfloat16", "quantization": ""},
    **{"checkpoint": "00", "members": 2},
}


def rank(number: int, host: str = "here", address: str = "127.0.0.1", **fields: object) -> RankReady:
    fingerprint = Fingerprint(**(ALIKE | fields))
    return RankReady(rank=number, fingerprint=fingerprint, host=host, weight_bytes=1, address=address)


def test_every_field_of_the_fingerprint_is_refused_by_its_name() -> None:
    check_alike([rank(0), rank(1)])
    for field in msgspec.structs.fields(Fingerprint):
        other = 3 if field.name == "members" else "other"
        expected = (
            f"executor/1 has {field.name} {other!r}; expected {ALIKE[field.name]!r}, which executor/0 has"
        )
        with pytest.raises(ConfigurationError) as caught:
            check_alike([rank(0), rank(1, **{field.name: other})])
        assert expected in str(caught.value)


def test_a_member_in_another_ones_place_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="executor/1 says that it is rank 2; expected rank 1"):
        check_alike([rank(0), rank(2)])


@dataclass(frozen=True)
class Member:
    """A member as it describes itself, with weights that it has really loaded."""

    options: ExecutorOptions

    def described(self, number: int) -> RankReady:
        return describe(self.options, number, load_weights(self.options, number), [])


def member(model: Path = DEMO, **options: object) -> Member:
    settings = {"dtype": "float32", "kernels": "reference", "tensor_parallel": 2, "threads": 1}
    return Member(msgspec.convert({"model": str(model), **settings, **options}, ExecutorOptions))


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"dtype": "bfloat16"}, "dtype 'bfloat16'; expected 'float32'"),
        ({"quantization": "int8"}, "quantization 'int8'; expected ''"),
        ({"tensor_parallel": 4}, "members 4; expected 2"),
        ({"kernels": "cpu"}, "kernels 'cpu "),
    ],
)
def test_members_that_loaded_otherwise_are_refused(options: dict[str, object], field: str) -> None:
    leader, other = member(), member(**options)
    check_alike([leader.described(0), leader.described(1)])
    with pytest.raises(ConfigurationError) as caught:
        check_alike([leader.described(0), other.described(1)])
    assert f"executor/1 has {field}" in str(caught.value)


def _other_norm(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"rms_norm_eps": 1e-4}))


def _other_weights(folder: Path) -> None:
    """Change all numbers, and neither the header nor the size, as another fine-tune does."""
    path = folder / "model.safetensors"
    content = bytearray(path.read_bytes())
    first = 8 + int.from_bytes(content[:8], "little")
    content[first:] = bytes(byte ^ 1 for byte in content[first:])
    path.write_bytes(content)


def _other_header(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes().replace(b'"format":"pt"', b'"format":"tp"', 1))


@pytest.mark.parametrize("edit", [_other_norm, _other_weights, _other_header])
def test_a_checkpoint_with_one_file_edited_on_one_rank_is_refused(
    tmp_path: Path, edit: Callable[[Path], None]
) -> None:
    folder = tmp_path / "copy"
    folder.mkdir()
    for name in ("config.json", "model.safetensors"):
        shutil.copy(DEMO / name, folder / name)
    assert checkpoint_digest(folder) == checkpoint_digest(DEMO)
    edit(folder)
    digests = [checkpoint_digest(one) for one in (DEMO, folder)]
    with pytest.raises(ConfigurationError, match="executor/1 has checkpoint "):
        check_alike([rank(0, checkpoint=digests[0]), rank(1, checkpoint=digests[1])])


def _on_two_hosts(*addresses: str) -> list[RankReady]:
    hosts = ("here", "there")
    return [
        rank(number, host=host, address=address)
        for number, (host, address) in enumerate(zip(hosts, addresses, strict=True))
    ]


@pytest.mark.parametrize("wanted", ["auto", "gloo"])
def test_members_on_several_hosts_meet_by_gloo_at_their_addresses(
    wanted: str, caplog: pytest.LogCaptureFixture
) -> None:
    with arranged(wanted, "executor#1", _on_two_hosts("10.0.0.1", "10.0.0.2"), GroupShape(2, 1)) as forms:
        assert [(one.collectives, one.address, one.num_near) for one in forms] == [
            ("gloo", "10.0.0.1", 1),
            ("gloo", "10.0.0.2", 1),
        ]
    assert not caplog.records


def test_a_group_that_exchanges_tensors_over_a_public_address_is_warned_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with arranged("auto", "executor#1", _on_two_hosts("10.0.0.1", "8.8.4.4"), GroupShape(2, 1)):
        pass
    (record,) = caplog.records
    assert "executor/1 of executor#1 exchanges tensors at 8.8.4.4" in record.getMessage()


@pytest.mark.parametrize(
    ("wanted", "addresses", "complaint"),
    [
        (
            "shm",
            ("10.0.0.1", "10.0.0.2"),
            "collectives is 'shm', but .* are on 2 hosts; expected auto or gloo",
        ),
        ("auto", ("10.0.0.1", "127.0.0.1"), "executor/1 has no address that others reach"),
    ],
)
def test_members_on_several_hosts_that_cannot_meet_are_refused(
    wanted: str, addresses: tuple[str, str], complaint: str
) -> None:
    with (
        pytest.raises(ConfigurationError, match=complaint),
        arranged(wanted, "executor#1", _on_two_hosts(*addresses), GroupShape(2, 1)),
    ):
        pass


def test_more_ranks_than_cores_are_allowed_and_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    options = member(threads=len(os.sched_getaffinity(0))).options
    check_cores([rank(0)], options)
    assert not caplog.records
    check_cores([rank(0), rank(1)], options)
    (record,) = caplog.records
    assert record.levelname == "WARNING" and record.name == joining.log.name
    assert "2 executors of a group have" in record.getMessage()
