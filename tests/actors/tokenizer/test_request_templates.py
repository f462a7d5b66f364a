"""Templates of requests' own: rendered as the checkpoint's would be, and bounded in what they take."""

from __future__ import annotations

from datetime import datetime

import pytest

from pageant.actors.runtime.isolation import IsolatedLimits
from pageant.actors.tokenizer.request_templates import Rendering, RequestTemplates
from pageant.models.chat_template import ChatTemplateError


@pytest.fixture(scope="module")
def templates():
    templates = RequestTemplates({"bos_token": "<s>"}, IsolatedLimits(seconds=1.0, memory_bytes=256 << 20))
    yield templates
    templates.close()


def asked(template, **options):
    messages = [{"role": "system", "content": "a"}, {"role": "user", "content": "ü"}]
    fields = {
        "add_generation_prompt": True,
        "continue_final_message": False,
        "tools": None,
        "template_kwargs": {},
    }
    return Rendering(template, messages, now=datetime(2026, 1, 2), **(fields | options))


def test_a_template_sees_what_a_checkpoints_sees(templates):
    template = (
        "{{ bos_token }}{{ strftime_now('%Y-%m-%d') }}{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
        "{{ mood }}{{ tools[0].name }}{% if add_generation_prompt %}>{% endif %}"
    )
    given = asked(template, template_kwargs={"mood": "!"}, tools=[{"name": "f"}])
    assert templates.render(given) == "<s>2026-01-02[system]a[user]ü!f>"


def test_a_conversation_is_fitted_to_it(templates):
    refuses = (
        "{% if messages[0].role == 'system' %}{{ raise_exception('no') }}{% endif %}{{ messages[0].content }}"
    )
    assert templates.render(asked(refuses)) == "a\n\nü"


@pytest.mark.parametrize(
    ("template", "says"),
    [
        ("{% if %}", "chat_template: .*not valid jinja"),
        ("{{ raise_exception('no such thing') }}", "chat_template: .*no such thing"),
        ("{{ messages.__class__.__mro__ }}", "chat_template: .*(sandbox|UndefinedError)"),
        (
            "{% set r = range(99999) %}{% for i in r %}{% for j in r %}{% endfor %}{% endfor %}",
            "chat_template cannot be rendered: it takes more than 1 seconds",
        ),
        (
            "{% set ns = namespace(s='xxxxxxxx') %}"
            "{% for i in range(60) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}{{ ns.s }}",
            "chat_template",
        ),
    ],
)
def test_hostile_templates_are_refused_and_cost_nobody_else_anything(templates, template, says):
    with pytest.raises(ChatTemplateError, match=says):
        templates.render(asked(template))
    assert templates.render(asked("{{ messages[-1].content }}")) == "ü"
