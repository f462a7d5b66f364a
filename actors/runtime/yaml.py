"""YAML files of topologies: read safely, with `include:` merged in.

A file with `include: base.yaml` (or a list) is laid over what it includes, mapping by mapping. Paths are
relative to the file that names them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from pageant.protocol.errors import TopologyError

BYTES_MAX = 1 << 20
# Keys and values once aliases are expanded.
NODES_MAX = 100_000
# Depth of includes.
INCLUDES_MAX = 16


class _Loader(yaml.SafeLoader):
    """Refuses a duplicate key; plain YAML would take its last value."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":  # `<<`
                continue
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str):
                raise TopologyError(_place(key_node), f"found the key {key!r}; expected a name")
            if key in seen:
                raise TopologyError(_place(key_node), f"the key {key!r} stands twice")
            seen.add(key)
        return super().construct_mapping(node, deep)


def _place(node: yaml.Node) -> str:
    return f"{node.start_mark.name}:{node.start_mark.line + 1}"


def load_yaml(path: Path, trail: tuple[Path, ...] = ()) -> dict[str, Any]:
    """Return a YAML file as plain data, with its includes merged in.

    Raises:
        TopologyError: it is unreadable, no YAML, no mapping, or a file that includes itself.
    """
    path = path.resolve()
    if len(trail) >= INCLUDES_MAX:
        raise TopologyError(f"{trail[-1].name}: include", f"more than {INCLUDES_MAX} files deep")
    if path in trail:
        chain = " -> ".join(file.name for file in (*trail, path))
        raise TopologyError(f"{trail[-1].name}: include", f"a topology includes itself: {chain}")
    data = _parse(path)
    includes = data.pop("include", None)
    merged: dict[str, Any] = {}
    for include in includes if isinstance(includes, list) else [] if includes is None else [includes]:
        if not isinstance(include, str):
            raise TopologyError(f"{path.name}: include", f"found {include!r}; expected the path of a file")
        merged = merge(merged, load_yaml(path.parent / include, (*trail, path)))
    return merge(merged, data)


def _parse(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            read = file.read(BYTES_MAX + 1)
        if len(read) > BYTES_MAX:
            raise TopologyError(str(path), f"has more than the {BYTES_MAX} bytes that are taken")
        text = read.decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise TopologyError(str(path), f"cannot be read: {reason}") from None
    try:
        loader = _Loader(text)
        loader.name = path.name
        root = loader.get_single_node()
        if root is not None and _size(root, {}) > NODES_MAX:
            raise TopologyError(path.name, f"its aliases write out to more than {NODES_MAX} values")
        data = loader.construct_document(root) if root is not None else None
    except TopologyError:
        raise
    except Exception as error:  # PyYAML raises whatever a value's constructor does: int("abc"), date(0, 0, 0)
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark is not None else ""
        problem = getattr(error, "problem", None) or f"{type(error).__name__}: {error}"
        raise TopologyError(f"{path.name}{line}", f"no YAML: {problem}") from None
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise TopologyError(path.name, f"found {type(data).__name__}; expected a mapping of keys")
    return data


def _size(node: yaml.Node, known: dict[int, int]) -> int:
    """Return the number of values of a node once its aliases are expanded; more than `NODES_MAX` if it contains
    itself.
    """
    if id(node) not in known:
        known[id(node)] = NODES_MAX + 1
        children: list[yaml.Node] = []
        if isinstance(node, yaml.MappingNode):
            children = [child for pair in node.value for child in pair]
        elif isinstance(node, yaml.SequenceNode):
            children = node.value
        known[id(node)] = 1 + sum(_size(child, known) for child in children)
    return known[id(node)]


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Lay `over` over `base`: mappings are merged, anything else is replaced."""
    merged = dict(base)
    for key, value in over.items():
        below = merged.get(key)
        if isinstance(below, Mapping) and isinstance(value, Mapping):
            merged[key] = merge(below, value)
        else:
            merged[key] = value
    return merged
