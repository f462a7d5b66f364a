"""Tokens of a told text are found by their letters, whatever a parser leaves out between."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st

from pageant.actors.frontend.outputs import Logprob
from pageant.actors.http.openai.output_logprobs import OutputLogprobs


def pieces(*tokens):
    """A piece of these tokens, whose ids are their places."""
    places = [{index: Logprob(-float(index), 1, text)} for index, text in enumerate(tokens)]
    return SimpleNamespace(logprobs=places, token_ids=list(range(len(tokens))))


def told(found):
    return [entry.token for entry in found]


def test_thoughts_and_marks_are_left_out():
    logprobs = OutputLogprobs(0)
    logprobs.add(
        pieces("<think>", "\n", "Hm", ".", "\n</th", "ink>", "\n\n", "It", " is", " 4.", "<|im_end|>")
    )
    assert told(logprobs.take("Hm.")) == ["Hm", "."]
    assert told(logprobs.take("It i")) == ["It", " is"]
    assert told(logprobs.take("s 4.")) == [" 4."]  # its neighbour was told with the text that it begins


def test_what_a_call_says_is_not_taken_for_what_follows():
    logprobs = OutputLogprobs(0)
    logprobs.add(pieces("<tool_call>", '{"name": "f", "arguments": ', '{"a": 1}', "}", "</tool_call>", "a"))
    assert told(logprobs.take('{"a": 1}')) == ['{"a": 1}']
    (entry,) = logprobs.take("a")
    assert entry.logprob == -5.0


def test_a_text_that_its_tokens_spell_otherwise_takes_as_many_letters():
    logprobs = OutputLogprobs(0)
    logprobs.add(pieces("ab", "cd", "ef"))
    assert told(logprobs.take("wxyz")) == ["ab", "cd"]
    assert told(logprobs.take("ef")) == ["ef"] and not logprobs.take("more")


@given(st.lists(st.text(min_size=1, max_size=4), min_size=1, max_size=12), st.data())
def test_each_token_of_plain_text_is_told_once_and_in_order(tokens, data):
    text, logprobs = "".join(tokens), OutputLogprobs(0)
    logprobs.add(pieces(*tokens))
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=5)) | {0, len(text)})
    found = [entry for a, b in itertools.pairwise(cuts) for entry in logprobs.take(text[a:b])]
    assert [entry.logprob for entry in found] == [-float(index) for index in range(len(tokens))]
