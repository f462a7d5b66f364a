"""The pool: references, names, and the order of evictions."""

import pytest

from pageant.actors.blocks.pool import BlockPool


def test_a_new_pool_is_all_free_and_gives_out_each_block_once():
    pool = BlockPool(3)
    assert pool.num_free == 3
    assert sorted(pool.take(3)) == [0, 1, 2]
    assert pool.num_free == 0
    pool.check_integrity()


def test_more_than_is_free_is_our_own_mistake():
    with pytest.raises(AssertionError, match="3 blocks asked for, 2 free"):
        BlockPool(2).take(3)


def test_freeing_more_often_than_holding_is_noticed():
    pool = BlockPool(2)
    blocks = pool.take(1)
    pool.free(blocks)
    with pytest.raises(AssertionError, match="freed more often than it is held"):
        pool.free(blocks)


def test_a_freed_block_with_a_name_is_found_again():
    pool = BlockPool(2)
    (block,) = pool.take(1)
    assert pool.name([block], [b"a"]) == [True]
    pool.free([block])
    assert (pool.num_free, pool.num_cached) == (2, 1)
    assert pool.match([b"a"]) == [block]
    assert pool.num_free == 1
    pool.check_integrity()


def test_matching_stops_at_the_first_name_that_is_not_cached():
    pool = BlockPool(3)
    first, second, third = pool.take(3)
    pool.name([first], [b"a"])
    pool.name([third], [b"c"])
    assert pool.match([b"a", b"b", b"c"]) == [first]
    assert pool.references(first) == 2
    assert pool.references(second) == 1


def test_blocks_without_a_name_are_taken_before_cached_ones():
    pool = BlockPool(3)
    blocks = pool.take(3)
    pool.name([blocks[0]], [b"a"])
    pool.free(blocks[:1])
    pool.free(blocks[1:])
    assert set(pool.take(2)) == set(blocks[1:])
    assert pool.evictions == 0
    assert pool.take(1) == blocks[:1]
    assert pool.evictions == 1
    assert pool.match([b"a"]) == []


def test_the_least_recently_freed_is_evicted_first_and_a_sequence_from_its_end():
    pool = BlockPool(4)
    old, new = pool.take(2), pool.take(2)
    for name, block in zip((b"o1", b"o2", b"n1", b"n2"), (*old, *new), strict=True):
        pool.name([block], [name])
    pool.free(old)
    pool.free(new)
    assert pool.take(4) == [old[1], old[0], new[1], new[0]]


def test_the_second_block_of_the_same_name_stays_unnamed():
    pool = BlockPool(2)
    first, second = pool.take(2)
    assert pool.name([first], [b"a"]) == [True]
    assert pool.name([second], [b"a"]) == [False]
    pool.free([first, second])
    assert pool.match([b"a"]) == [first]
    pool.check_integrity()


def test_without_prefix_caching_nothing_gets_a_name():
    pool = BlockPool(1, enable_prefix_caching=False)
    (block,) = pool.take(1)
    assert pool.name([block], [b"a"]) == [False]
    assert pool.match([b"a"]) == []


def test_a_forgotten_name_is_found_no_more():
    pool = BlockPool(2)
    blocks = pool.take(2)
    pool.name([blocks[0]], [b"a"])
    pool.forget(blocks)
    assert pool.match([b"a"]) == []
    pool.free(blocks)
    assert pool.num_cached == 0
    pool.check_integrity()


def test_naming_a_block_that_nobody_holds_is_noticed():
    with pytest.raises(AssertionError, match="named while nobody holds it"):
        BlockPool(1).name([0], [b"a"])


def test_a_subclass_chooses_the_victims_and_is_told_of_every_change():
    heard = []

    class Highest(BlockPool):
        def next_victims(self, count):
            return sorted(self._free, reverse=True)[:count]

        def on_freed(self, blocks):
            heard.append(("freed", blocks))

        def on_taken(self, blocks):
            heard.append(("taken", blocks))

    pool = Highest(3)
    assert pool.take(2) == [2, 1]
    pool.name([2], [b"a"])
    pool.free([2])
    assert pool.match([b"a"]) == [2]
    assert heard == [("taken", [2, 1]), ("freed", [2]), ("taken", [2])]
    pool.check_integrity()


def test_who_listens_hears_of_names_that_are_lost_and_why():
    pool, heard = BlockPool(3), []
    pool.on_unnamed = lambda *lost: heard.append(("unnamed", *lost))
    pool.on_evicted = lambda *lost: heard.append(("evicted", *lost))
    first, second, third = pool.take(3)
    pool.name([first, second, third], [b"a", b"b", b"c"])
    pool.free([first, second])
    pool.take(2)
    lost = [second, first], [b"b", b"a"]
    assert heard == [("unnamed", *lost), ("evicted", *lost)]
    pool.forget([third])
    assert heard[2:] == [("unnamed", [third], [b"c"])]
