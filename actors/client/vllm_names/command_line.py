"""Flags in the ways in which vLLM's users write them: dashes or underscores, dotted keys, several values, files."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pageant.actors.client.vllm_names.engine import ENGINE
from pageant.actors.client.vllm_names.rows import Form, Row
from pageant.actors.client.vllm_names.server import SERVER
from pageant.actors.client.vllm_names.values import quantity
from pageant.actors.runtime.yaml import load_yaml
from pageant.protocol.errors import ArgumentError

CONFIG = "--config"
ALSO = {"device_memory_utilization": "gpu_memory_utilization"}
"""Second spellings of whole names."""


def spelling(name: str) -> str:
    """Return the flag of a name: `--max-model-len` of `max_model_len`."""
    return f"--{name.replace('_', '-')}"


def _flags() -> dict[str, tuple[Row, bool]]:
    found: dict[str, tuple[Row, bool]] = {}
    for row in (*ENGINE.values(), *SERVER.values()):
        for one in (spelling(row.name), *row.short):
            found[one] = row, True
        if row.form is Form.FLAG:
            found[f"--no-{row.name.replace('_', '-')}"] = row, False
    return found | {spelling(other): found[spelling(name)] for other, name in ALSO.items()}


FLAGS = _flags()
"""By each spelling, its row, and what a flag without a value says."""


def plain_flags(arguments: Sequence[str]) -> list[str]:
    """Return a command line with one spelling of each flag, and what dotted keys say as JSON after their flag.

    `--max_model_len=4k` becomes `--max-model-len=4k`, `-O3` `--optimization-level 3`, and
    `--speculative-config.method ngram` `--speculative-config '{"method": "ngram"}'`.

    Raises:
        ArgumentError: a dotted key without a value.
    """
    found: list[str] = []
    dotted: dict[str, dict[str, Any]] = {}
    rest = iter(arguments)
    for one in rest:
        if one == "--":
            return [*found, *_as_json(dotted), one, *rest]
        if re.fullmatch(r"-O=?\w+", one):
            found += ["--optimization-level", one[2:].lstrip("=")]
        elif one == "-O":
            found.append("--optimization-level")
        elif one.startswith("--help="):
            found.append("--help")
        elif one.startswith("-") and "." in one.partition("=")[0] and not _is_number(one):
            _note_dotted(dotted, one, rest)
        elif one.startswith("--"):
            name, equals, value = one.partition("=")
            found.append(name.replace("_", "-") + equals + value)
        else:
            found.append(one)
    return [*found, *_as_json(dotted)]


def _is_number(text: str) -> bool:
    return re.fullmatch(r"-?\d*\.?\d+(e-?\d+)?", text) is not None


def _note_dotted(dotted: dict[str, dict[str, Any]], one: str, rest: Iterator[str]) -> None:
    written, equals, text = one.partition("=")
    if not equals:
        value = next(rest, None)
        if value is None:
            raise ArgumentError(written, "found no value after it; expected one")
        text = value
    path, listed = (written[:-1], True) if written.endswith("+") else (written, False)
    flag, *keys = path.split(".")
    value_: Any = text.split(",") if listed else scalar(text)
    here = dotted.setdefault(flag.replace("_", "-"), {})
    for key in keys[:-1]:
        here = here.setdefault(key, {})
    if listed and isinstance(here.get(keys[-1]), list):
        value_ = here[keys[-1]] + value_
    here[keys[-1]] = value_


def _as_json(dotted: Mapping[str, Any]) -> list[str]:
    return [one for flag, value in dotted.items() for one in (flag, json.dumps(value))]


def scalar(text: str) -> Any:
    """Return a value as JSON has it, or a whole number such as `4k`; a text where it is neither."""
    try:
        return json.loads(text)
    except ValueError:
        pass
    if text in ("None", "none", ""):
        return None
    if text in ("True", "False"):
        return text == "True"
    if _is_number(text):
        return float(text)
    try:
        return quantity(text)
    except ValueError:
        return text


def value_of(row: Row, texts: Sequence[str]) -> Any:
    """Return what is written after a row's flag as a value."""
    values = [text if row.text else scalar(text) for text in texts]
    if row.form is Form.MANY:
        return values
    return values[0] if values else True


class TakenApart(NamedTuple):
    """A command line in three.

    Attributes:
        left: arguments, and the command's own options.
        given: what flags of vLLM's say, by name.
        unknown: options that are neither.
    """

    left: list[str]
    given: dict[str, Any]
    unknown: list[str]


