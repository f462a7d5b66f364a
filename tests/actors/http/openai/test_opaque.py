"""Reasoning as an opaque string is the same reasoning again; what was made elsewhere is none."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pageant.actors.http.openai.opaque import opened, sealed


@given(st.text())
def test_a_text_comes_back(text):
    opaque = sealed(text)
    assert opaque.isascii() and opened(opaque) == text


def test_what_was_made_elsewhere_is_no_text():
    for opaque in (None, "", "gAAAAABo", "pageant-1-%%%", "pageant-1-/w==", "pageant-2-" + sealed("a")[10:]):
        assert opened(opaque) is None
