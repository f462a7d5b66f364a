"""What answers of gpt-oss are held to: in the final channel, or as a call, after thoughts that are free."""

from __future__ import annotations

import pytest

from pageant.actors.frontend.prompts import RequestSettings
from pageant.actors.http.chat.request import Chat
from pageant.actors.http.chat.structure import Structure
from pageant.actors.http.chat.tools import ChosenFunction, ChosenTool, Tool, ToolFunction, Tools
from pageant.actors.parsers.formats import formats_of
from pageant.protocol.errors import BadRequest
from pageant.protocol.sampling import SamplingParams
from pageant.protocol.structured_outputs import StructuredOutputsParams as Asked
from pageant.protocol.tokenizing import TokenizeChat

FORMATS = formats_of([""], reasoning="openai_gptoss")
THOUGHT = "<|channel|>analysis<|message|>Hm, 1 < 2.<|end|><|start|>assistant"
FINAL = "<|channel|>final<|message|>"
CALL = '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": 1}'
INTEGER = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
TOOLS = (
    Tool(function=ToolFunction(name="f", parameters=INTEGER, strict=True)),
    Tool(function=ToolFunction(name="g", parameters=INTEGER)),
)


@pytest.fixture
def allows(compiler, spell):
    """Tell whether an answer to a chat with such a structure and such tools may be a text, and whole."""

    def judge(text, asked=None, **tools) -> bool:
        chat = Chat(
            conversation=TokenizeChat(messages=()),
            params=SamplingParams(),
            settings=RequestSettings(),
            tools=Tools(tools=TOOLS, one=False, **tools) if tools else None,
            structure=Structure(asked),
        )
        params = chat.sampling_params(FORMATS, chat.constraint(FORMATS))
        assert params.skip_special_tokens is False
        matcher = compiler.compile(params.structured_outputs).deep_copy()
        ids = spell(text)
        return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()

    return judge


@pytest.mark.parametrize(
    ("asked", "good", "bad"),
    [
        (Asked(json=INTEGER), '{"a": 7}', '{"a": "x"}'),
        (Asked(json_object=True), '{"b": []}', "[1]"),
        (Asked(regex="[0-9]+"), "123", "12x"),
        (Asked(choice=["yes", "no"]), "no", "maybe"),
        (Asked(grammar='root ::= "(" root ")" | "x"'), "((x))", "((x)"),
        (Asked(structural_tag={"format": {"type": "const_string", "value": "so"}}), "so", "no"),
        (Asked(json=INTEGER, disable_any_whitespace=True), '{"a":7}', '{"a": 7}'),
        (Asked(json=INTEGER, disable_additional_properties=True), '{"a": 7}', '{"a": 7, "b": 1}'),
    ],
    ids=lambda value: value.kind if isinstance(value, Asked) else "",
)
def test_a_structure_holds_the_final_channel(allows, asked, good, bad):
    for before in (THOUGHT, ""):
        assert allows(f"{before}{FINAL}{good}", asked) and not allows(f"{before}{FINAL}{bad}", asked)
    assert not allows(good, asked) and not allows(THOUGHT + good, asked)


def test_a_tag_that_is_no_tree_is_refused(allows):
    older = {"structures": [{"begin": "<a>", "schema": {}, "end": "</a>"}], "triggers": ["<a>"]}
    with pytest.raises(BadRequest, match="structural_tag has no format"):
        allows("", Asked(structural_tag=older))


def test_a_call_that_has_to_be_is_one_in_commentary(allows):
    for before in (THOUGHT, ""):
        assert allows(before + CALL, choice="required")
        assert allows(before + CALL.replace(".f", ".g"), choice="required")
        assert not allows(f"{before}{FINAL}It rains.", choice="required")
        assert not allows(before + CALL + CALL, choice="required")
    named = ChosenTool(function=ChosenFunction(name="g"))
    assert allows(THOUGHT + CALL.replace(".f", ".g"), choice=named) and not allows(CALL, choice=named)


def test_strict_tools_leave_an_answer_free(allows):
    assert allows(f"{THOUGHT}{FINAL}It rains.", choice="auto") and allows(THOUGHT + CALL, choice="auto")
    assert not allows(CALL.replace("1", '"x"'), choice="auto")


def test_json_or_a_call_may_be_asked_for(allows):
    asked = Asked(json=INTEGER)
    assert allows(f'{FINAL}{{"a": 1}}', asked, choice="auto") and allows(THOUGHT + CALL, asked, choice="auto")
    assert not allows(f"{FINAL}It rains.", asked, choice="auto")


def test_without_tools_or_a_structure_nothing_is_held():
    chat = Chat(conversation=TokenizeChat(messages=()), params=SamplingParams(), settings=RequestSettings())
    params = chat.sampling_params(FORMATS, chat.constraint(FORMATS))
    assert params.structured_outputs is None and params.skip_special_tokens is False
    assert chat.parser(FORMATS, lambda _: "id") is not None
