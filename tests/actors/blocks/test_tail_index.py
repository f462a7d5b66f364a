"""TailIndex against lists."""

from __future__ import annotations

import gc

from hypothesis import given
from hypothesis import strategies as st

from pageant.actors.blocks.tail_index import TailIndex

KEYS = [b"a", b"b", b"c"]


@given(st.lists(st.tuples(st.integers(0, 7), st.sampled_from(KEYS))))
def test_what_is_filed_is_found_the_newest_first(moves: list[tuple[int, bytes]]) -> None:
    shelves = TailIndex()
    filed: dict[int, bytes] = {}  # oldest first
    for number, key in moves:
        if number in filed:
            shelves.remove([number], [filed.pop(number)])
        else:
            filed[number] = key
            shelves.add([number], [key])
        assert len(shelves) == len(filed)
        for one in KEYS:
            assert list(shelves.under(one)) == [
                number for number, key in reversed(filed.items()) if key == one
            ]


def gone_through(root: object) -> int:
    """Return how many objects the garbage collector goes through for `root`, without what is shared: types."""
    seen, waiting = {id(root)}, [root]
    tracked = 0
    while waiting:
        each = waiting.pop()
        tracked += gc.is_tracked(each)
        for held in gc.get_referents(each):
            if not isinstance(held, type) and id(held) not in seen:
                seen.add(id(held))
                waiting.append(held)
    return tracked


def test_the_garbage_collector_has_no_more_to_go_through_for_more_numbers() -> None:
    few, many = TailIndex(), TailIndex()
    few.add([0, 1], [b"a", b"a"])
    many.add(range(1000), [str(number % 100).encode() for number in range(1000)])
    assert gone_through(many) == gone_through(few)
