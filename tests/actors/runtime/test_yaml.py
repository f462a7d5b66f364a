"""YAML files: read safely, with their includes."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pageant.actors.runtime.topology import parse, read
from pageant.actors.runtime.yaml import BYTES_MAX, _parse, load_yaml, merge
from pageant.protocol.errors import TopologyError

LAUGHS = "a: &a [1,1,1,1,1,1,1,1,1]\n" + "".join(
    f"{name}: &{name} [{','.join(['*' + before] * 9)}]\n"
    for before, name in zip("abcdefghijkl", "bcdefghijklm", strict=True)
)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: 2\na: 3\n", "t.yaml:3: the key 'a' stands twice"),
        ("nodes:\n  x: {p: 1, p: 2}\n", "t.yaml:2: the key 'p' stands twice"),
        ("3: x\n", "t.yaml:1: found the key 3; expected a name"),
        ("a: {true: 1}\n", "t.yaml:1: found the key True; expected a name"),
        ("? [a, b]\n: 1\n", "t.yaml:1: found the key ['a', 'b']"),
        ("- a\n- b\n", "t.yaml: found list; expected a mapping of keys"),
        ("just text", "t.yaml: found str; expected a mapping"),
        ("a: [1, 2\nb: 3\n", "t.yaml:2: no YAML"),
        ("a: b: c\n", "t.yaml:1: no YAML: mapping values are not allowed here"),
        ("\ta: 1\n", "t.yaml:1: no YAML"),
        ("a: 1\n---\nb: 2\n", "no YAML: but found another document"),
        ("a: *nowhere\n", "no YAML: found undefined alias 'nowhere'"),
        ("a: !!python/object/apply:os.system ['true']\n", "no YAML: could not determine a constructor"),
        ("a: !!int abc\n", "no YAML: ValueError"),
        ("a: 2001-99-99\n", "no YAML: ValueError: month must be in 1..12"),
        ("a: \x00\n", "no YAML: ReaderError"),
        ("a: " + "[" * 5000 + "]" * 5000, "no YAML: RecursionError"),
        ("a: &a [*a]\n", "its aliases write out to more than"),
        (LAUGHS, "its aliases write out to more than"),
        ("include: 3\n", "t.yaml: include: found 3; expected the path of a file"),
        ("include: [3]\n", "t.yaml: include: found 3; expected the path of a file"),
        ("include: {a: b}\n", "t.yaml: include: found {'a': 'b'}"),
        ("include: t.yaml\n", "t.yaml: include: a topology includes itself: t.yaml -> t.yaml"),
        ("include: nowhere.yaml\n", "nowhere.yaml: cannot be read: No such file or directory"),
        ("include: .\n", "cannot be read: Is a directory"),
    ],
    ids=lambda value: repr(value)[:50],
)
def test_a_file_that_cannot_be_used_says_where_and_why(tmp_path, text, message):
    path = tmp_path / "t.yaml"
    path.write_text(text)
    with pytest.raises(TopologyError) as caught:
        load_yaml(path)
    assert message in str(caught.value)
    assert len(str(caught.value)) < 1000


def test_files_of_other_encodings_or_sizes_are_refused(tmp_path):
    path = tmp_path / "t.yaml"
    path.write_bytes(b"a: \xff\xfe")
    with pytest.raises(TopologyError, match="cannot be read: not UTF-8"):
        load_yaml(path)
    path.write_bytes(b"#" + "é".encode() * BYTES_MAX)
    with pytest.raises(TopologyError, match="has more than the"):
        load_yaml(path)


def test_a_byte_order_mark_and_nothing_at_all_are_taken(tmp_path):
    path = tmp_path / "t.yaml"
    path.write_bytes(b"\xef\xbb\xbfa: 1\n")
    assert load_yaml(path) == {"a": 1}
    for empty in ("", "# only a comment\n", "include:\n"):
        path.write_text(empty)
        assert load_yaml(path) == {}


def test_includes_are_laid_under_what_includes_them(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "base.yaml").write_text("include: deeper.yaml\nwidth: 1\nactors: {a: {count: 2}}\n")
    (tmp_path / "sub" / "deeper.yaml").write_text("width: 0\nratio: 3\n")
    (tmp_path / "other.yaml").write_text("actors: {a: {node: x}}\n")
    top = tmp_path / "top.yaml"
    top.write_text("include: [sub/base.yaml, other.yaml]\nwidth: 9\n")
    assert load_yaml(top) == {"width": 9, "ratio": 3, "actors": {"a": {"count": 2, "node": "x"}}}
    assert read(top) == parse(load_yaml(top))


def test_a_circle_of_files_is_named(tmp_path):
    for name, other in (("a", "b"), ("b", "c"), ("c", "a")):
        (tmp_path / f"{name}.yaml").write_text(f"include: {other}.yaml\n")
    with pytest.raises(TopologyError, match=r"includes itself: a.yaml -> b.yaml -> c.yaml -> a.yaml"):
        load_yaml(tmp_path / "a.yaml")


def test_a_chain_of_files_has_an_end(tmp_path):
    for index in range(40):
        (tmp_path / f"{index}.yaml").write_text(f"include: {index + 1}.yaml\n")
    with pytest.raises(TopologyError, match="more than 16 files deep"):
        load_yaml(tmp_path / "0.yaml")


def test_aliases_that_stay_small_are_taken(tmp_path):
    path = tmp_path / "t.yaml"
    path.write_text("nodes:\n  a: &gpu {process: true}\n  b: *gpu\n  c: {<<: *gpu, device: x}\n")
    assert load_yaml(path)["nodes"]["c"] == {"process": True, "device": "x"}


def test_merging_replaces_everything_but_mappings():
    assert merge({"a": {"x": 1}, "b": [1]}, {"a": {"y": 2}, "b": [2], "c": 3}) == {
        "a": {"x": 1, "y": 2},
        "b": [2],
        "c": 3,
    }


@settings(max_examples=200)
@given(text=st.text(st.sampled_from("ab:- \n[]{}&*!|>'\"%@`0123456789.,#?<=~éï\t"), max_size=60))
def test_any_text_is_a_topology_or_a_topology_error(tmp_path_factory, text):
    path = tmp_path_factory.getbasetemp() / "fuzz.yaml"
    path.write_text(text)
    try:
        parse(_parse(path))
    except TopologyError as error:
        assert str(error)
