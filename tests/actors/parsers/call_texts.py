"""Texts with calls in each format, as models write them: the format, the text, its calls, and what else it says."""

from __future__ import annotations

import json

A, B = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
C, D, S = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>"
RAIN = ("weather", {"city": 'Köln "x" \\ {[', "days": [1, 2.5, {"a": None}]})
TIME = ("now", {})


def written(value) -> str:
    return json.dumps(value, ensure_ascii=False)


WEATHER = written(RAIN[1])
OBJECTS = f'{{"name": "weather", "SLOT": {WEATHER}}}', '{"name": "now", "SLOT": {}}'
NAMED, WITH_PARAMETERS = (
    [one.replace("SLOT", slot) for one in OBJECTS] for slot in ("arguments", "parameters")
)
AS_STRING = written({"name": "f", "arguments": written({"a": 1})})
FENCED = [f"{C}function{S}{name}\n```json\n{written(arguments)}\n```{D}" for name, arguments in (RAIN, TIME)]
CODER = [
    f"<tool_call>\n<function=weather>\n<parameter=city>\n{RAIN[1]['city']}\n</parameter>\n<parameter=days>\n"
    f"{written(RAIN[1]['days'])}\n</parameter>\n</function>\n</tool_call>",
    "<tool_call>\n<function=now>\n</function>\n</tool_call>",
]
GLM = [
    f"<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>{RAIN[1]['city']}</arg_value>\n<arg_key>days</arg_key>\n"
    f"<arg_value>{written(RAIN[1]['days'])}</arg_value>\n</tool_call>",
    "<tool_call>now\n</tool_call>",
]
MINIMAX = [
    f'<invoke name="weather">\n<parameter name="city">{RAIN[1]["city"]}</parameter>\n'
    f'<parameter name="days">{written(RAIN[1]["days"])}</parameter>\n</invoke>\n',
    '<invoke name="now">\n</invoke>\n',
]
TEXTS = [
    ("glm45", f"Let me see.\n{GLM[0]}\n{GLM[1]}", [RAIN, TIME], "Let me see."),
    ("glm47", f"Ok.{(GLM[1] + GLM[0]).replace(chr(10), '')}\n", [TIME, RAIN], "Ok."),
    (
        "minimax_m2",
        f"Well.\n<minimax:tool_call>\n{''.join(MINIMAX)}</minimax:tool_call>",
        [RAIN, TIME],
        "Well.",
    ),
    (
        "minimax_m2",
        '<minimax:tool_call><invoke name="f"><parameter name="a">\nx\n</parameter></invoke></minimax:tool_call>'
        '<minimax:tool_call><invoke name="now"></invoke></minimax:tool_call> Done.',
        [("f", {"a": "x"}), TIME],
        "Done.",
    ),
    ("hermes", f"<tool_call>\n{NAMED[0]}\n</tool_call>", [RAIN], ""),
    (
        "hermes",
        f"Let me see.\n\n<tool_call>{NAMED[1]}</tool_call>\n"
        f'<tool_call>\n{{"arguments": {WEATHER}, "name": "weather"}}\n</tool_call>\n',
        [TIME, RAIN],
        "Let me see.",
    ),
    ("hermes", '<tool_call>{"name": "now"}</tool_call> Done.', [TIME], "Done."),
    ("hermes", f"<tool_call>{AS_STRING}</tool_call>", [("f", {"a": 1})], ""),
    ("qwen3_coder", f"Well.\n{CODER[0]}\n{CODER[1]}\n", [RAIN, TIME], "Well."),
    (
        "qwen3_coder",
        CODER[0].removeprefix("<tool_call>\n").replace(">\n", ">").replace("\n<", "<"),
        [RAIN],
        "",
    ),
    ("llama3_json", WITH_PARAMETERS[0], [RAIN], ""),
    (
        "llama3_json",
        f'<|python_tag|>{{"type": "function", {WITH_PARAMETERS[0][1:]}; {WITH_PARAMETERS[1]}',
        [RAIN, TIME],
        "",
    ),
    ("mistral", f"[TOOL_CALLS] [{', '.join(NAMED)}]", [RAIN, TIME], ""),
    ("mistral", f"Well.[TOOL_CALLS]weather{WEATHER}[TOOL_CALLS]now{{}}", [RAIN, TIME], "Well."),
    ("mistral_args", f"[TOOL_CALLS]weather[CALL_ID]123456789[ARGS]{WEATHER}", [RAIN], ""),
    (
        "pythonic",
        '[weather(city="Köln \\"x\\" \\\\ {[", days=[1, 2.5, {"a": None}]), now()]',
        [RAIN, TIME],
        "",
    ),
    (
        "pythonic",
        "<|python_start|>[f(a=-1, b=true, c=(1, 'x)'))]<|python_end|>",
        [("f", {"a": -1, "b": True, "c": [1, "x)"]})],
        "",
    ),
    ("deepseek_v3", f"Yes.{A}{FENCED[0]}\n{FENCED[1]}{B}", [RAIN, TIME], "Yes."),
    ("deepseek_v31", f"{A}{C}weather{S}{WEATHER}{D}{C}now{S}{{}}{D}{B}", [RAIN, TIME], ""),
    ("json", f"[{', '.join(WITH_PARAMETERS)}]", [RAIN, TIME], ""),
    ("granite", f"Well.<|tool_call|>[{', '.join(NAMED)}]", [RAIN, TIME], "Well."),
    ("granite", f"<tool_call> [{NAMED[0]}]", [RAIN], ""),
    ("granite-20b-fc", f"<function_call> {NAMED[0]}\n<function_call>{NAMED[1]} Done.", [RAIN, TIME], "Done."),
    ("jamba", f"Well. <tool_calls>[{', '.join(NAMED)}]</tool_calls>\n", [RAIN, TIME], "Well."),
    (
        "longcat",
        f"<longcat_tool_call>{NAMED[0]}</longcat_tool_call>\n<longcat_tool_call>{NAMED[1]}\n</longcat_tool_call>",
        [RAIN, TIME],
        "",
    ),
    ("internlm", f"Ok.<|action_start|><|plugin|>\n{WITH_PARAMETERS[0]}<|action_end|>\n", [RAIN], "Ok."),
    ("phi4_mini_json", f"functools[{', '.join(NAMED)}]", [RAIN, TIME], ""),
    ("phi4_mini_json", f"Use functools.wraps: functools[{NAMED[1]}]", [TIME], "Use functools.wraps:"),
    ("lfm2", "Hm.<|tool_call_start|>[now(), f(a=[1])]<|tool_call_end|>", [TIME, ("f", {"a": [1]})], "Hm."),
    ("xlam", f"[{', '.join(NAMED)}]", [RAIN, TIME], ""),
    ("xlam", f"```json\n[{NAMED[0]}]\n```", [RAIN], ""),
    ("xlam", f"<tool_call>{NAMED[0]}</tool_call>", [RAIN], ""),
]
