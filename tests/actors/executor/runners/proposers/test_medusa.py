"""The likeliest tree, beside all trees of that size."""

from __future__ import annotations

from itertools import product
from math import prod

from hypothesis import given
from hypothesis import strategies as st

from pageant.actors.executor.runners.proposers.medusa import likeliest_tree

CHANCES = st.lists(st.integers(1, 20), min_size=1, max_size=3).map(
    lambda found: [one / 20 for one in sorted(found)[::-1]]
)


@given(st.lists(CHANCES, min_size=1, max_size=3), st.integers(1, 8))
def test_a_tree_has_the_likeliest_paths(chances, size):
    levels = [([10 * depth + rank for rank in range(len(row))], row) for depth, row in enumerate(chances)]
    tree = likeliest_tree(levels, size)
    paths = []
    for token, parent in zip(tree.token_ids, tree.parents, strict=True):
        assert parent < len(paths)
        paths.append((*(paths[parent] if parent >= 0 else ()), token))
    assert len(set(paths)) == len(paths)
    likelihood = {
        tuple(levels[depth][0][rank] for depth, rank in enumerate(ranks)): prod(
            chances[depth][rank] for depth, rank in enumerate(ranks)
        )
        for length in range(1, len(levels) + 1)
        for ranks in product(*(range(len(row)) for row in chances[:length]))
    }
    best = sorted(likelihood.values(), reverse=True)[:size]
    assert sorted((likelihood[path] for path in paths), reverse=True) == best


def test_what_is_no_token_is_passed_over():
    tree = likeliest_tree([([5, -1, 7], [0.6, 0.5, 0.4]), ([8], [0.5])], 4)
    assert list(zip(tree.token_ids, tree.parents, strict=True)) == [(5, -1), (7, -1), (8, 0), (8, 1)]
