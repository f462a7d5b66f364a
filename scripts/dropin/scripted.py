"""Chat templates of puppets that do what vLLM's examples wait for: call the tools that they are given, and think."""

from __future__ import annotations

from pageant.scripts.puppet import TEMPLATE

_ARGUMENTS = """\
{%- macro arguments(parameters) -%}
{%- set filled = namespace(text='') -%}
{%- for name, kind in parameters.properties.items() -%}
  {%- set value = kind.enum[0] | tojson if kind.enum else '2' if kind.type in ['number', 'integer']
      else '"1 + 1"' if name == 'expression' else '"TX"' if name == 'state' else '"Dallas"' -%}
  {%- set filled.text = filled.text ~ (', ' if filled.text else '') ~ (name | tojson) ~ ': ' ~ value -%}
{%- endfor -%}
{{ '{' ~ filled.text ~ '}' }}
{%- endmacro -%}
"""
"""Arguments that a tool's schema allows: the first of listed values, else a number or a text."""

_CALL = """\
{%- if tools and messages[-1].role != 'tool' -%}
  {%- set called = tools[0].function -%}
  {%- set call = '{"name": "' ~ called.name ~ '", "arguments": ' ~ arguments(called.parameters) ~ '}' -%}
  {%- set now.script = WRITTEN -%}
{%- endif -%}
"""
_THOUGHTS = "{%- set now.thoughts = 'I think, therefore I answer.' -%}\n"
_DECIDED = "{%- if now.thoughts and enable_thinking is not false -%}"
"""Where in the puppet's template what it says is decided."""


def _template(*decisions: str) -> str:
    assert _DECIDED in TEMPLATE
    return _ARGUMENTS + TEMPLATE.replace(_DECIDED, "".join(decisions) + _DECIDED)


_MARKED = _CALL.replace("WRITTEN", "'<tool_call>\\n' ~ call ~ '\\n</tool_call>'")
CALLING_TEMPLATE = _template(_MARKED)
"""A puppet that calls the first of its tools, in Hermes' form, and answers when it has the result."""
THINKING_TEMPLATE = _template(_MARKED, _THOUGHTS)
"""The same, with thoughts before every answer."""
LISTING_TEMPLATE = _template(_CALL.replace("WRITTEN", "'[' ~ call ~ ']'"))
"""A puppet that calls the first of its tools, as a bare JSON list."""
