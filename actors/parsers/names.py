"""vLLM's names of parsers, and which of our formats each chooses; or why it chooses none."""

from __future__ import annotations

from collections.abc import Mapping

from pageant.protocol.checks import expected

UNREAD = "calls in this format are not read; `auto` finds a format by the chat template"
UNMARKED = "reasoning in this format is not read; `auto` finds its marks by the chat template"

TOOLS: dict[str, str] = {
    "deepseek_v3": "deepseek_v3",
    "deepseek_v31": "deepseek_v31",
    "glm45": "glm45",
    "glm47": "glm47",
    "granite": "granite",
    "granite-20b-fc": "granite-20b-fc",
    "granite4": "hermes",
    "hermes": "hermes",
    "internlm": "internlm",
    "jamba": "jamba",
    "lfm2": "lfm2",
    "llama3_json": "llama3_json",
    "llama4_json": "llama3_json",
    "llama4_pythonic": "pythonic",
    "longcat": "longcat",
    "mimo": "qwen3_coder",
    "minimax_m2": "minimax_m2",
    "mistral": "mistral",
    "openai": "harmony",
    "phi4_mini_json": "phi4_mini_json",
    "pythonic": "pythonic",
    "qwen3_coder": "qwen3_coder",
    "qwen3_json": "hermes",
    "qwen3_xml": "qwen3_coder",
    "xlam": "xlam",
}
TOOLS_REFUSED: dict[str, str] = {
    "apertus": f"calls between <|tools_prefix|> and <|tools_suffix|>: {UNREAD}",
    "cohere_command3": f"calls between <|START_ACTION|> and <|END_ACTION|>: {UNREAD}",
    "cohere_command4": f"calls between <|START_ACTION|> and <|END_ACTION|>: {UNREAD}",
    "deepseek_v32": f"DSML: {UNREAD}",
    "deepseek_v4": f"DSML: {UNREAD}",
    "deepseek_v41": f"DSML: {UNREAD}",
    "dots": f"calls of dots models: {UNREAD}",
    "ernie45": f"calls of ERNIE 4.5, beside <response>: {UNREAD}",
    "functiongemma": f"calls of FunctionGemma: {UNREAD}",
    "gemma4": f"calls of Gemma 4: {UNREAD}",
    "gigachat3": f"calls of GigaChat 3: {UNREAD}",
    "hf": "templates of responses are not read; `auto` finds a format by the chat template",
    "hunyuan_a13b": f"<tool_calls> of Hunyuan: {UNREAD}",
    "hy_v3": f"calls of Hunyuan 3: {UNREAD}",
    "hy_v4": f"calls of Hunyuan 4: {UNREAD}",
    "inkling": f"calls of Inkling: {UNREAD}",
    "k2_horizon": f"calls of K2 Horizon: {UNREAD}",
    "kimi_k2": f"<|tool_calls_section_begin|> of Kimi K2: {UNREAD}",
    "kimi_k3": f"calls of Kimi K3: {UNREAD}",
    "ling3": f"<arg_key> and <arg_value> of Ling: {UNREAD}",
    "minicpm5": f"calls of MiniCPM 5: {UNREAD}",
    "minimax_m3": f"calls of MiniMax M3: {UNREAD}",
    "muse_glimmer": f"calls of Muse Glimmer: {UNREAD}",
    "olmo3": f"<function_calls> of OLMo 3: {UNREAD}",
    "plamo3": f"calls of PLaMo 3: {UNREAD}",
    "poolside_v1": f"calls of Poolside: {UNREAD}",
    "seed_oss": f"<seed:tool_call>: {UNREAD}",
    "step3": f"calls of Step 3: {UNREAD}",
    "step3p5": f"calls of Step 3.5: {UNREAD}",
}

REASONING: dict[str, str] = {
    **dict.fromkeys(
        (
            *("deepseek_r1", "deepseek_v3", "deepseek_v4", "deepseek_v41", "glm45", "glm47", "holo2"),
            *("granite_thinking_parser", "hy_v3", "hy_v4", "kimi_k2", "ling3", "mimo", "minicpmv"),
            *("minimax_m2", "nemotron_v3", "olmo3", "poolside_v1", "qwen3", "step3", "step3p5"),
        ),
        "think",
    ),
    "cohere_command3": "command",
    "cohere_command4": "command",
    "mistral": "magistral",
    "openai_gptoss": "harmony",
    "seed_oss": "seed",
}
REASONING_REFUSED: dict[str, str] = {
    "ernie45": f"<think> beside <response>: {UNMARKED}",
    "gemma4": f"<|channel> of Gemma 4: {UNMARKED}",
    "granite": f"the sentences of Granite 3 around its thoughts: {UNMARKED}",
    "hf": "templates of responses are not read; `auto` finds marks by the chat template",
    "hunyuan_a13b": f"<think> beside <answer>: {UNMARKED}",
    "inkling": f"<|content_thinking|>: {UNMARKED}",
    "k2_horizon": f"<ifm|think>: {UNMARKED}",
    "kimi_k3": f"the marks of Kimi K3: {UNMARKED}",
    "minimax_m2_append_think": "reasoning is told apart from an answer, never left in it; use `none`",
    "minimax_m3": f"<mm:think>: {UNMARKED}",
    "muse_glimmer": f"the marks of Muse Glimmer: {UNMARKED}",
    "plamo3": f"the marks of PLaMo 3: {UNMARKED}",
}

Parsers = tuple[Mapping[str, str], Mapping[str, str]]
"""Our formats by vLLM's names, and why others are refused."""

TOOL_PARSERS: Parsers = (TOOLS, TOOLS_REFUSED)
REASONING_PARSERS: Parsers = (REASONING, REASONING_REFUSED)


def chosen(name: str, parsers: Parsers, ours: Mapping[str, object]) -> str:
    """Return our name of a format that is named in vLLM's words or in ours.

    Raises:
        ValueError: there is none of that name, with the reason where vLLM has one.
    """
    known, refused = parsers
    if name in refused and name not in ours:
        raise ValueError(f"found {name!r}, {refused[name]}")
    if name not in ours and name not in known:
        raise ValueError(f"found {name!r:.80}; {expected(name, sorted({*ours, *known, 'auto', 'none'}))}")
    return name if name in ours else known[name]
