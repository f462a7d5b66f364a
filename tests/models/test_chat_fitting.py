"""Conversations reach templates in a form that these take, for templates of each kind."""

from __future__ import annotations

from typing import Any

import pytest

from pageant.models.chat_template import ChatTemplates

PLAIN = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
ONE_SYSTEM_FIRST = (
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}"
    "{{ raise_exception('System message must be at the beginning.') }}{% endif %}"
    "[{{ m.role }}]{{ m.content }}{% endfor %}"
)
DROPS_LATER_SYSTEMS = (
    "{% for m in messages %}{% if m.role != 'system' or loop.first %}"
    "[{{ m.role }}]{{ m.content }}{% endif %}{% endfor %}"
)
NO_SYSTEM_AND_ALTERNATING = (
    "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate') }}{% endif %}[{{ m.role }}]{{ m.content }}{% endfor %}"
)
SYSTEM_THEN_ALTERNATING = (
    "{% set rest = messages[1:] if messages[0].role == 'system' else messages %}"
    "{% if messages[0].role == 'system' %}[system]{{ messages[0].content }}{% endif %}"
    "{% for m in rest %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate') }}{% endif %}[{{ m.role }}]{{ m.content }}{% endfor %}"
)
LAST_ONLY = "[{{ messages[-1].role }}]{{ messages[-1].content }}"

TURNS = [
    {"role": "system", "content": "a"},
    {"role": "system", "content": "b"},
    {"role": "user", "content": "c"},
    {"role": "system", "content": "d"},
    {"role": "user", "content": "e"},
]


def rendered(template: str, messages: list[dict[str, Any]], **options: Any) -> str:
    templates = ChatTemplates({"default": template}, special_tokens={}, origin="a test")
    return templates.render(templates.fit(messages), **options)


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (PLAIN, "[system]a[system]b[user]c[system]d[user]e"),
        (ONE_SYSTEM_FIRST, "[system]a\n\nb\n\nd[user]c[user]e"),
        (DROPS_LATER_SYSTEMS, "[system]a\n\nb\n\nd[user]c[user]e"),
        (NO_SYSTEM_AND_ALTERNATING, "[user]a\n\nb\n\nd\n\nc\n\ne"),
        (SYSTEM_THEN_ALTERNATING, "[system]a\n\nb\n\nd[user]c\n\ne"),
        (LAST_ONLY, "[user]e"),
    ],
)
def test_systems_and_repeated_roles_are_merged_where_the_template_wants_that(template, expected):
    before = [dict(turn) for turn in TURNS]
    assert rendered(template, TURNS) == expected
    assert before == TURNS


def test_a_conversation_of_system_messages_alone_becomes_the_users():
    assert rendered(NO_SYSTEM_AND_ALTERNATING, TURNS[:2]) == "[user]a\n\nb"


def call(arguments: Any, **fields: Any) -> list[dict[str, Any]]:
    function = {"name": "f", "arguments": arguments}
    return [
        {"role": "user", "content": "c"},
        {
            "role": "assistant",
            **fields,
            "tool_calls": [{"id": "1", "type": "function", "function": function}],
        },
        {"role": "tool", "tool_call_id": "1", "content": "t"},
    ]


ITEMS = (
    "{% for m in messages %}[{{ m.role }}]{% for c in m.tool_calls or [] %}"
    "{% for k, v in c.function.arguments|items %}{{ k }}={{ v }}{% endfor %}{% endfor %}{% endfor %}"
)
AS_JSON = (
    "{% for m in messages %}{% for c in m.tool_calls or [] %}"
    "{{ c.function.arguments|tojson }}{% endfor %}{% endfor %}"
)
TEXT_OR_JSON = (
    "{% for m in messages %}{% for c in m.tool_calls or [] %}{% set a = c.function.arguments %}"
    "{{ a if a is string else a|tojson }}{% endfor %}{% endfor %}"
)


@pytest.mark.parametrize(
    ("template", "arguments", "expected"),
    [
        (ITEMS, '{"q": ', "[user][assistant][tool]"),
        (ITEMS, {"q": 1}, "[user][assistant]q=1[tool]"),
        (AS_JSON, '{"q": ', "{}"),
        (TEXT_OR_JSON, '{"q": ', '{"q": '),
        (TEXT_OR_JSON, {"q": 1}, '{"q": 1}'),
    ],
)
def test_broken_arguments_are_shown_as_text_or_as_nothing(template, arguments, expected):
    assert rendered(template, call(arguments)) == expected


def test_a_turn_without_content_has_an_empty_one_where_the_template_needs_it():
    splits = "{% for m in messages %}[{{ m.role }}]{{ m.content.split('</think>')[-1] }}{% endfor %}"
    assert rendered(splits, call({})) == "[user]c[assistant][tool]t"
    tells = "{% for m in messages %}{{ 'none' if m.content is not defined else m.content }}{% endfor %}"
    assert rendered(tells, call({})) == "cnonet"


def test_the_template_of_tools_is_probed_by_itself():
    sources = {"default": PLAIN, "tool_use": ONE_SYSTEM_FIRST}
    templates = ChatTemplates(sources, special_tokens={}, origin="a test")
    assert len(templates.fit(TURNS)) == 5
    assert len(templates.fit(TURNS, with_tools=True)) == 3


def test_ids_of_calls_are_short_where_the_template_knows_no_others():
    template = (
        "{% for m in messages %}{% for c in m.tool_calls or [] %}{% if c.id|length != 9 %}"
        "{{ raise_exception('IDs have length 9') }}{% endif %}{{ c.id }}{% endfor %}"
        "{{ m.tool_call_id or '' }}{% endfor %}"
    )

    def called(call_id: str) -> str:
        turns = call({}, content="")
        turns[1]["tool_calls"][0]["id"] = turns[2]["tool_call_id"] = call_id
        return rendered(template, turns)

    text = called("call_0123456789abcdef")
    assert len(text) == 18 and text[:9] == text[9:] and text != called("call_other")
    assert called("abcdefgh1") == "abcdefgh1" * 2
