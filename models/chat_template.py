"""Chat messages to text, by the template that a checkpoint brings along.

A chat template is a program by whoever made the checkpoint, so it runs in jinja's immutable sandbox: no
underscore attributes, nothing that mutates, and only plain data (never our objects) to look at. The text
that it writes is bounded by `RENDERED_CHARS_MAX`, and so is what one repetition or power may build; `range`
is bounded by jinja's own 100 000. Not bounded here: time, and strings that it concatenates or pads on the
way; for those there are the deadline of the ask and the limits of the tokenizer's process.

What a template sees is what transformers' `apply_chat_template` shows it (oracle: transformers 5.23), with
two differences. The clock comes in by the door, and `lipsum` and `random` are left out, so that the same
messages always give the same prompt.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

import jinja2
import jinja2.ext
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.parser import Parser
from jinja2.runtime import Context, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from pageant.models.chat_fitting import Message, TemplateTraits, find_traits, fit

RENDERED_CHARS_MAX = 10_000_000

_RESERVED = ("messages", "tools", "add_generation_prompt")
# One thing under three names: the standard one first, the last two for templates that read the older ones.
_REASONING_FIELDS = ("reasoning_content", "thinking", "reasoning")
_INSTEAD_OF_CONTENT = ("tool_calls", "function_call", *_REASONING_FIELDS)
_PROBED_TOOL = {
    "type": "function",
    "function": {
        "name": "probe",
        "description": "Probes.",
        "parameters": {"type": "object", "properties": {}},
    },
}
# The trailing blank shows whether the template strips the message: then it is gone from the rendered text.
_CONTINUE_TAG = "CONTINUE_FINAL_MESSAGE_TAG "


class ChatTemplateError(ValueError):
    """The messages cannot be turned into a prompt: no template, wrong messages, or the template failed."""


class ChatTemplateFailed(ChatTemplateError):
    """The template itself failed. `summary` says so without a word of the checkpoint's own."""

    def __init__(self, message: str, summary: str) -> None:
        super().__init__(message)
        self.summary = summary


