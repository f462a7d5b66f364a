"""One exchange after another with the block manager's core."""

from __future__ import annotations

import random

import pytest

from pageant.actors.blocks.allocation import Allocation
from pageant.actors.blocks.pool import BlockPool
from pageant.protocol.allocation import Admission, Assign
from pageant.protocol.arrays import int32, int64


class Manager:
    """An allocation, asked in few words."""

    def __init__(self, num_blocks=8, block_size=4, caching=True, windows=(None,), num_states=0):
        self.core = Allocation(
            BlockPool(num_blocks, caching), block_size, windows=windows, num_states=num_states
        )
        self.steps = 0

    def assign(
        self,
        *,
        grow=(),
        admit=(),
        freed=(),
        budget=100,
        learn=(),
        computed=None,
        skip_cache=False,
        drafts=(),
        chunk_max=None,
    ):
        """`grow`: (serial, length, new tokens); `learn`: (serial, new tokens); `admit`: (serial, tokens[, salt])."""
        self.steps += 1
        learned = [*learn, *((serial, tokens) for serial, _, tokens in grow)]
        answer = self.core.assign(
            Assign(
                step=self.steps,
                epoch=1,
                computed_step=self.steps - 1 if computed is None else computed,
                learned_serials=int64([serial for serial, _ in learned]),
                learned_counts=int32([len(tokens) for _, tokens in learned]),
                token_ids=int32([token for _, tokens in learned for token in tokens]),
                freed=int64(freed),
                grow_serials=int64([serial for serial, _, _ in grow]),
                grow_lengths=int32([length for _, length, _ in grow]),
                grow_drafts=int32(drafts),
                admissions=tuple(
                    Admission(
                        serial=serial,
                        token_ids=int32(tokens),
                        salt=salt[0] if salt else None,
                        skip_cache=skip_cache,
                    )
                    for serial, tokens, *salt in admit
                ),
                admission_tokens=budget,
                chunk_max=chunk_max,
            )
        )
        self.core.check_integrity()
        return answer


@pytest.fixture
def manager():
    return Manager()


def test_after_a_reset_a_running_sequence_goes_on_and_names_what_it_fills(manager):
    manager.assign(admit=[(1, range(6))])
    assert manager.core.forget_prefixes(below=True) == (1, 0)
    manager.assign(grow=[(1, 9, [50, 51, 52])])
    answer = manager.assign(admit=[(2, range(6))])
    assert answer.admitted[0].num_cached_tokens == 0
    manager.assign(freed=[1, 2])
    assert manager.core.statistics().blocks_held == 0
    assert manager.assign(admit=[(3, range(6))]).admitted[0].num_cached_tokens == 5


def granted(answer):
    return [(one.serial, one.num_cached_tokens, one.num_tokens) for one in answer.admitted]


def test_an_admission_gets_slots_for_the_tokens_of_this_step(manager):
    answer = manager.assign(admit=[(1, range(10))])
    assert granted(answer) == [(1, 0, 10)]
    assert len(answer.admitted[0].blocks) == 3
    assert (answer.blocks_free, answer.num_blocks) == (5, 8)


def test_a_chunk_gets_only_its_own_slots_but_needs_room_for_the_whole(manager):
    answer = manager.assign(admit=[(1, range(10))], budget=5)
    assert granted(answer) == [(1, 0, 5)]
    assert len(answer.admitted[0].blocks) == 2
    assert granted(manager.assign(admit=[(2, range(33))], budget=5)) == []


def test_a_later_request_finds_the_prefix_that_an_earlier_one_computed(manager):
    manager.assign(admit=[(1, range(10))])
    answer = manager.assign(admit=[(2, [*range(8), 90, 91])])
    assert granted(answer) == [(2, 8, 2)]
    statistics = manager.core.statistics()
    assert (statistics.tokens_queried, statistics.tokens_hit) == (20, 8)


