"""Every operation of `Collectives`, by every implementation, against plain torch."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pageant.kernels.collectives.base import Collectives, GroupMisuse
from tests.kernels.collectives.groups import GROUPS, on_ranks

SIZES = (1, 2, 3, 4)
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@pytest.fixture(scope="module", params=[(kind, size) for kind in GROUPS for size in SIZES], ids=str)
def group(request: pytest.FixtureRequest) -> Iterator[list[Collectives]]:
    kind, size = request.param
    with GROUPS[kind](size) as ranks:
        yield ranks


@given(
    segments=st.sampled_from((1, 2, 4)),
    rows=st.sampled_from((0, 1, 2, 3, 5, 33)),
    columns=st.sampled_from((1, 16, 1000)),
    dtype=st.sampled_from(DTYPES),
    biased=st.booleans(),
    seed=st.integers(0, 2**31),
)
@settings(max_examples=12, deadline=None)
def test_sums_are_those_of_plain_torch_and_equal_on_all_ranks(
    group, segments, rows, columns, dtype, biased, seed
):
    generator = torch.Generator().manual_seed(seed)
    parts = torch.randn(len(group), segments, rows, columns, generator=generator)
    bias = torch.randn(columns, generator=generator).to(dtype) if biased else None
    outs = [torch.full((rows, columns), torch.nan, dtype=dtype) for _ in group]
    on_ranks(group, lambda rank: rank.all_reduce(parts[rank.rank], outs[rank.rank], bias))
    expected = parts.double().sum((0, 1)) + (0 if bias is None else bias.double())
    for out in outs:
        assert torch.equal(out, outs[0])
    torch.testing.assert_close(outs[0].double(), expected.to(dtype).double(), rtol=2e-2, atol=2e-2)
    if dtype == torch.float32:
        torch.testing.assert_close(outs[0].double(), expected, rtol=1e-5, atol=1e-5)


@given(
    rows=st.sampled_from((1, 7, 64)),
    columns=st.sampled_from((16, 640)),
    dtype=st.sampled_from(DTYPES),
    seed=st.integers(0, 2**31),
)
@settings(max_examples=8, deadline=None)
def test_sums_have_the_bits_of_one_rank_with_all_segments(group, rows, columns, dtype, seed):
    if len(group) == 3:
        pytest.skip("four segments do not divide by three ranks")
    generator = torch.Generator().manual_seed(seed)
    segments = torch.randn(4, rows, columns, generator=generator) * 1e3
    bias = torch.randn(columns, generator=generator)
    alone = torch.empty(rows, columns, dtype=dtype)
    with GROUPS["local"](1) as (one,):
        one.all_reduce(segments, alone, bias)
    by_rank = segments.view(len(group), -1, rows, columns)
    outs = [torch.empty_like(alone) for _ in group]
    on_ranks(group, lambda rank: rank.all_reduce(by_rank[rank.rank], outs[rank.rank], bias))
    assert all(torch.equal(out, alone) for out in outs)
    # The tree by hand: neighbours first, the bias last, rounded once.
    tree = (segments[0] + segments[1]) + (segments[2] + segments[3]) + bias
    assert torch.equal(alone, tree.to(dtype))


def test_a_broadcast_brings_the_roots_tensor_to_all(group):
    for root in range(len(group)):
        found = [torch.full((3, 5), rank.rank, dtype=torch.int64) for rank in group]
        on_ranks(group, lambda rank, found=found, root=root: rank.broadcast(found[rank.rank], root))
        assert all(bool((tensor == root).all()) for tensor in found)


def test_a_scalar_and_an_empty_tensor_can_be_broadcast(group):
    scalars = [torch.tensor(float(rank.rank + 7)) for rank in group]
    empty = torch.empty(0)
    on_ranks(group, lambda rank: (rank.broadcast(scalars[rank.rank]), rank.broadcast(empty)))
    assert all(float(scalar) == 7 for scalar in scalars)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
def test_a_gather_brings_every_part_to_the_root_in_order(group, dtype):
    parts = [torch.full((2, 3), rank.rank % 2, dtype=dtype) for rank in group]
    for root in range(len(group)):
        out = torch.empty(len(group), 2, 3, dtype=dtype)

        def gather(rank: Collectives, out: torch.Tensor = out, root: int = root) -> None:
            rank.gather(parts[rank.rank], out if rank.rank == root else None, root)

        on_ranks(group, gather)
        assert torch.equal(out, torch.stack(parts))


def test_an_all_gather_brings_every_part_to_all(group):
    parts = [torch.arange(6).view(2, 3) + 10 * rank.rank for rank in group]
    outs = [torch.empty(len(group), 2, 3, dtype=torch.int64) for _ in group]
    on_ranks(group, lambda rank: rank.all_gather(parts[rank.rank], outs[rank.rank]))
    assert all(torch.equal(out, torch.stack(parts)) for out in outs)


@pytest.mark.parametrize("columns", [1, 40])
def test_rows_go_to_the_ranks_that_they_are_for(group, columns):
    size = len(group)
    counts = [[(sender * 3 + receiver * 2) % 4 for receiver in range(size)] for sender in range(size)]
    values = [
        torch.cat([torch.full((n, columns), 100.0 * sender + to) for to, n in enumerate(counts[sender])])
        for sender in range(size)
    ]

    def exchange(rank: Collectives) -> torch.Tensor:
        received = [counts[sender][rank.rank] for sender in range(size)]
        return rank.all_to_all(values[rank.rank], counts[rank.rank], received)

    for receiver, found in enumerate(on_ranks(group, exchange)):
        senders = [
            torch.full((counts[sender][receiver], columns), 100.0 * sender + receiver)
            for sender in range(size)
        ]
        assert torch.equal(found, torch.cat(senders))


def test_messages_between_two_ranks_keep_their_order_beside_collectives(group):
    if len(group) < 2:
        pytest.skip("nobody to send to")
    last = len(group) - 1

    def run(rank: Collectives) -> list[int]:
        found = []
        if rank.rank == 0:
            rank.send(torch.tensor([1, 2, 3]), last)
            rank.send(torch.tensor([4.0]), last)
        rank.barrier()
        if rank.rank == last:
            first, second = torch.empty(3, dtype=torch.int64), torch.empty(1)
            rank.receive(first, 0)
            rank.receive(second, 0)
            found = [*first.tolist(), *second.tolist()]
        return found

    assert on_ranks(group, run)[last] == [1, 2, 3, 4.0]


def test_a_sent_tensor_may_be_reused_at_once(group):
    if len(group) < 2:
        pytest.skip("nobody to send to")

    def run(rank: Collectives) -> list[float]:
        found = []
        tensor = torch.zeros(5000)
        for number in range(6):
            if rank.rank == 0:
                tensor.fill_(number)
                rank.send(tensor, 1)
            elif rank.rank == 1:
                rank.receive(tensor, 0)
                found.append(float(tensor.mean()))
        rank.barrier()
        return found

    assert on_ranks(group, run)[1] == list(range(6))


BAD_CALLS = {
    "parts of two dimensions": lambda rank: rank.all_reduce(torch.zeros(2, 2), torch.zeros(2, 2)),
    "parts in bfloat16": lambda rank: rank.all_reduce(
        torch.zeros(1, 2, 2, dtype=torch.bfloat16), torch.zeros(2, 2)
    ),
    "no segment": lambda rank: rank.all_reduce(torch.zeros(0, 2, 2), torch.zeros(2, 2)),
    "out of another shape": lambda rank: rank.all_reduce(torch.zeros(1, 2, 2), torch.zeros(2, 3)),
    "out of whole numbers": lambda rank: rank.all_reduce(
        torch.zeros(1, 2, 2), torch.zeros(2, 2, dtype=torch.int64)
    ),
    "bias of another size": lambda rank: rank.all_reduce(
        torch.zeros(1, 2, 2), torch.zeros(2, 2), torch.zeros(3)
    ),
    "not contiguous": lambda rank: rank.broadcast(torch.zeros(4, 4).T[:, :2]),
    "an unknown root": lambda rank: rank.broadcast(torch.zeros(1), 9),
    "a negative root": lambda rank: rank.broadcast(torch.zeros(1), -1),
    "out of another size": lambda rank: rank.all_gather(torch.zeros(2), torch.zeros(9, 2)),
    "out of another dtype": lambda rank: rank.all_gather(
        torch.zeros(2), torch.zeros(rank.size, 2, dtype=torch.int64)
    ),
    "itself": lambda rank: rank.send(torch.zeros(1), rank.rank),
    "counts that do not add up": lambda rank: rank.all_to_all(
        torch.zeros(5, 1), [1] * rank.size, [1] * rank.size
    ),
    "too few counts": lambda rank: rank.all_to_all(torch.zeros(0, 1), [], []),
}


@pytest.mark.parametrize("call", BAD_CALLS.values(), ids=BAD_CALLS.keys())
def test_misuse_is_refused_in_words_and_breaks_nothing(group, call):
    for rank in group:
        with pytest.raises(GroupMisuse, match="expected"):
            call(rank)
    on_ranks(group, lambda rank: rank.barrier())
