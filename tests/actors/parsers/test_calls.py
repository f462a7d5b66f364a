"""Each format of calls is read in whatever pieces its text comes; what is no call is content."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pageant.actors.http.streams import encode
from pageant.actors.parsers.base import Said, joined
from pageant.actors.parsers.formats import REASONING_MARKS, TOOL_FORMATS
from pageant.actors.parsers.reading import ChatParser
from pageant.actors.parsers.scanner import Scanner
from tests.actors.parsers.call_texts import TEXTS, TIME, A, C, D, S


def reader(name, reasoning=None, schemas=None, **more):
    ids = itertools.count()
    calls = TOOL_FORMATS[name].reader(lambda: f"id{next(ids)}", schemas or {}) if name is not None else None
    return ChatParser(REASONING_MARKS.get(reasoning), calls, **more)


def read(parser, text, cuts=None, prompt="", cut=False) -> Said:
    """All that is said of a text that comes in pieces; every letter by itself unless told where to cut."""
    parser.begin(prompt)
    cuts = range(1, len(text)) if cuts is None else cuts
    places = [0, *cuts, len(text)]
    said = [parser.feed(text[a:b], (), False) for a, b in itertools.pairwise(places)]
    said.append(parser.feed("", (), True, cut))
    content = "".join(one.content for one in said)
    reasoning = "".join(one.reasoning for one in said)
    return Said(content, reasoning, tuple(joined([call for one in said for call in one.calls])))


def calls_of(said) -> list:
    return [(call.name, json.loads(call.arguments)) for call in said.calls]


@pytest.mark.parametrize(("form", "text", "calls", "content"), TEXTS)
def test_calls_are_read_letter_by_letter_and_all_at_once(form, text, calls, content):
    for cuts in (None, ()):
        said = read(reader(form), text, cuts)
        assert calls_of(said) == calls
        assert said.content.strip() == content
        assert len({call.id for call in said.calls}) == len(calls)
        assert [call.number for call in said.calls] == list(range(len(calls)))


@settings(max_examples=150)
@given(data=st.data())
def test_how_a_text_is_cut_changes_nothing(data):
    form, text, calls, content = data.draw(st.sampled_from(TEXTS))
    cuts = sorted(data.draw(st.sets(st.integers(1, len(text) - 1), max_size=8)))
    said = read(reader(form), text, cuts)
    assert calls_of(said) == calls and said.content.strip() == content


NO_CALLS = [
    ("glm45", 'Use <tool_call>{"name": "f"}</tool_call>, or <arg_key>'),
    ("glm47", "<tool_call></tool_call> is none"),
    ("minimax_m2", "<minimax:tool_call> is a mark, as is <invoke"),
    ("xlam", "[1, 2] is a list"),
    ("xlam", "```python\nprint(1)\n```"),
    ("xlam", "``````"),
    ("xlam", "```json\n```"),
    ("granite", "<|tool_call|> is a mark, and so is <tool_call>"),
    ("phi4_mini_json", "from functools import wraps"),
    ("lfm2", "<|tool_call_start|>[1, 2]"),
    ("hermes", "Use <tool_call> like this: <tool"),
    ("hermes", "a < b <tool_call>[1]</tool_call>"),
    ("hermes", '<tool_call>{"nam": 1}</tool_call>'),
    ("qwen3_coder", "<tool_call>\n{}\n</tool_call> or <function"),
    ("qwen3_coder", "<function=> is none"),
    ("llama3_json", '{"answer": {"name": "x"}} '),
    ("llama3_json", "{ is a brace"),
    ("mistral", "[TOOL_CALLS]"),
    ("mistral", "[TOOL_CALLS][1, 2]"),
    ("pythonic", "[1, 2, 3]"),
    ("pythonic", "[f(x)] is a list"),
    ("pythonic", "[f(x=__import__('os'))]"),
    ("deepseek_v3", f"{C}nothing"),
    ("json", '["a"]'),
    ("json", "  plain"),
    (None, "<tool_call>{}"),
]


@pytest.mark.parametrize(("form", "text"), NO_CALLS)
def test_what_is_no_call_is_content_to_the_letter(form, text):
    for cuts in (None, ()):
        said = read(reader(form), text, cuts)
        assert not said.calls
        assert said.content == text


MARKS = [
    "<arg_key>",
    "</arg_key>",
    "<arg_value>",
    "</arg_value>",
    "<minimax:tool_call>",
    '<invoke name="',
    "</invoke>",
    "<tool_call>",
    "</tool_call>",
    "[TOOL_CALLS]",
    C,
    D,
    S,
    A,
    "name",
    '"name": "f", ',
    '"arguments": ',
    "f(",
    "```",
    "<function=",
    "</function>",
    "<parameter=",
    "</parameter>",
]
SCRAPS = st.lists(st.sampled_from([*'{}[]"\\,:() \n<a1', *MARKS]), max_size=30).map("".join)


@settings(max_examples=300)
@given(st.sampled_from(sorted(TOOL_FORMATS)), SCRAPS)
def test_nothing_that_a_model_writes_breaks_a_reader(form, text):
    whole, letters = read(reader(form), text, ()), read(reader(form), text)
    assert whole == letters
    if not whole.calls and form not in ("pythonic", "deepseek_v3", "deepseek_v31", "harmony"):
        assert whole.content.split() == text.split() or "tool_call>" in text


def test_arguments_are_told_as_they_come():
    parser = reader("hermes")
    parser.begin(None)
    start = parser.feed('<tool_call>{"name": "f", "arguments": {"a": ', (), False)
    assert [(call.name, call.arguments) for call in joined(start.calls)] == [("f", '{"a": ')]
    assert parser.feed('"long ', (), False).calls[0].arguments == '"long '
    assert parser.feed('text"}}', (), False).calls[0].arguments == 'text"}'
    assert parser.feed("</tool_call>", (), True) == Said()


def test_a_long_call_in_python_is_taken_piece_by_piece_and_not_letter_by_letter(monkeypatch):
    taken, take = [], Scanner._take
    monkeypatch.setattr(Scanner, "_take", lambda self, count: taken.append(count) or take(self, count))
    long = {"a": "x\\'" * 10_000, "b": [1] * 1000}
    text = f"[f(a={long['a']!r}, b={long['b']})]"
    assert calls_of(read(reader("pythonic"), text, range(1000, len(text), 1000))) == [("f", long)]
    assert len(taken) < len(text) / 1000 + 10


def coder_call(**values) -> str:
    parts = [f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items()]
    return f"<tool_call>\n<function=f>\n{''.join(parts)}</function>\n</tool_call>"


def test_the_tools_schema_tells_texts_from_other_values():
    texts = {name: {"type": "string"} for name in ("code", "number", "empty", "mark")}
    others = {
        "n": {"type": "integer"},
        "yes": {"type": "boolean"},
        "any": {},
        "both": {"type": ["string", "null"]},
    }
    right = {"code": '\nif x < 1:\n    print("\\n")\n', "number": "12", "empty": "", "mark": "</para</param"}
    right |= {"n": 12, "yes": True, "any": "so so", "both": None}
    text = coder_call(**right | {"yes": "True", "both": "null"})
    for cuts in (None, ()):
        said = read(reader("qwen3_coder", schemas={"f": {"properties": texts | others}}), text, cuts)
        assert calls_of(said) == [("f", right)] and not said.content


@pytest.mark.parametrize(
    "nullable",
    [
        {"anyOf": [{"type": "string"}, {"type": "null"}]},
        {"type": ["string", "null"]},
        {"oneOf": [{"$ref": "#/$defs/Zip"}, {"type": "null"}]},
    ],
)
def test_a_text_that_may_be_null_is_no_number(nullable):
    root = {"$defs": {"Zip": {"type": "string"}}, "properties": {"zip": nullable, "city": {"type": "string"}}}
    for schema in (root, {"$ref": "#/$defs/Place", "$defs": {**root["$defs"], "Place": root}}):
        for written_as, value in (("90210", "90210"), ('"90210"', "90210"), ("null", None), ("[1]", "[1]")):
            said = read(reader("qwen3_coder", schemas={"f": schema}), coder_call(zip=written_as, city="7"))
            assert calls_of(said) == [("f", {"zip": value, "city": "7"})]


@pytest.mark.parametrize(("form", "text"), [("llama3_json", "{CALL}"), ("json", "[{CALL}]")])
def test_an_answer_in_json_is_no_call_of_a_tool_that_there_is_not(form, text):
    schemas = {"weather": {"type": "object"}}
    answer = text.replace("{CALL}", '{"name": "Alice", "age": 30}')
    for cuts in (None, ()):
        said = read(reader(form, schemas=schemas), answer, cuts)
        assert said.content == answer and not said.calls
    call = text.replace("{CALL}", '{"name": "weather", "parameters": {"city": "Rome"}}')
    assert calls_of(read(reader(form, schemas=schemas), call)) == [("weather", {"city": "Rome"})]


@pytest.mark.parametrize("form", ["llama3_json", "pythonic", "json"])
def test_what_cannot_be_a_call_is_told_at_once(form):
    parser = reader(form)
    parser.begin(None)
    assert parser.feed("H", (), False).content == "H" and parser.feed("ello", (), False).content == "ello"
    parser = reader("pythonic")
    parser.begin(None)
    assert not parser.feed("[link", (), False).content
    assert parser.feed("]", (), False).content == "[link]"


def test_a_tool_of_any_name_can_be_called_in_python():
    said = read(reader("pythonic"), '[get-weather(city="Rome"), a:b.c(x=1)]')
    assert calls_of(said) == [("get-weather", {"city": "Rome"}), ("a:b.c", {"x": 1})]


def test_a_text_among_the_arguments_is_told_as_it_comes():
    parser = reader("qwen3_coder", schemas={"f": {"properties": {"code": {"type": "string"}}}})
    parser.begin(None)
    parser.feed("<tool_call>\n<function=f>\n<parameter=code>\n", (), False)
    assert parser.feed('x = "', (), False).calls[-1].arguments == 'x = \\"'
    assert not parser.feed("\n</param", (), False).calls
    (end,) = joined(parser.feed("eter>\n</function>", (), False).calls)
    assert end.arguments == '"}'


def test_texts_of_glm_and_minimax_are_told_as_they_come_and_by_their_schemas():
    schemas = {"f": {"properties": {"code": {"type": "string"}, "n": {"type": "integer"}}}}
    glm = "<tool_call>f\n<arg_key>code</arg_key>\n<arg_value>", "12</arg_value>\n<arg_key>n</arg_key>\n"
    glm += ("<arg_value>12</arg_value>\n</tool_call>",)
    minimax = '<minimax:tool_call>\n<invoke name="f">\n<parameter name="code">', "12</parameter>\n"
    minimax += ('<parameter name="n">12</parameter>\n</invoke>\n</minimax:tool_call>',)
    for form, parts in (("glm45", glm), ("minimax_m2", minimax)):
        assert calls_of(read(reader(form, schemas=schemas), "".join(parts))) == [
            ("f", {"code": "12", "n": 12})
        ]
        parser = reader(form, schemas=schemas)
        parser.begin(None)
        assert parser.feed(parts[0], (), False).calls[0].name == "f"
        assert parser.feed("\nif x < 1: 'a' ", (), False).calls[-1].arguments.endswith("x < 1: 'a' ")


def test_a_call_that_is_cut_off_keeps_what_there_is():
    said = read(reader("hermes"), '<tool_call>{"name": "f", "arguments": {"a": "x')
    assert [(call.name, call.arguments) for call in said.calls] == [("f", '{"a": "x')]
    assert not said.content


@pytest.mark.parametrize(("form", "text"), [(form, text) for form, text, _, _ in TEXTS])
def test_a_text_of_calls_alone_has_no_content_wherever_it_is_cut_off(form, text):
    for length in range(len(text)):
        assert not read(reader(form, only_calls=True), text[:length], (), cut=True).content


@pytest.mark.parametrize(("form", "text"), [(form, text) for form, text, _, _ in TEXTS])
def test_a_call_that_is_cut_off_leaves_no_markup_where_a_mark_says_that_it_is_one(form, text):
    if not TOOL_FORMATS[form].reader.has_marks:
        return
    marks = {"<tool_call>", "<function=", "[TOOL_CALLS]", "<minimax:tool_call>", "<arg_key>", A, C}
    for length in range(len(text)):
        for cuts in (None, ()):
            content = read(reader(form), text[:length], cuts, cut=True).content
            assert not any(mark in content for mark in marks), (length, content)


def test_what_is_no_call_stays_content_though_it_is_cut_off():
    texts = (
        ("hermes", "Use <tool_call> like this"),
        ("hermes", '<tool_call>{"nam": 1'),
        (None, "<tool_call>"),
    )
    for form, text in texts:
        assert read(reader(form), text, cut=True).content == text
    assert read(reader("hermes"), '<tool_call>{"name": ').content  # it ended by itself: that is what was said


def test_one_call_is_enough_where_they_are_not_to_be_parallel():
    form, text, calls, _ = TEXTS[1]
    assert calls_of(read(reader(form, one_call=True), text)) == calls[:1]


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("hermes", r'<tool_call>{"name": "f\ud83d", "arguments": "\ud83d\ude00 \ude00"}</tool_call>'),
        ("pythonic", r"[f(a='\ud83d\ude00 \ude00')]"),
        ("qwen3_coder", coder_call(a=r'"\ud83d\ude00 \ude00"')),
    ],
)
def test_half_a_character_that_a_model_writes_can_be_told_all_the_same(form, text):
    (call,) = read(reader(form), text).calls
    told = json.loads(encode(call.arguments))
    assert "\U0001f600 \ufffd" in told and encode(call.name) in (b'"f"', '"f\ufffd"'.encode())


@pytest.mark.parametrize(
    ("prompt", "text", "reasoning", "content"),
    [
        ("", "<think>\nHm.\n\nYes.\n</think>\n\nIt is 4.", "Hm.\n\nYes.", "It is 4."),
        ("...<think>\n", "Hm.</think>It is 4.", "Hm.", "It is 4."),
        ("...<think>\n\n</think>\n\n", "It is 4.", "", "It is 4."),
        ("", " <thin", "", " <thin"),
        ("", "It is <think>4</think>", "", "It is <think>4</think>"),
        ("<think>", "cut off </thi", "cut off </thi", ""),
    ],
)
def test_what_it_thinks_is_split_off(prompt, text, reasoning, content):
    for cuts in (None, ()):
        assert read(reader(None, "think"), text, cuts, prompt) == Said(content, reasoning)
    assert read(reader(None, "think", tells_reasoning=False), text, None, prompt) == Said(content)


def test_calls_come_after_thoughts_and_not_in_them():
    call = '<tool_call>{"name": "now", "arguments": {}}</tool_call>'
    said = read(reader("hermes", "think"), f"<think>I could {call}.</think>\n{call}")
    assert said.reasoning == f"I could {call}."
    assert calls_of(said) == [TIME] and not said.content