def test_requests_of_the_same_exchange_share_their_prefix(manager):
    answer = manager.assign(admit=[(1, range(9)), (2, range(9))])
    assert granted(answer) == [(1, 0, 9), (2, 8, 1)]
    assert answer.admitted[0].blocks[:2].tolist() == answer.admitted[1].blocks[:2].tolist()


def test_what_this_step_does_not_compute_is_not_shared(manager):
    manager.assign(admit=[(1, range(20))], budget=6)
    assert granted(manager.assign(admit=[(2, range(20))])) == [(2, 4, 16)]


def test_the_last_token_is_computed_again_even_if_all_is_cached(manager):
    manager.assign(admit=[(1, range(8))])
    assert granted(manager.assign(admit=[(2, range(8))])) == [(2, 7, 1)], "the rest is copied"


def test_prefixes_under_different_salts_are_not_shared(manager):
    manager.assign(admit=[(1, range(9), "one")])
    assert granted(manager.assign(admit=[(2, range(9), "other")])) == [(2, 0, 9)]
    assert granted(manager.assign(freed=[1, 2], admit=[(3, range(9), "one")])) == [(3, 8, 1)]


def test_drawn_tokens_name_blocks_once_they_are_computed(manager):
    manager.assign(admit=[(1, [1, 2, 3])])
    manager.assign(grow=[(1, 4, [4])])
    manager.assign(grow=[(1, 5, [5])])
    assert granted(manager.assign(admit=[(2, [1, 2, 3, 4, 9])])) == [(2, 4, 1)]


def test_growth_is_granted_in_order_and_refused_from_the_first_that_does_not_fit():
    manager = Manager(num_blocks=3)
    manager.assign(admit=[(1, range(4)), (2, range(10, 14))])
    answer = manager.assign(grow=[(1, 5, [4]), (2, 5, [14])], admit=[(3, [7])])
    assert answer.num_grown == 1
    assert (answer.grown_counts.tolist(), len(answer.grown_blocks)) == ([1], 1)
    assert not answer.admitted
    again = manager.assign(freed=[1], grow=[(2, 5, [])])
    assert again.num_grown == 1


def test_admissions_are_refused_from_the_first_that_does_not_fit():
    manager = Manager(num_blocks=3)
    answer = manager.assign(admit=[(1, range(4)), (2, range(20)), (3, range(30, 32))])
    assert granted(answer) == [(1, 0, 4)]
    assert manager.core.statistics().blocks_held == 1, "a refused admission leaves everything as it was"


def test_the_budget_is_given_out_in_order(manager):
    answer = manager.assign(admit=[(1, [1, 2, 3]), (2, [4, 5, 6]), (3, [7])], budget=5)
    assert granted(answer) == [(1, 0, 3), (2, 0, 2)]
    assert granted(manager.assign(admit=[(4, [8])], budget=0)) == []


def test_frees_take_effect_before_growth_and_admissions():
    manager = Manager(num_blocks=2)
    manager.assign(admit=[(1, range(8))])
    assert granted(manager.assign(freed=[1], admit=[(2, range(50, 58))])) == [(2, 0, 8)]


def test_a_free_of_an_unknown_sequence_is_passed_over(manager):
    manager.assign(freed=[77])
    assert manager.core.statistics().blocks_free == 8


def test_growth_of_an_unknown_sequence_is_refused_not_fatal(manager):
    manager.assign(admit=[(1, range(3))])
    answer = manager.assign(grow=[(9, 5, [4, 5]), (1, 4, [3])])
    assert answer.num_grown == 0
    assert manager.assign(grow=[(1, 4, [])]).num_grown == 1


def test_shared_blocks_are_free_when_the_last_holder_is_gone(manager):
    manager.assign(admit=[(1, range(9)), (2, range(9))])
    assert manager.assign(freed=[1]).blocks_free == 5
    assert manager.assign(freed=[2]).blocks_free == 8
    statistics = manager.core.statistics()
    assert (statistics.blocks_cached, statistics.blocks_held) == (3, 0), "and what is left of the last one"


