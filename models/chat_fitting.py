"""Conversations made fit for a chat template, by traits that are found by rendering a few short ones with it.

Clients send several system messages, some of them late, several turns of one role in a row, calls whose arguments are
no JSON, and turns without content. Templates differ in which of these they take: some raise, some leave a message out.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Message = Mapping[str, Any]
Render = Callable[[Sequence[Message]], str]

_SEPARATOR = "\n\n"
_ARGUMENTS = "PROBEARGUMENTS"
_SHORT_ID_LENGTH = 9
"""Letters and digits of a call's id: Mistral's templates know no other ids."""
_CALL_ID, _LONG_CALL_ID = "probe0000", "call_probe-0000000000"
_SHORT_ID = re.compile(rf"[A-Za-z0-9]{{{_SHORT_ID_LENGTH}}}")


@dataclass(frozen=True)
class TemplateTraits:
    """Traits of a chat template: what it takes.

    Attributes:
        system: a system message at the front.
        leading_systems: several of them there.
        late_systems: a system message after other turns.
        repeated_roles: two turns of the user's, or of the assistant's, in a row.
        text_arguments: the arguments of a past call as a text, which is shown as it is.
        missing_content: an assistant's turn that has calls, and no content.
        long_call_ids: ids of calls that are not of nine letters and digits.
    """

    system: bool = True
    leading_systems: bool = True
    late_systems: bool = True
    repeated_roles: bool = True
    text_arguments: bool = True
    missing_content: bool = True
    long_call_ids: bool = True


def find_traits(render: Render) -> TemplateTraits:
    """Return the traits of the template that `render` renders with.

    Args:
        render: raises a `ValueError` where the template refuses the messages, or fails.
    """
    if _rendered(render, [_turn("user", 0)]) is None:
        return TemplateTraits()
    history = [_turn("user", 0), _turn("assistant", 1), _turn("user", 2)]
    shows_all = _shows(render, history)

    def takes(*roles: str) -> bool:
        turns = [_turn(role, place) for place, role in enumerate(roles)]
        return _shows(render, turns) if shows_all else _rendered(render, turns) is not None

    return TemplateTraits(
        system=takes("system", "user"),
        leading_systems=takes("system", "system", "user"),
        late_systems=takes("system", "user", "assistant", "system", "user"),
        repeated_roles=takes("user", "user") and takes("user", "assistant", "assistant", "user"),
        text_arguments=_takes_text_arguments(render),
        missing_content=_takes_missing_content(render),
        long_call_ids=_takes_long_call_ids(render),
    )


def fit(messages: Sequence[Message], traits: TemplateTraits) -> list[Message]:
    """Return the messages in a form that a template of these traits takes; they are not changed themselves.

    Args:
        messages: with contents that are texts, or missing.
    """
    fitted = _with_systems_merged(list(messages), traits)
    if not traits.repeated_roles:
        fitted = _with_repeats_merged(fitted)
    fitted = [_with_calls_fitted(message, traits) for message in fitted]
    return fitted if traits.long_call_ids else [_with_short_ids(message) for message in fitted]


# Probing.


def _turn(role: str, place: int) -> dict[str, Any]:
    return {"role": role, "content": f"PROBE{place}{role.upper()}"}


def _rendered(render: Render, messages: Sequence[Message]) -> str | None:
    try:
        return render(messages)
    except ValueError:
        return None


def _shows(render: Render, messages: Sequence[Message]) -> bool:
    text = _rendered(render, messages)
    return text is not None and all(message["content"] in text for message in messages)


def _called(arguments: Any, call_id: str = _CALL_ID, **fields: Any) -> list[Message]:
    """Return a conversation in which a tool was called."""
    call = {"id": call_id, "type": "function", "function": {"name": "probe", "arguments": arguments}}
    return [
        _turn("user", 0),
        {"role": "assistant", **fields, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": call_id, "content": "PROBE2TOOL"},
    ]


def _takes_text_arguments(render: Render) -> bool:
    text = _rendered(render, _called(_ARGUMENTS, content=""))
    if text is None:
        return _rendered(render, _called({}, content="")) is None
    return f'"{_ARGUMENTS}"' not in text


def _takes_missing_content(render: Render) -> bool:
    if _rendered(render, _called({})) is not None:
        return True
    return _rendered(render, _called({}, content="")) is None


def _takes_long_call_ids(render: Render) -> bool:
    if _rendered(render, _called({}, _LONG_CALL_ID, content="")) is not None:
        return True
    return _rendered(render, _called({}, content="")) is None


# Fitting.


def _with_systems_merged(messages: list[Message], traits: TemplateTraits) -> list[Message]:
    num_leading = next((i for i, one in enumerate(messages) if one["role"] != "system"), len(messages))
    systems, rest = messages[:num_leading], messages[num_leading:]
    if not (traits.late_systems and traits.system):
        systems += [one for one in rest if one["role"] == "system"]
        rest = [one for one in rest if one["role"] != "system"]
    if not systems:
        return rest
    if traits.system:
        return [*([_merged(systems)] if not traits.leading_systems else systems), *rest]
    first = next((place for place, one in enumerate(rest) if one["role"] == "user"), None)
    if first is None:
        return [{**_merged(systems), "role": "user"}, *rest]
    rest[first] = {**rest[first], "content": _merged([*systems, rest[first]])["content"]}
    return rest


def _with_repeats_merged(messages: list[Message]) -> list[Message]:
    merged: list[Message] = []
    for message in messages:
        if merged and message["role"] == merged[-1]["role"] and message["role"] in ("user", "assistant"):
            merged[-1] = _merged([merged[-1], message])
        else:
            merged.append(message)
    return merged


def _merged(messages: Sequence[Message]) -> Message:
    """Return one message that says what several say; their calls and thoughts are put together too."""
    if len(messages) == 1:
        return messages[0]
    merged = {key: value for one in reversed(messages) for key, value in one.items()}
    texts = [one["content"] for one in messages if one.get("content")]
    merged["content"] = _SEPARATOR.join(texts)
    thoughts = [one["reasoning_content"] for one in messages if one.get("reasoning_content")]
    if thoughts:
        merged["reasoning_content"] = _SEPARATOR.join(thoughts)
    calls = [call for one in messages for call in one.get("tool_calls", ())]
    if calls:
        merged["tool_calls"] = calls
    return merged


def _with_calls_fitted(message: Message, traits: TemplateTraits) -> Message:
    if message["role"] != "assistant":
        return message
    fitted = dict(message)
    if fitted.get("content") is None and not traits.missing_content:
        fitted["content"] = ""
    if fitted.get("tool_calls") and not traits.text_arguments:
        fitted["tool_calls"] = [_with_mapping(call) for call in fitted["tool_calls"]]
    return fitted


def _with_short_ids(message: Message) -> Message:
    fitted = dict(message)
    if fitted.get("tool_calls"):
        fitted["tool_calls"] = [{**call, "id": _short(call["id"])} for call in fitted["tool_calls"]]
    if fitted.get("tool_call_id") is not None:
        fitted["tool_call_id"] = _short(fitted["tool_call_id"])
    return fitted


def _short(call_id: str) -> str:
    """Return a short id; the same for a call and for what came of it."""
    if _SHORT_ID.fullmatch(call_id):
        return call_id
    return hashlib.blake2b(call_id.encode(), digest_size=8).hexdigest()[:_SHORT_ID_LENGTH]


def _with_mapping(call: Mapping[str, Any]) -> Mapping[str, Any]:
    function = call["function"]
    if isinstance(function["arguments"], Mapping):
        return call
    return {**call, "function": {**function, "arguments": {}}}
