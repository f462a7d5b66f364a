"""A row's bits are its own: alone, among neighbours, and however its prompt was cut into chunks."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from pageant.kernels.base import AttentionBatch, ExpertBiases
from pageant.kernels.cpu import CpuKernels
from pageant.kernels.cpu.levels import levels_here
from pageant.kernels.low_rank import Addition, LowRank

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
HEADS, KV_HEADS, HEAD_DIM, BLOCK = 6, 2, 40, 8
CONTEXT = 1200  # more than two splits, and no multiple of anything


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("inputs", [96, 1031])
def test_linear_alone_and_among_1_to_200_rows(
    deterministic: CpuKernels, dtype: torch.dtype, inputs: int
) -> None:
    x, weight = torch.randn(200, inputs).to(dtype), torch.randn(123, inputs).to(dtype)
    alone = torch.cat([deterministic.linear(row, weight) for row in x.split(1)])
    for count in (*range(1, 65), 97, 128, 200):
        assert torch.equal(deterministic.linear(x[:count], weight), alone[:count]), f"{count} rows"
        assert torch.equal(deterministic.linear(x[-count:], weight), alone[-count:]), f"{count} last rows"


@pytest.mark.parametrize("dtype", DTYPES)
def test_linear_is_its_own_up_to_its_limit_without_being_told(cpu: CpuKernels, dtype: torch.dtype) -> None:
    limit = min(cpu.rows_own_max[dtype], 100)
    x, weight = torch.randn(limit, 64).to(dtype), torch.randn(33, 64).to(dtype)
    alone = torch.cat([cpu.linear(row, weight) for row in x.split(1)])
    assert torch.equal(cpu.linear(x, weight), alone)


@pytest.mark.parametrize("level", ["avx512_bf16", "avx512_vnni", "avx512", "avx2"])
def test_lanes_multiply_any_number_of_rows_of_bfloat16(level: str) -> None:
    """96 rows are a block; nothing is torch's."""
    if level not in levels_here():
        pytest.skip(f"this processor has no {level}")
    kernels = CpuKernels(level)
    x, weight = torch.randn(250, 150).bfloat16(), torch.randn(40, 150).bfloat16()
    alone = torch.cat([kernels.linear(row, weight) for row in x.split(1)])
    for count in (2, 5, 64, 95, 96, 97, 200, 250):
        assert torch.equal(kernels.linear(x[:count], weight), alone[:count]), f"{count} rows"


@pytest.mark.parametrize("outputs", [2_048, 2_080, 2_064, 2_049])
def test_results_of_many_rows_are_those_of_few(deterministic: CpuKernels, outputs: int) -> None:
    """Megabytes of results take another way to memory, where they are whole lines of it."""
    x, weight, some = (torch.randn(size).bfloat16() for size in ((600, 96), (outputs, 96), (outputs,)))
    for bias in (None, some):
        few = torch.cat([deterministic.linear(rows, weight, bias) for rows in x.split(40)])
        assert torch.equal(deterministic.linear(x, weight, bias), few)


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_an_adapter_adds_alone_and_among_1_to_40_rows(leveled: CpuKernels, dtype: torch.dtype) -> None:
    x, y = torch.randn(40, 70).to(dtype), torch.randn(40, 1100).to(dtype)
    low_rank = LowRank(torch.randn(70, 20).to(dtype), (torch.randn(20, 1100).to(dtype),), (0,))

    def added(tokens: range) -> Tensor:
        found = y.clone()
        leveled.add_low_rank(x, found, [Addition(torch.tensor(tokens), low_rank)])
        return found[torch.tensor(tokens)]

    alone = torch.cat([added(range(row, row + 1)) for row in range(40)])
    assert not torch.equal(alone, y)
    for count in range(1, 41):
        assert torch.equal(added(range(count)), alone[:count]), f"{count} rows"


@pytest.mark.parametrize("dtype", DTYPES)
def test_pointwise_kernels_among_neighbours(cpu: CpuKernels, dtype: torch.dtype) -> None:
    x, weight = torch.randn(700, 90).to(dtype), torch.randn(90).to(dtype)
    for kernel in (
        lambda x: cpu.rms_norm(x, weight, 1e-6),
        lambda x: cpu.add_rms_norm(x, x, weight, 1e-6)[0],
        lambda x: cpu.layer_norm(x, weight, weight, 1e-6),
        cpu.silu_and_mul,
    ):
        together = kernel(x)
        for row in (0, 1, 350, 699):
            assert torch.equal(kernel(x[row : row + 1]), together[row : row + 1])


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_tokens_experts_alone_and_among_neighbours(leveled: CpuKernels, dtype: torch.dtype) -> None:
    """Expert 0 gets all tokens, which is more than it takes at once; the others a few, or one."""
    num_experts, top_k, hidden, inner = 40, 3, 70, 45
    x = torch.randn(200, hidden).to(dtype)
    gate_up = torch.randn(num_experts, 2 * inner, hidden).to(dtype)
    down = torch.randn(num_experts, hidden, inner).to(dtype)
    logits = torch.randn(200, num_experts).to(dtype)
    logits[:, 0] = 9.0
    biases = ExpertBiases(*(torch.randn(num_experts, size).to(dtype) for size in (2 * inner, hidden)))

    def run(rows: slice) -> Tensor:
        chosen = leveled.route(logits[rows], top_k, True)
        return leveled.moe(x[rows], gate_up, down, *chosen, "silu", biases=biases)

    alone = torch.cat([run(slice(row, row + 1)) for row in range(200)])
    for rows in (slice(0, 200), slice(0, 7), slice(90, 197), slice(150, 152)):
        assert torch.equal(run(rows), alone[rows])