class ChatTemplates:
    """The chat templates of one checkpoint, each compiled once, on first use. Usable from several threads.

    `sources` maps names to template texts: `default`, and `tool_use` where tools have one of their own.
    `special_tokens` (`bos_token`, ...) are visible to templates. `now` serves `strftime_now`; without it, a
    template that calls it fails. `origin` names the checkpoint in errors.
    """

    def __init__(
        self,
        sources: Mapping[str, str],
        *,
        special_tokens: Mapping[str, str],
        origin: str,
        now: Callable[[], datetime] | None = None,
        rendered_chars_max: int = RENDERED_CHARS_MAX,
    ) -> None:
        self._sources = dict(sources)
        self._special_tokens = dict(special_tokens)
        self._origin = origin
        self._rendered_chars_max = rendered_chars_max
        self._environment = _Environment(now, rendered_chars_max)
        self._compiled: dict[str, jinja2.Template] = {}
        self._traits: dict[str, TemplateTraits] = {}

    def fit(self, messages: Sequence[Message], *, with_tools: bool = False) -> list[Message]:
        """Return the messages in a form that the template takes, which is probed on first use. See `chat_fitting`.

        Raises:
            ChatTemplateError: the messages are none, or there is no template.
        """
        _check_messages(messages)
        name = self._choose(with_tools=with_tools)
        if name not in self._traits:
            tools = [_PROBED_TOOL] if name == "tool_use" else None
            self._traits[name] = find_traits(lambda probe: self.render(probe, tools=tools))
        return fit(messages, self._traits[name])

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt for `messages`, equal to transformers' `apply_chat_template(tokenize=False)`.

        With `continue_final_message` the text ends where the last message's content ends, for the model to go
        on from there. `template_kwargs` are further variables of the template, such as `enable_thinking`.
        Raises `ChatTemplateError`, which names the message, the variable or the template at fault.
        """
        if continue_final_message and add_generation_prompt:
            raise ChatTemplateError(
                "continue_final_message: true together with add_generation_prompt, expected one of them: "
                "pass add_generation_prompt=False to continue the last message"
            )
        _check_messages(messages)
        _check_tools(tools)
        for reserved in _RESERVED:
            if reserved in (template_kwargs or {}):
                raise ChatTemplateError(f"template_kwargs.{reserved}: reserved, pass it as its own argument")
        name = self._choose(with_tools=tools is not None)
        try:
            chat = [_plain_message(message) for message in messages]
            variables = _plain({"documents": None, **self._special_tokens, **(template_kwargs or {})})
            variables |= {"tools": _plain(tools), "add_generation_prompt": add_generation_prompt}
        except RecursionError:
            raise ChatTemplateError("messages, tools or template_kwargs: nested too deeply") from None
        if not continue_final_message:
            return self._run(name, {"messages": chat, **variables})
        final_text = _tag_final_text(chat)
        return _cut_at_tag(self._run(name, {"messages": chat, **variables}), final_text)

    def _choose(self, *, with_tools: bool) -> str:
        if with_tools and "tool_use" in self._sources:
            return "tool_use"
        if "default" in self._sources:
            return "default"
        if not self._sources:
            raise ChatTemplateError(
                f"{self._origin} has no chat template (looked for chat_template.jinja, `chat_template` in "
                "tokenizer_config.json, chat_template.json): give the prompt as text or as token ids "
                "instead, or add a chat_template.jinja"
            )
        raise ChatTemplateError(
            f"{self._origin} has the chat templates {sorted(self._sources)} but none named `default`: "
            "name one of them so, or give the prompt as text or as token ids"
        )

    def _run(self, name: str, variables: dict[str, Any]) -> str:
        template = self._compile(name)
        pieces: list[str] = []
        num_chars = 0
        try:
            for piece in template.generate(variables):
                num_chars += len(piece)
                if num_chars > self._rendered_chars_max:
                    raise SecurityError(f"it wrote more than {self._rendered_chars_max} characters")
                pieces.append(piece)
        except _RaisedByTemplate as error:
            raise ChatTemplateError(f"the chat template refused the messages: {error.message}") from error
        except Exception as error:  # a template is foreign code: whatever it raises is its own fault
            self._blame(error)
        return "".join(pieces)

    def _compile(self, name: str) -> jinja2.Template:
        if name not in self._compiled:
            try:
                self._compiled[name] = self._environment.from_string(self._sources[name])
            except jinja2.TemplateSyntaxError as error:
                raise ChatTemplateError(
                    f"the chat template of {self._origin} is not valid jinja: "
                    f"{error.message} (line {error.lineno})"
                ) from error
        return self._compiled[name]

    def _blame(self, error: Exception) -> NoReturn:
        if isinstance(error, SecurityError | OverflowError | MemoryError):
            what = "was stopped by the sandbox"
        else:
            what = f"failed ({type(error).__name__})"
        raise ChatTemplateFailed(
            f"the chat template of {self._origin} {what}: {error}", f"the model's chat template {what}"
        ) from error


class _RaisedByTemplate(jinja2.TemplateError):
    """The template called `raise_exception`."""


class _Environment(ImmutableSandboxedEnvironment):
    """The sandbox, with the filters and globals that templates on the hub expect."""

    # `"a" * 10**10` and `9**9**9` are one expression each: no bound on loops or output would see them.
    intercepted_binops = frozenset({"*", "**"})

    def __init__(self, now: Callable[[], datetime] | None, built_size_max: int) -> None:
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, jinja2.ext.loopcontrols]
        )
        self._now = now
        self._built_size_max = built_size_max
        self.filters["tojson"] = _to_json
        del self.filters["random"], self.globals["lipsum"]
        self.globals |= {
            "raise_exception": _raise_exception,
            "strftime_now": self._strftime_now,
            "dict": _TemplateDict(),
            "namespace": _TemplateNamespace,
        }

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if _built_size(operator, left, right) > self._built_size_max:
            raise SecurityError(f"`{operator}` would build more than {self._built_size_max} elements or bits")
        return super().call_binop(context, operator, left, right)

    def _strftime_now(self, format: str) -> str:  # the name that templates may pass it by
        if self._now is None:
            raise jinja2.TemplateError(
                "it asks for the date (strftime_now), and no clock was given: "
                "pass `now` when the tokenizer is loaded, or the date as a template_kwargs variable"
            )
        return self._now().strftime(format)


class _GenerationTag(jinja2.ext.Extension):
    """`{% generation %}` marks what the assistant said, for training; here its body is simply rendered.

    A call block, as in transformers, so that what is set inside is not seen outside.
    """

    tags = frozenset({"generation"})  # type: ignore[assignment]  # jinja declares a set, and only reads it

    def parse(self, parser: Parser) -> nodes.Node:
        lineno = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_render"), [], [], body).set_lineno(lineno)

    def _render(self, caller: Macro) -> str:
        return caller()


class _TemplateDict:
    """`dict` for templates: the calls, without the type and what can be reached from it."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args)