def test_a_dead_schedulers_last_exchange_leaves_no_names(manager):
    manager.assign(admit=[(1, range(9))])
    manager.assign(admit=[(2, range(20, 29))])  # granted, but perhaps never computed
    manager.core.release_all()
    manager.core.check_integrity()
    assert manager.core.statistics().blocks_free == 8
    assert granted(manager.assign(admit=[(3, range(20, 29))])) == [(3, 0, 9)]
    assert granted(manager.assign(admit=[(4, range(9))])) == [(4, 8, 1)], "what was computed before is kept"


def test_of_steps_that_ran_ahead_a_dead_scheduler_leaves_no_names_either(manager):
    manager.assign(admit=[(1, range(4))])
    manager.assign(admit=[(2, range(10, 14))], computed=0)
    manager.assign(admit=[(3, range(20, 24))], computed=1)
    manager.core.release_all()
    again = manager.assign(admit=[(4, [*range(5)]), (5, [*range(10, 15)]), (6, [*range(20, 25)])])
    assert [cached for _, cached, _ in granted(again)] == [4, 0, 0]


def test_the_successor_of_a_dead_scheduler_counts_from_one_and_finds_parts_of_blocks(manager):
    for _ in range(5):
        manager.assign()
    manager.assign(admit=[(1, range(6))])
    manager.assign(grow=[(1, 7, [6])])  # more of its last block, perhaps never computed
    manager.assign(freed=[1])
    manager.core.release_all()
    manager.steps = 0
    assert granted(manager.assign(admit=[(2, range(9))])) == [(2, 7, 2)]


def test_tokens_that_are_learned_late_name_the_blocks_of_a_sequence_that_is_freed_at_once(manager):
    manager.assign(admit=[(1, range(7))])
    manager.assign(grow=[(1, 8, ())], computed=0)  # the eighth token is not known yet
    manager.assign(learn=[(1, [7])], freed=[1])
    assert granted(manager.assign(admit=[(2, range(9))])) == [(2, 8, 1)]


def copies(answer):
    return list(zip(answer.copy_sources.tolist(), answer.copy_destinations.tolist(), strict=True))


def test_what_a_running_sequence_has_of_a_block_is_copied_token_by_token(manager):
    (running,) = manager.assign(admit=[(1, [0, 1, 2, 3, 4, 5])]).admitted
    manager.assign(grow=[(1, 7, [6])])
    answer = manager.assign(
        grow=[(1, 8, [7])], admit=[(2, [0, 1, 2, 3, 4, 5, 6, 7, 8]), (3, [0, 1, 2, 3, 4, 9])]
    )
    assert granted(answer) == [(2, 8, 1), (3, 5, 1)], (
        "the eighth is computed in this step, for all who share it"
    )
    assert copies(answer) == [(running.blocks[1], answer.admitted[1].blocks[1])]
    assert manager.core.statistics().tokens_copied == 1
    answer = manager.assign(grow=[(1, 9, [8])], admit=[(4, [0, 1, 2, 3, 4, 5, 6, 9])])
    assert granted(answer) == [(4, 7, 1)], "of what is full by now"


def test_what_this_step_computes_is_not_copied(manager):
    assert granted(manager.assign(admit=[(1, [0, 1, 2]), (2, [0, 1, 9])])) == [(1, 0, 3), (2, 0, 3)]
    answer = manager.assign(grow=[(1, 4, [3])], admit=[(3, [0, 1, 2, 3])])
    assert granted(answer) == [(3, 3, 1)]


def test_the_last_block_of_an_ended_sequence_is_copied_until_somebody_else_has_it():
    manager = Manager(num_blocks=3)
    (ended,) = manager.assign(admit=[(1, range(6))]).admitted
    answer = manager.assign(freed=[1], admit=[(2, range(7))])
    assert granted(answer) == [(2, 6, 1)]
    assert copies(answer) == [(ended.blocks[1], answer.admitted[0].blocks[1])]
    manager.assign(freed=[2], admit=[(3, range(50, 62))])
    assert granted(manager.assign(freed=[3], admit=[(4, range(7))])) == [(4, 0, 7)]