def taken_apart(
    arguments: Sequence[str], own: Mapping[str, int], own_many: frozenset[str] = frozenset()
) -> TakenApart:
    """Return what is on a command line.

    Args:
        arguments: of `plain_flags`.
        own: the command's own options, and how many values each takes. They win over flags of the same spelling.
        own_many: those of them that may stand several times; further values after one are given to it, too.

    Raises:
        ArgumentError: a flag without its value.
    """
    left: list[str] = []
    given: dict[str, Any] = {}
    unknown: list[str] = []
    place = 0
    while place < len(arguments):
        one = arguments[place]
        place += 1
        if one == "--":
            return TakenApart([*left, one, *arguments[place:]], given, unknown)
        flag, equals, value = one.partition("=")
        if not one.startswith("-") or one == "-" or _is_number(one):
            left.append(one)
            continue
        if (whole := _whole(flag, own)) != flag:
            flag, one = whole, whole + equals + value
        if flag in own:
            row = FLAGS.get(flag, (None, True))[0]
            many = flag in own_many and row is not None and row.form is Form.MANY and not equals
            count = own[flag] if not equals else 0
            values = list(arguments[place : place + count])
            if many:
                values = _following(arguments, place)
                left += [piece for text in values for piece in (flag, text)] or [flag]
            else:
                left += [one, *values]
            place += len(values)
        elif flag in FLAGS:
            row, says = FLAGS[flag]
            texts = [value] if equals else _values(row, arguments, place)
            place += 0 if equals else len(texts)
            _note(given, row, flag, says, texts)
        else:
            unknown.append(flag)
    return TakenApart(left, given, unknown)


def _whole(flag: str, own: Mapping[str, int]) -> str:
    """A flag that is written as the beginning of exactly one, as argparse takes it; others as they are."""
    if not flag.startswith("--") or flag in own or flag in FLAGS:
        return flag
    meant = {one for one in (*own, *FLAGS) if one.startswith(flag)}
    return meant.pop() if len(meant) == 1 else flag


def _following(arguments: Sequence[str], place: int) -> list[str]:
    """The values from a place on, up to the next flag."""
    found = []
    for one in arguments[place:]:
        if one.startswith("-") and one != "-" and not _is_number(one):
            break
        found.append(one)
    return found


def _values(row: Row, arguments: Sequence[str], place: int) -> list[str]:
    if row.form is Form.FLAG:
        return []
    if row.form is Form.MANY:
        return _following(arguments, place)
    if row.form is Form.OPTIONAL:
        return _following(arguments, place)[:1]
    return list(arguments[place : place + 1])


def _note(given: dict[str, Any], row: Row, flag: str, says: bool, texts: list[str]) -> None:
    if row.form is Form.FLAG:
        if texts:
            raise ArgumentError(flag, f"found the value {texts[0]!r:.80}; expected none, or --no-{flag[2:]}")
        given[row.name] = says
        return
    if not texts and row.form is not Form.OPTIONAL:
        raise ArgumentError(flag, "found no value after it; expected one")
    value = value_of(row, texts)
    both = isinstance(value, dict) and isinstance(given.get(row.name), dict)
    given[row.name] = {**given[row.name], **value} if both else value


def with_config(arguments: Sequence[str]) -> list[str]:
    """Return a command line with the flags of its `--config FILE` before all others, which win over them.

    Raises:
        ArgumentError: no file, or several.
        TopologyError: it cannot be read.
    """
    files, rest, place = list[str](), list[str](), 0
    while place < len(arguments):
        one = arguments[place]
        if one == "--":
            rest += arguments[place:]
            break
        if one == CONFIG:
            if place + 1 == len(arguments):
                raise ArgumentError(CONFIG, "found no file after it; expected one")
            files.append(arguments[place + 1])
            place += 1
        elif one.startswith(f"{CONFIG}="):
            files.append(one.partition("=")[2])
        else:
            rest.append(one)
        place += 1
    if len(files) > 1:
        raise ArgumentError(CONFIG, f"found {len(files)} of them; expected one file")
    if not files:
        return list(arguments)
    named = {one.partition("=")[0].replace("_", "-") for one in rest if one.startswith("--")}
    written = load_yaml(Path(files[0]))
    model = written.pop("model", None) or written.pop("model_tag", None)
    named_model = "--model" in named or bool(rest and not rest[0].startswith("-"))
    flags = [one for key, value in written.items() for one in _written_flag(str(key), value, named)]
    return [*([str(model)] if model is not None and not named_model else []), *rest, *flags]


def _written_flag(key: str, value: Any, named: set[str]) -> list[str]:
    """A key of a file as a flag; nothing where the command line has it, or where it says nothing."""
    flag = spelling(key)
    opposite = f"--no-{flag[2:]}"
    if value is None or flag in named or opposite in named:
        return []
    if isinstance(value, bool):
        return [flag] if value else [opposite] if opposite in FLAGS or flag not in FLAGS else []
    if isinstance(value, list):
        return [flag, *map(str, value)] if value else []
    if isinstance(value, dict):
        return [flag, json.dumps(value)]
    return [flag, str(value)]
