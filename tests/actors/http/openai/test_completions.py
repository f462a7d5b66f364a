"""Prompts of requests for completions."""

from __future__ import annotations

import pytest

from pageant.actors.http.openai.completions import CompletionRequest
from pageant.protocol.errors import BadRequest


@pytest.mark.parametrize("prompt", ["a", [1, 2], ["a", "b"], [[1], [2, 3]], ["a", [1]]], ids=str)
def test_a_prompt_is_a_text_or_token_ids_or_several_of_them(prompt):
    several = isinstance(prompt, list) and not isinstance(prompt[0], int)
    assert CompletionRequest(prompt=prompt).prompts() == (prompt if several else [prompt])


@pytest.mark.parametrize("wrong", [{"prompt": "x"}, 1.5, None, True], ids=str)
def test_an_entry_of_another_kind_is_named(wrong):
    with pytest.raises(BadRequest, match=rf"prompt\[1\] is a {type(wrong).__name__}; expected a text"):
        CompletionRequest(prompt=["a", wrong], echo=True).prompts()