def test_of_blocks_that_begin_alike_the_one_with_most_in_common_is_copied():
    manager = Manager(num_blocks=16)
    for serial, last in enumerate(([5, 9, 9], [5, 6, 9], [5, 8, 9]), start=1):
        manager.assign(admit=[(serial, last)])
    assert granted(manager.assign(admit=[(9, [5, 6, 7, 8])])) == [(9, 2, 2)]


def test_of_one_that_skips_the_cache_nothing_is_copied(manager):
    manager.assign(admit=[(1, range(6))])
    assert granted(manager.assign(admit=[(2, range(6))], skip_cache=True)) == [(2, 0, 6)]


def test_nothing_is_copied_under_another_salt_or_after_another_prefix(manager):
    manager.assign(admit=[(1, range(6), "one")])
    answer = manager.assign(admit=[(2, range(6), "other"), (3, [9, 1, 2, 3, 4, 5], "one")])
    assert [cached for _, cached, _ in granted(answer)] == [0, 0]


def test_slots_that_hold_no_token_are_fewer_than_a_block_for_each_sequence(manager):
    manager.assign(admit=[(1, range(9)), (2, range(6))])
    statistics = manager.core.statistics()
    assert (statistics.slots_wasted, statistics.sequences) == (3 + 2, 2)


def test_slots_that_hold_no_token_are_counted_whatever_is_shared():
    manager, rng = Manager(num_blocks=64), random.Random(3)
    lengths: dict[int, int] = {}
    for serial in range(60):
        freed = [one for one in lengths if rng.random() < 0.2]
        lengths = {one: length for one, length in lengths.items() if one not in freed}
        room = manager.core.pool.num_free > 12
        tokens = [rng.randrange(2) for _ in range(rng.randrange(1, 14))]
        grown = {
            one: length + rng.randrange(5) for one, length in lengths.items() if room and rng.random() < 0.5
        }
        answer = manager.assign(
            freed=freed,
            grow=[(one, length, [7] * (length - lengths[one])) for one, length in grown.items()],
            admit=[(serial, tokens)] if room else [],
        )
        lengths |= dict(list(grown.items())[: answer.num_grown])
        lengths |= {one.serial: len(tokens) for one in answer.admitted}
        filled: dict[int, int] = {}
        for one in manager.core._sequences.values():
            for index, block in enumerate(one.held):
                filled[block] = max(filled.get(block, 0), max(0, min(4, one.granted - 4 * index)))
        assert manager.core.statistics().slots_wasted == 4 * len(filled) - sum(filled.values())
    assert manager.core.statistics().tokens_hit > 20, "some of it was shared"


def test_without_prefix_caching_every_token_is_computed():
    manager = Manager(caching=False)
    manager.assign(admit=[(1, range(9))])
    assert granted(manager.assign(admit=[(2, range(9))])) == [(2, 0, 9)]
    assert manager.core.statistics().blocks_cached == 0


def test_integrity_notices_a_reference_that_is_no_sequences(manager):
    manager.core.pool.take(1)
    with pytest.raises(AssertionError, match="1 references, 0 sequences"):
        manager.core.check_integrity()


def test_what_was_computed_of_a_guess_is_found_only_when_it_has_been_computed_again(manager):
    manager.assign(admit=[(1, range(6))])
    answer = manager.assign(grow=[(1, 10, [6])], drafts=[3])
    assert answer.grown_counts.tolist() == [1], "slots for the guesses too"
    manager.assign(learn=[(1, [70])], freed=[1])  # the guess at position 7 was wrong
    assert granted(manager.assign(admit=[(2, [*range(7), 70, 8])])) == [(2, 7, 2)]


def test_a_right_guess_is_found_from_the_next_step_on(manager):
    manager.assign(admit=[(1, range(6))])
    manager.assign(grow=[(1, 9, [6])], drafts=[2])
    manager.assign(grow=[(1, 10, [7, 8, 9])])
    assert granted(manager.assign(admit=[(2, [*range(10), 20])])) == [(2, 10, 1)]
