"""Verdicts on drafts, beside a walk that looks at one row at a time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pageant.protocol.arrays import NO_TOKEN, int32
from pageant.protocol.verification import Drafts

TOKENS = st.integers(0, 2)


@st.composite
def rows(draw, trees: bool):
    """Strategy of rows: drafts, parents, and what was drawn at their places."""
    found = []
    for count in draw(st.lists(st.integers(0, 5), min_size=1, max_size=4)):
        parents = [draw(st.integers(-1, index - 1)) if trees else index - 1 for index in range(count)]
        drawn = [draw(st.one_of(TOKENS, st.just(NO_TOKEN))) for _ in range(count + 1)]
        found.append(([draw(TOKENS) for _ in range(count)], parents, drawn))
    return found


def walk(drafts, parents, drawn):
    """The places of one row that stand."""
    path = [0]
    while True:
        children = [
            index + 1
            for index, parent in enumerate(parents)
            if parent == path[-1] - 1 and drafts[index] == drawn[path[-1]] and drawn[index + 1] != NO_TOKEN
        ]
        if not children:
            return path
        path.append(children[0])


def check(found, with_parents: bool):
    drafts = Drafts(
        int32([len(drafts) for drafts, _, _ in found]),
        int32([token for drafts, _, _ in found for token in drafts]),
        int32([parent for _, parents, _ in found for parent in parents] if with_parents else []),
    )
    verdict = drafts.verify(int32([token for _, _, drawn in found for token in drawn]))
    expected, first = [], 0
    for row in found:
        expected.append([first + place for place in walk(*row)])
        first += len(row[2])
    assert verdict.accepted.tolist() == [len(path) - 1 for path in expected]
    assert verdict.places.tolist() == [place for path in expected for place in path]


@given(rows(trees=False))
def test_a_chain_is_right_up_to_its_first_wrong_draft(found):
    check(found, with_parents=False)
    check(found, with_parents=True)


@given(rows(trees=True))
def test_in_a_tree_one_path_is_right(found):
    check(found, with_parents=True)


@given(rows(trees=True))
def test_the_drafts_before_a_place_are_those_of_its_path(found):
    drafts = Drafts(
        int32([len(drafts) for drafts, _, _ in found]),
        int32([token for drafts, _, _ in found for token in drafts]),
        int32([parent for _, parents, _ in found for parent in parents]),
    )
    expected, first = {}, 0
    for tokens, parents, _ in found:
        for index in range(len(tokens)):
            path, at = [], index
            while at >= 0:
                path.insert(0, tokens[at])
                at = parents[at]
            expected[first + 1 + index] = path
        first += len(tokens) + 1
    assert drafts.paths([True] * len(found)) == expected
    assert drafts.paths([False] * len(found)) == {}
