"""Names of blocks: equal for equal prefixes, and for nothing else."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from pageant.actors.blocks.hashing import NAME_BYTES, block_name, block_names, root_name
from pageant.protocol.arrays import int32

TOKENS = st.lists(st.integers(0, 2), max_size=12)


@given(one=TOKENS, other=TOKENS)
def test_two_sequences_share_as_many_names_as_they_share_full_blocks(one, other):
    size = 3
    names = zip(
        block_names(root_name(), int32(one), size), block_names(root_name(), int32(other), size), strict=False
    )
    shared = len(list(itertools.takewhile(lambda pair: pair[0] == pair[1], names)))
    common = len(list(itertools.takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))))
    assert shared == common // size


def test_a_name_covers_every_token_before_it():
    first = block_names(root_name(), int32([1, 2, 3, 4]), 2)
    second = block_names(root_name(), int32([9, 2, 3, 4]), 2)
    assert first[1] != second[1], "the last blocks hold the same tokens after different ones"


def test_only_full_blocks_have_names_of_128_bits():
    names = block_names(root_name(), int32(range(11)), 4)
    assert [len(name) for name in names] == [NAME_BYTES, NAME_BYTES]
    assert block_names(root_name(), int32(), 4) == []


def test_a_salt_parts_equal_prefixes():
    tokens = int32([1, 2, 3])
    names = {block_names(root_name(salt), tokens, 3)[0] for salt in (None, "one", "other")}
    assert len(names) == 3


def test_names_can_be_made_block_by_block():
    tokens = int32([5, 6, 7, 8])
    step = block_name(block_name(root_name(), tokens[:2].tobytes()), tokens[2:].tobytes())
    assert block_names(root_name(), tokens, 2)[-1] == step