class Prompt:
    """One sequence in a cache that other sequences are in too."""

    def __init__(self, dtype: torch.dtype) -> None:
        generator = torch.Generator().manual_seed(11)
        self.num_blocks = 400
        shape = (self.num_blocks, KV_HEADS, BLOCK, HEAD_DIM)
        self.keys, self.values = (torch.randn(shape, generator=generator).to(dtype) for _ in range(2))
        self.query = torch.randn(CONTEXT, HEADS, HEAD_DIM, generator=generator).to(dtype)
        self.other_query = torch.randn(CONTEXT, HEADS, HEAD_DIM, generator=generator).to(dtype)
        order = torch.randperm(self.num_blocks, generator=generator).int()
        self.table, self.other_table = order[:150], order[150:300]

    def attend(
        self,
        kernels: CpuKernels,
        start: int,
        stop: int,
        window: int | None = None,
        others: list[tuple[int, int]] | None = None,
        first: bool = True,
    ) -> Tensor:
        """The outputs of tokens start to stop, computed in one step with chunks of the other prompt.

        Heads have sinks where there is a window.
        """
        chunks = [(range(*other), self.other_table, self.other_query) for other in others or []]
        chunks.insert(0 if first else len(chunks), (range(start, stop), self.table, self.query))
        positions = torch.cat([torch.tensor(list(span)) for span, _, _ in chunks])
        lengths = [len(span) for span, _, _ in chunks]
        batch = AttentionBatch(
            query_starts=torch.tensor([0, *lengths]).cumsum(0).int(),
            context_lengths=torch.tensor([span.stop for span, _, _ in chunks], dtype=torch.int32),
            block_tables=torch.stack([table for _, table, _ in chunks]),
            slots=torch.zeros(len(positions), dtype=torch.int64),
            positions=positions,
            max_query_length=max(lengths),
            max_context_length=max(span.stop for span, _, _ in chunks),
        )
        query = torch.cat([queries[span.start : span.stop] for span, _, queries in chunks])
        sinks = None if window is None else torch.linspace(-3, 3, HEADS)
        output = kernels.paged_attention(query, self.keys, self.values, batch, 0.2, window, None, sinks)
        place = 0 if first else len(positions) - (stop - start)
        return output[place : place + stop - start]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("window", [None, 100])
def test_attention_however_the_prompt_is_cut(cpu: CpuKernels, dtype: torch.dtype, window: int | None) -> None:
    prompt = Prompt(dtype)
    whole = prompt.attend(cpu, 0, CONTEXT, window)
    for size in (1, 5, 16, 17, 64, 511, 512, 700):
        start = 0 if size > 16 else CONTEXT - 40 * size
        for at in range(start, CONTEXT, size):
            stop = min(at + size, CONTEXT)
            chunk = prompt.attend(cpu, at, stop, window)
            assert torch.equal(chunk, whole[at:stop]), f"tokens {at} to {stop} in chunks of {size}"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("neighbours", [1, 2, 5, 16, 63])
def test_attention_of_a_decode_alone_and_among_neighbours(
    cpu: CpuKernels, dtype: torch.dtype, neighbours: int
) -> None:
    prompt = Prompt(dtype)
    alone = prompt.attend(cpu, CONTEXT - 1, CONTEXT)
    others = [(index * 17, index * 17 + 1 + (index % 3) * 20) for index in range(neighbours)]
    for first in (True, False):
        assert torch.equal(prompt.attend(cpu, CONTEXT - 1, CONTEXT, others=others, first=first), alone)


@pytest.mark.parametrize("dtype", DTYPES)
def test_attention_of_few_rows_as_of_many_on_every_instruction_set(
    leveled: CpuKernels, dtype: torch.dtype
) -> None:
    """Few read the cache as it lies, many a panel."""
    prompt = Prompt(dtype)
    many = prompt.attend(leveled, CONTEXT - 40, CONTEXT)
    for tokens in (1, 2, 3):
        assert torch.equal(prompt.attend(leveled, CONTEXT - tokens, CONTEXT), many[-tokens:])


@pytest.mark.parametrize("dtype", DTYPES)
def test_attention_on_any_number_of_threads(cpu: CpuKernels, dtype: torch.dtype) -> None:
    prompt, before = Prompt(dtype), torch.get_num_threads()
    found = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        found.append(prompt.attend(cpu, CONTEXT - 3, CONTEXT))
    torch.set_num_threads(before)
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])
