"""Chat templates against transformers' apply_chat_template, and against hostile templates and messages."""

from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models

from pageant.models.chat_template import ChatTemplateError, ChatTemplates

NOW = datetime(2024, 7, 26, 12, 0)
SPECIAL_TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "image_token": "<image>"}

CHATML = """
{%- for message in messages %}
    {%- if loop.first and message['role'] != 'system' %}
        {{- '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' }}
    {%- endif %}
    {{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""

LLAMA_3 = """
{{- bos_token }}
{%- if custom_tools is defined %}
    {%- set tools = custom_tools %}
{%- endif %}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}
        {%- set date_string = strftime_now("%d %b %Y") %}
    {%- else %}
        {%- set date_string = "26 Jul 2024" %}
    {%- endif %}
{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{{- "Today Date: " + date_string + "\\n\\n" }}
{%- if tools is not none %}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\\n\\n" }}
    {%- endfor %}
{%- endif %}
{{- system_message }}
{{- "<|eot_id|>" }}
{%- for message in messages %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""

MISTRAL = """{{ bos_token }}{% for message in messages %}
{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}
{% endif %}
{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}
{% elif message['role'] == 'assistant' %}{{ message['content'] + eos_token}}
{% else %}{{ raise_exception('Only user and assistant roles are supported!') }}{% endif %}{% endfor %}"""

QWEN_3 = """
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}
        {{- messages[0].content + '\\n\\n' }}
    {%- endif %}
    {{- "# Tools\\n\\n<tools>" }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\\n</tools><|im_end|>\\n" }}
{%- endif %}
{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" and message.content is string %}
        {%- set ns.multi_step_tool = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set content = message.content if message.content is string else '' %}
    {%- if message.role == "assistant" %}
        {%- set reasoning_content = '' %}
        {%- if message.reasoning_content is string %}
            {%- set reasoning_content = message.reasoning_content %}
        {%- elif '</think>' in content %}
            {%- set reasoning_content = content.split('</think>')[0].split('<think>')[-1].lstrip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {{- '<|im_start|>assistant\\n' }}
        {%- if loop.index0 > ns.last_query_index and reasoning_content %}
            {{- '<think>\\n' + reasoning_content.strip('\\n') + '\\n</think>\\n\\n' }}
        {%- endif %}
        {%- generation %}{{- content }}{% endgeneration %}
        {%- for tool_call in message.tool_calls or [] %}
            {%- if tool_call.function %}{%- set tool_call = tool_call.function %}{%- endif %}
            {{- '\\n<tool_call>\\n{"name": "' ~ tool_call.name ~ '", "arguments": ' }}
            {%- if tool_call.arguments is string %}
                {{- tool_call.arguments }}
            {%- else %}
                {{- tool_call.arguments | tojson }}
            {%- endif %}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "skip" %}
        {%- continue %}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}
"""

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "What's the <weather> & wind?",
            "parameters": {"type": "object", "properties": {"city": {"type": "string", "enum": ["Zürich"]}}},
        },
    }
]
CHAT = [
    {"role": "user", "content": " Hello, <b>you</b> & 'them' "},
    {"role": "assistant", "content": "Good day. "},
    {"role": "user", "content": "Wie geht's? 漢字"},
]
WITH_SYSTEM = [{"role": "system", "content": "Be brief.  "}, *CHAT]
WITH_TOOL_CALL = [
    CHAT[0],
    {
        "role": "assistant",
        "content": None,
        "reasoning": "They want it.",
        "tool_calls": [
            {"type": "function", "function": {"name": "weather", "arguments": {"city": "Zürich"}}}
        ],
    },
    {"role": "tool", "content": '{"wind": 3}', "tool_call_id": None},
    {"role": "skip", "content": "left out"},
]

Oracle = Callable[..., str]


@pytest.fixture
def oracle(monkeypatch: pytest.MonkeyPatch) -> Oracle:
    from transformers import PreTrainedTokenizerFast
    from transformers.utils import chat_template_utils

    class Clock(datetime):
        @classmethod
        def now(cls, tz: object = None) -> datetime:  # type: ignore[override]
            return NOW

    monkeypatch.setattr(chat_template_utils, "datetime", Clock)
    backend = Tokenizer(models.BPE())

    def render(template: str, messages: list[dict[str, Any]], **options: Any) -> str:
        chat_template_utils._compile_jinja_template.cache_clear()
        tokenizer = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
            tokenizer_object=backend, **SPECIAL_TOKENS
        )
        text = tokenizer.apply_chat_template(messages, chat_template=template, tokenize=False, **options)
        assert isinstance(text, str)
        return text

    return render


def templates(source: str, **options: Any) -> ChatTemplates:
    options = {"now": lambda: NOW} | options
    return ChatTemplates(
        {"default": source}, special_tokens=SPECIAL_TOKENS, origin="the-checkpoint", **options
    )


