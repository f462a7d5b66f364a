"""Automata over tokens find a text wherever its letters come, whatever the tokens."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pageant.actors.detokenizer.marks import spell_begin, spell_end

END = b"</think>"
PIECES = [
    *(bytes([letter]) for letter in b"</think> \nxyz"),
    *(
        b"",
        b"</",
        b"think",
        b">\n\n",
        b"</think>",
        b"x</",
        b"</th",
        b"ink> so",
        b"<<",
        b"hi",
        b"a</think>b",
        b"k>",
    ),
]
tokens = st.lists(st.integers(0, len(PIECES) - 1), max_size=12)


def text_of(ids):
    return b"".join(PIECES[token] for token in ids)


def states(mark, ids):
    state, found = 0, []
    for token in ids:
        state = mark.after(state, token)
        found.append(state)
        if state == mark.length:
            break
    return found


@given(tokens)
def test_an_end_is_found_with_the_token_that_completes_it(ids):
    mark = spell_end(END, PIECES)
    for count, state in enumerate(states(mark, ids), 1):
        said = text_of(ids[:count])
        if END in said:
            assert state == mark.length == len(END)
            return
        ends = (length for length in range(len(END) - 1, -1, -1) if said.endswith(END[:length]))
        assert state == next(ends)


@given(tokens)
def test_the_rest_of_a_mark_completes_it_from_every_state(before):
    mark = spell_end(END, PIECES)
    found = states(mark, before)
    if mark.length in found:
        return
    state = found[-1] if found else 0
    assert text_of(mark.rest[state]) == END[state:]
    for token in mark.rest[state]:
        state = mark.after(state, token)
    assert state == mark.length
    assert mark.rest[0] == (PIECES.index(END),)  # one token, where there is one


@given(tokens)
def test_a_beginning_has_nothing_but_blanks_before_it(ids):
    begin = b"<think>"
    mark = spell_begin(begin, PIECES)
    state, said = 0, b""
    for token in ids:
        if not PIECES[token]:
            continue
        state, said = mark.after(state, token), said + PIECES[token]
        begun = said.lstrip()
        if begun.startswith(begin):
            assert state == mark.length
            return
        if not begun:
            assert state == 0 and token in mark.blanks
        elif begin.startswith(begun):
            assert state == len(begun)
        else:
            assert state == 0
            return


def test_letters_that_no_token_has_cannot_be_written():
    assert not all(spell_end("§".encode(), PIECES).rest)
