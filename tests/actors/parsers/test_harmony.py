"""Harmony's messages, by its guide: what each channel holds, in whatever pieces the text comes."""

from __future__ import annotations

import itertools
import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pageant.actors.parsers.base import Said, joined
from pageant.actors.parsers.formats import REASONING_MARKS, TOOL_FORMATS, formats_of
from pageant.actors.parsers.reading import ChatParser

PROMPT = "<|start|>user<|message|>What is the weather?<|end|><|start|>assistant"
THOUGHT = "<|channel|>analysis<|message|>Let me think.\n1 < 2 <|end|>"
CALL = '<|start|>assistant<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{"city": "Köln"}'
FINAL = "<|start|>assistant<|channel|>final<|message|>It rains. "
WEATHER = {"weather": {"type": "object"}}


def parser(schemas=None, takes_calls=True, **more) -> ChatParser:
    ids = itertools.count()
    calls = TOOL_FORMATS["harmony"].reader(lambda: f"id{next(ids)}", schemas or {})
    calls.takes_calls = takes_calls
    return ChatParser(REASONING_MARKS["harmony"], calls, **more)


def read(text, prompt=PROMPT, letters=True, cut=False, of=None) -> Said:
    """All that is said of a text that comes at once, or letter by letter."""
    of = of or parser(WEATHER)
    of.begin(prompt)
    said = [of.feed(piece, (), False) for piece in (text if letters else [text])]
    said.append(of.feed("", (), True, cut))
    content, reasoning = "".join(one.content for one in said), "".join(one.reasoning for one in said)
    return Said(content, reasoning, tuple(joined([call for one in said for call in one.calls])))


def calls_of(said: Said) -> list[tuple[str | None, str]]:
    return [(call.name, call.arguments) for call in said.calls]


@pytest.mark.parametrize("letters", [True, False])
@pytest.mark.parametrize("end", ["", "<|return|>"])
def test_an_answer_after_thoughts(letters, end):
    assert read(THOUGHT + FINAL + end, letters=letters) == Said("It rains. ", "Let me think.\n1 < 2 ")


@pytest.mark.parametrize("letters", [True, False])
@pytest.mark.parametrize("end", ["", "<|call|>"])
def test_a_call_after_thoughts(letters, end):
    said = read(THOUGHT + CALL + end, letters=letters)
    assert calls_of(said) == [("weather", '{"city": "Köln"}')] and said.calls[0].id == "id0"
    assert said.reasoning == "Let me think.\n1 < 2 " and said.content == ""


@pytest.mark.parametrize(
    "call",
    [
        "<|channel|>commentary to=functions.weather<|message|>{}",
        " to=functions.weather<|channel|>commentary <|constrain|>json<|message|>{}",
        "<|start|>assistant to=functions.weather<|channel|>commentary json<|message|>{}<|call|>",
        "<|channel|>analysis to=functions.weather code<|message|>{}<|call|>",
        "<|channel|>commentary to=weather <|constrain|>json<|message|>{}<|call|>",
        "<|channel|>commentary to=functions.weather <|constrain|>json<|message|><|call|>",
    ],
)
def test_a_recipient_may_stand_in_several_places(call):
    assert calls_of(read(call)) == [("weather", "{}")]


def test_what_is_said_before_a_call_and_between_is_content():
    preamble = "<|channel|>commentary<|message|>I look it up.<|end|>"
    said = read(preamble + CALL + "<|call|>" + FINAL + "<|return|>")
    assert said.content == "I look it up.\n\nIt rains. " and calls_of(said) == [
        ("weather", '{"city": "Köln"}')
    ]


def test_thoughts_of_several_messages_are_lines():
    again = "<|start|>assistant<|channel|>analysis<|message|>Once more.<|end|>"
    assert read(THOUGHT + again + FINAL) == Said("It rains. ", "Let me think.\n1 < 2 \nOnce more.")


@pytest.mark.parametrize("recipient", ["python", "browser.search", "functions.weather"])
def test_calls_that_nobody_takes_are_thoughts(recipient):
    call = f"<|channel|>commentary to={recipient} code<|message|>print(1)<|call|>"
    takes = recipient != "functions.weather"
    said = read(call, of=parser(WEATHER, takes_calls=takes))
    assert said == Said(reasoning="print(1)")