@pytest.mark.parametrize("add_generation_prompt", [True, False])
@pytest.mark.parametrize(
    ("source", "messages", "tools", "template_kwargs"),
    [
        (CHATML, CHAT, None, {}),
        (CHATML, WITH_SYSTEM, None, {}),
        (LLAMA_3, WITH_SYSTEM, None, {}),
        (LLAMA_3, CHAT, TOOLS, {"date_string": "1 Jan 2000"}),
        (LLAMA_3, CHAT, None, {"custom_tools": TOOLS, "bos_token": "<other>"}),
        (MISTRAL, CHAT, None, {}),
        (QWEN_3, WITH_SYSTEM, TOOLS, {}),
        (QWEN_3, WITH_TOOL_CALL, TOOLS, {"enable_thinking": False}),
        (QWEN_3, CHAT, [], {"enable_thinking": True}),
        ("{% for i in range(3) %}{% if i == 1 %}{% break %}{% endif %}{{ i }}{% endfor %}", CHAT, None, {}),
        ("  {% if true %}\n  a\n  {% endif %}\n{# note #}\nb{{ documents is none }}\n", CHAT, None, {}),
        ("{{ messages|map(attribute='role')|list|tojson }}{{ dict(a=1)|items|list }}", CHAT, None, {}),
        ("{% set x = 1 %}{% generation %}{% set x = 2 %}{% endgeneration %}{{ x }}", CHAT, None, {}),
        ("{{ image_token }}{{ pad_token }}{{ messages[0].missing }}{{ ''.__class__ }}", CHAT, None, {}),
        ("{{ 'ab' * 3 }}{{ 2 ** 10 }}{{ [0] * 2 }}", CHAT, None, {}),
        ("{{ o|tojson }}{{ t }}", CHAT, None, {"o": Path("x"), "t": (1, 2.5, True, None)}),
    ],
)
def test_the_text_equals_that_of_transformers(
    oracle: Oracle,
    source: str,
    messages: list[dict[str, Any]],
    tools: list[dict[str, Any]] | None,
    template_kwargs: dict[str, Any],
    add_generation_prompt: bool,
) -> None:
    ours = templates(source).render(
        messages,
        tools=tools,
        template_kwargs=template_kwargs,
        add_generation_prompt=add_generation_prompt,
    )
    assert ours == oracle(
        source, messages, tools=tools, add_generation_prompt=add_generation_prompt, **template_kwargs
    )


@pytest.mark.parametrize("source", [CHATML, LLAMA_3, MISTRAL, QWEN_3])
@pytest.mark.parametrize("content", ["The answer is", "The answer is ", "x\n", "CONTINUE_FINAL_MESSAGE_TAG "])
def test_the_last_message_is_continued_as_transformers_does(
    oracle: Oracle, source: str, content: str
) -> None:
    messages = [CHAT[0], {"role": "assistant", "content": content}]
    ours = templates(source).render(messages, continue_final_message=True, add_generation_prompt=False)
    assert ours == oracle(source, messages, continue_final_message=True)
    assert messages[1]["content"] == content


def test_a_message_in_parts_is_continued_after_its_last_text(oracle: Oracle) -> None:
    source = "{% for m in messages %}{% for part in m.content %}{{ part.text }}{% endfor %};{% endfor %}"
    messages = [
        {"role": "assistant", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}
    ]
    ours = templates(source).render(messages, continue_final_message=True, add_generation_prompt=False)
    assert ours == oracle(source, messages, continue_final_message=True) == "ab"


