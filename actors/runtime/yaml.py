"""YAML files of topologies: read safely, with `include:` taken in.

A file that says `include: base.yaml` (or a list) is laid over what it includes, mapping by mapping. Paths
are relative to the file that names them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from pageant.protocol.errors import TopologyError

BYTES_MAX = 1 << 20


class _Loader(yaml.SafeLoader):
    """Refuses a key that stands twice, which plain YAML would take the last of."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
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
    """A YAML file as plain data, with its includes merged in.

    Raises:
        TopologyError: unreadable, no YAML, no mapping, or a file that includes itself.
    """
    path = path.resolve()
    if path in trail:
        chain = " -> ".join(file.name for file in (*trail, path))
        raise TopologyError(f"{trail[-1].name}: include", f"a topology includes itself: {chain}")
    data = _parse(path)
    includes = data.pop("include", ())
    merged: dict[str, Any] = {}
    for include in [includes] if isinstance(includes, str) else includes:
        if not isinstance(include, str):
            raise TopologyError(f"{path.name}: include", f"found {include!r}; expected the path of a file")
        merged = merge(merged, load_yaml(path.parent / include, (*trail, path)))
    return merge(merged, data)


def _parse(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise TopologyError(str(path), f"cannot be read: {reason}") from None
    if len(text) > BYTES_MAX:
        raise TopologyError(str(path), f"has {len(text)} characters; at most {BYTES_MAX} are taken")
    loader = _Loader(text)
    loader.name = path.name
    try:
        data = loader.get_single_data()
    except (yaml.YAMLError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark is not None else ""
        raise TopologyError(f"{path.name}{line}", f"no YAML: {getattr(error, 'problem', error)}") from None
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise TopologyError(path.name, f"found {type(data).__name__}; expected a mapping of keys")
    return data


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`over` laid over `base`: mappings are merged, anything else is replaced."""
    merged = dict(base)
    for key, value in over.items():
        below = merged.get(key)
        if isinstance(below, Mapping) and isinstance(value, Mapping):
            merged[key] = merge(below, value)
        else:
            merged[key] = value
    return merged