class _TemplateNamespace(Namespace):
    """A namespace without underscore names, which jinja's own would let a template store and call."""

    def __init__(*args: Any, **kwargs: Any) -> None:  # no `self`: a template may store one
        attributes = dict(*args[1:], **kwargs)
        for name in attributes:
            _check_attribute(name)
        Namespace.__init__(args[0], attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_attribute(name)
        super().__setitem__(name, value)


def _check_attribute(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace holds no names with a leading underscore, found {name!r}")


def _built_size(operator: str, left: object, right: object) -> int:
    """Elements of a repeated sequence, or bits of a power; 0 for what cannot grow."""
    if operator == "**":
        return left.bit_length() * right if isinstance(left, int) and isinstance(right, int) else 0
    for sequence, count in ((left, right), (right, left)):
        if isinstance(sequence, str | bytes | list | tuple) and isinstance(count, int):
            return len(sequence) * count
    return 0


def _raise_exception(message: object) -> NoReturn:
    raise _RaisedByTemplate(str(message))


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as it stands: jinja's own filter escapes for HTML, which no model was trained on."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _check_messages(messages: object) -> None:
    if not isinstance(messages, list | tuple):
        raise ChatTemplateError(f"messages: {type(messages).__name__}, expected a list of messages")
    if not messages:
        raise ChatTemplateError("messages: empty, expected at least one message")
    for index, message in enumerate(messages):
        _check_message(f"messages[{index}]", message)


def _check_message(where: str, message: object) -> None:
    if not isinstance(message, Mapping):
        raise ChatTemplateError(f"{where}: {type(message).__name__}, expected a role and content")
    role, content = message.get("role"), message.get("content")
    if not isinstance(role, str) or not role:
        raise ChatTemplateError(f"{where}.role: {_found(role)}, expected a name such as 'user'")
    if content is None and any(message.get(field) is not None for field in _INSTEAD_OF_CONTENT):
        return
    if not isinstance(content, str | list | tuple | Mapping):
        raise ChatTemplateError(f"{where}.content: {_found(content)}, expected text or a list of parts")


def _check_tools(tools: object) -> None:
    if tools is None:
        return
    if not isinstance(tools, list | tuple):
        raise ChatTemplateError(f"tools: {type(tools).__name__}, expected a list of JSON schemas")
    for index, tool in enumerate(tools):
        if not isinstance(tool, Mapping):
            raise ChatTemplateError(f"tools[{index}]: {type(tool).__name__}, expected a JSON schema")


def _found(value: object) -> str:
    return "missing" if value is None else f"{value!r:.80}"


def _plain_message(message: Mapping[str, Any]) -> dict[str, Any]:
    """A copy in plain data, without keys that are None (templates would print "None"), reasoning aliased."""
    plain: dict[str, Any] = {key: _plain(value) for key, value in message.items() if value is not None}
    reasoning = next((plain[field] for field in _REASONING_FIELDS if field in plain), None)
    if reasoning is None:
        return plain
    return {"thinking": reasoning, **plain, "reasoning_content": reasoning}


def _plain(value: Any) -> Any:
    """A copy made of JSON types alone: an object's own methods would be open to the template."""
    if value is None or type(value) in (str, int, float, bool):
        return value
    if isinstance(value, Mapping):
        return {_plain(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, tuple):
        return tuple(_plain(item) for item in value)
    if isinstance(value, str):  # subclasses, such as enumerations, bring methods of their own
        return str.__str__(value)
    if isinstance(value, int):
        return int.__int__(value)
    if isinstance(value, float):
        return float.__float__(value)
    return f"<{type(value).__name__}>"


def _tag_final_text(chat: list[dict[str, Any]]) -> str:
    """Mark the end of the last message's last text, in place; the text without the mark."""
    content = chat[-1].get("content")
    where = f"messages[{len(chat) - 1}].content"
    if isinstance(content, str):
        chat[-1]["content"] = content + _CONTINUE_TAG
        return content
    for part in reversed(content if isinstance(content, list | tuple) else ()):
        if isinstance(part, dict) and isinstance(part.get("text"), str):
            text: str = part["text"]
            part["text"] = text + _CONTINUE_TAG
            return text
    raise ChatTemplateError(f"{where}: no text, expected some for continue_final_message to continue")


def _cut_at_tag(rendered: str, final_text: str) -> str:
    position = rendered.rfind(_CONTINUE_TAG.strip())
    if position < 0 or final_text.strip() not in rendered:
        raise ChatTemplateError(
            "continue_final_message: the last message is not in the rendered chat, expected a template that "
            "keeps it unchanged"
        )
    keeps_blanks = rendered.startswith(_CONTINUE_TAG, position)
    return rendered[:position] if keeps_blanks else rendered[:position].rstrip()