def test_a_template_is_compiled_once_and_only_when_used(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = templates("{% if %}")
    with pytest.raises(ChatTemplateError, match=r"of the-checkpoint is not valid jinja: .*\(line 1\)"):
        broken.render(CHAT)
    rendering = templates(CHATML)
    first = rendering.render(CHAT)
    monkeypatch.setattr(type(rendering._environment), "from_string", None)
    assert rendering.render(CHAT) == first


def test_no_template_says_how_to_do_without() -> None:
    none = ChatTemplates({}, special_tokens={}, origin="the-checkpoint")
    with pytest.raises(
        ChatTemplateError, match=r"the-checkpoint has no chat template .* as token ids instead"
    ):
        none.render(CHAT)
    named = ChatTemplates({"rag": "x"}, special_tokens={}, origin="the-checkpoint")
    with pytest.raises(ChatTemplateError, match=r"\['rag'\] but none named `default`"):
        named.render(CHAT)


def test_what_the_template_raises_is_the_error() -> None:
    with pytest.raises(ChatTemplateError, match=r"refused the messages: Conversation roles must alternate"):
        templates(MISTRAL).render([CHAT[0], CHAT[0]])
    with pytest.raises(ChatTemplateError, match=r"failed \(UndefinedError\): .*no attribute 'a'"):
        templates("{{ messages[0].a.b }}").render(CHAT)


def test_a_template_that_asks_for_the_date_without_a_clock_says_what_to_pass() -> None:
    with pytest.raises(ChatTemplateError, match=r"no clock was given: pass `now`"):
        templates(LLAMA_3, now=None).render(CHAT)
    templates(LLAMA_3, now=None).render(CHAT, template_kwargs={"date_string": "today"})


@pytest.mark.parametrize(
    ("messages", "place"),
    [
        ("hello", "messages: str, expected a list"),
        ([], "messages: empty"),
        ([*CHAT, "hello"], r"messages\[3\]: str, expected a role and content"),
        ([*CHAT, {"content": "x"}], r"messages\[3\]\.role: missing"),
        ([{"role": 3, "content": "x"}], r"messages\[0\]\.role: 3, expected a name"),
        ([CHAT[0], {"role": "user"}], r"messages\[1\]\.content: missing, expected text"),
        ([{"role": "user", "content": 7}], r"messages\[0\]\.content: 7, expected text"),
    ],
)
def test_wrong_messages_are_refused_with_their_place(messages: Any, place: str) -> None:
    with pytest.raises(ChatTemplateError, match=place):
        templates(CHATML).render(messages)


def test_wrong_options_are_refused_by_name() -> None:
    rendering = templates(CHATML)
    with pytest.raises(ChatTemplateError, match=r"tools\[1\]: str, expected a JSON schema"):
        rendering.render(CHAT, tools=[TOOLS[0], "weather"])  # type: ignore[list-item]
    with pytest.raises(ChatTemplateError, match="tools: dict, expected a list"):
        rendering.render(CHAT, tools=TOOLS[0])  # type: ignore[arg-type]
    with pytest.raises(ChatTemplateError, match=r"template_kwargs\.messages: reserved"):
        rendering.render(CHAT, template_kwargs={"messages": []})
    with pytest.raises(ChatTemplateError, match="pass add_generation_prompt=False"):
        rendering.render(CHAT, continue_final_message=True)
    with pytest.raises(ChatTemplateError, match=r"messages\[0\]\.content: no text"):
        rendering.render(
            [{"role": "user", "content": [{"type": "image"}]}],
            continue_final_message=True,
            add_generation_prompt=False,
        )
    with pytest.raises(ChatTemplateError, match="the last message is not in the rendered chat"):
        templates("x").render(CHAT, continue_final_message=True, add_generation_prompt=False)


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ raise_exception.__globals__['json'] }}",
        "{{ namespace.__init__.__globals__ }}",
        "{{ namespace(__class__=1) }}",
        "{% set n = namespace() %}{% set n.__dict__ = {} %}",
        "{{ ('{0.__class__.__mro__[1].x}').format('') }}",
        "{{ messages.append(1) }}",
        "{% set _ = messages[0].update(role='x') %}",
        "{{ strftime_now.__self__._environment.x }}",
        "{{ cycler.__init__.__globals__.os }}",
        "{{ range(10000000) }}",
        "{{ 'x' * 10000000000 }}",
        "{{ 10000000000 * [0] }}",
        "{{ 9 ** 999999999 }}",
        "{% for i in range(99999) %}{{ 'x' * 1000 }}{% endfor %}",
    ],
)
def test_hostile_templates_are_stopped_by_the_sandbox(source: str) -> None:
    with pytest.raises(ChatTemplateError, match=r"was stopped by the sandbox: ."):
        templates(source, rendered_chars_max=1_000_000).render(CHAT)


def test_a_template_without_end_is_an_error_of_the_template() -> None:
    endless = "{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}"
    with pytest.raises(ChatTemplateError, match=r"failed \(RecursionError\)"):
        templates(endless).render(CHAT)


def test_messages_nested_too_deeply_are_refused() -> None:
    nested: Any = "x"
    for _ in range(5000):
        nested = [nested]
    with pytest.raises(ChatTemplateError, match="nested too deeply"):
        templates(CHATML).render([{"role": "user", "content": nested}])


def test_objects_of_the_caller_stay_out_of_the_template_s_reach() -> None:
    class Secret:
        value = "secret"

    source = "{{ messages[0].extra.value is defined }}{{ messages[0].extra }}"
    message = {"role": "user", "content": "x", "extra": Secret()}
    assert templates(source).render([message]) == "False<Secret>"


def test_nothing_in_a_template_can_be_random() -> None:
    for source in ("{{ lipsum() }}", "{{ [1, 2] | random }}"):
        with pytest.raises(ChatTemplateError):
            templates(source).render(CHAT)