def test_two_calls_one_after_the_other_are_two_unless_one_is_wanted():
    assert len(read(CALL + "<|call|>" + CALL + "<|call|>").calls) == 2
    assert len(read(CALL + "<|call|>" + CALL, of=parser(WEATHER, one_call=True)).calls) == 1


@pytest.mark.parametrize(
    ("prompt", "text", "said"),
    [
        (PROMPT, "No channel at all.", Said("No channel at all.")),
        (None, "<|channel|>final<|message|>Yes", Said("Yes")),
        (PROMPT + "<|channel|>final<|message|>It", " rains.<|return|>", Said(" rains.")),
        (
            PROMPT + "<|channel|>analysis<|message|>",
            "Hm.<|end|>" + FINAL,
            Said("It rains. ", "Hm."),
        ),
        (PROMPT + "<|channel|>analysis", "<|message|>Hm.<|end|>" + FINAL, Said("It rains. ", "Hm.")),
        (PROMPT + "<|channel|>", "final<|message|>Yes", Said("Yes")),
        (PROMPT, "<|message|>Yes", Said("Yes")),
    ],
)
def test_a_prompt_may_end_in_a_message(prompt, text, said):
    assert read(text, prompt) == read(text, prompt, letters=False) == said


def test_a_text_that_is_cut_off_leaves_no_marks():
    tokens = re.findall(r"<\|\w+\|>|.", THOUGHT + CALL, re.DOTALL)  # a mark is one token
    for end in range(len(tokens)):
        said = read("".join(tokens[:end]), letters=False, cut=True)
        assert not any(mark in said.content + said.reasoning for mark in ("<|st", "<|ch", "<|message", "to="))
        assert said.content == ""


def test_arguments_and_answers_are_told_as_they_come():
    of = parser(WEATHER)
    of.begin(PROMPT)
    head, _, _ = CALL.removeprefix("<|start|>assistant").partition("{")
    start = of.feed(head + '{"ci', (), False)
    assert [(call.name, call.arguments) for call in joined(start.calls)] == [("weather", '{"ci')]
    assert of.feed('ty": "', (), False).calls[0].arguments == 'ty": "'
    of = parser()
    of.begin(PROMPT)
    assert of.feed("<|channel|>analysis<|message|>Hm, ", (), False) == Said(reasoning="Hm, ")
    assert of.feed("so.<|end|><|start|>assistant<|channel|>fin", (), False) == Said(reasoning="so.")
    assert of.feed("al<|message|>It", (), False) == Said("It")


def test_tokens_of_thoughts_are_counted():
    of = parser()
    of.begin(PROMPT)
    for piece in (
        "<|channel|>",
        "analysis",
        "<|message|>",
        "I",
        " think",
        "<|end|>",
        "<|start|>",
        "assistant",
    ):
        of.feed(piece, [1], False)
    for piece in ("<|channel|>", "final", "<|message|>", "Yes", "."):
        of.feed(piece, [1], False)
    assert of.num_reasoning_tokens == 2


MARKS = ("<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|call|>", "<|return|>", "<|constrain|>")
SCRAPS = st.lists(
    st.sampled_from(
        [*MARKS, "assistant", "analysis", "final", "commentary", " to=functions.weather", *'{}" \n<|a']
    ),
    max_size=30,
).map("".join)


@settings(max_examples=200, deadline=None)
@given(SCRAPS)
def test_pieces_do_not_matter_and_no_mark_is_told(text):
    whole, letters = read(text, letters=False), read(text)
    assert whole == letters
    if text.startswith(MARKS[:2]):
        assert not any(mark in whole.reasoning for mark in ("<|start|>", "<|channel|>", "<|end|>"))


def test_a_template_or_either_of_vllms_names_chooses_it():
    template = "{{ '<|start|>assistant<|channel|>analysis<|message|>' + message.thinking + '<|end|>' }}"
    for found in (
        formats_of([template]),
        formats_of([""], tools="openai"),
        formats_of([""], reasoning="openai_gptoss"),
        formats_of([""], tools="harmony", reasoning="none"),
    ):
        assert found.tools is TOOL_FORMATS["harmony"] and found.special
        assert found.reasoning == REASONING_MARKS["harmony"]
    assert formats_of([template + "<|end|><|start|>assistant"], tools="none").reasoning is None


def test_arguments_of_a_call_are_json_as_they_were_written():
    said = read(CALL + "<|call|>")
    assert json.loads(said.calls[0].arguments) == {"city": "Köln"}
