"""Every kernel against the reference, on drawn shapes: odd sizes, nothing at all, views into wider rows."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from pageant.kernels.base import NO_BIASES, ExpertBiases, HeadNorms, SamplingTensors
from pageant.kernels.cpu import CpuKernels
from pageant.kernels.reference import ReferenceKernels

DTYPES = st.sampled_from([torch.float32, torch.bfloat16, torch.float16])
SIZES = st.one_of(st.sampled_from([1, 15, 16, 17, 32, 64, 128]), st.integers(1, 200))
ROWS = st.one_of(st.sampled_from([0, 1, 2, 7]), st.integers(0, 70))

drawn = settings(
    max_examples=80,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


def numbers(*shape: int, dtype: torch.dtype, seed: int, spare: int = 0) -> Tensor:
    """Normal numbers, cut from rows that are `spare` wider."""
    generator = torch.Generator().manual_seed(seed)
    rows, width = shape[0], shape[1:].numel() if isinstance(shape, torch.Size) else 1
    for size in shape[1:]:
        width *= size
    whole = torch.randn(rows, width + spare, generator=generator).to(dtype)
    return whole[:, :width].view(shape)


def assert_near(found: Tensor, expected: Tensor, scale: float = 1.0) -> None:
    """Equal up to a rounding or two of the dtype."""
    assert found.dtype == expected.dtype and found.shape == expected.shape
    step = {torch.float32: 2e-6, torch.bfloat16: 2.0**-7, torch.float16: 2.0**-10}[found.dtype]
    torch.testing.assert_close(found, expected, atol=step * scale, rtol=step)


@drawn
@given(rows=ROWS, inputs=SIZES, outputs=SIZES, biased=st.booleans(), dtype=DTYPES, seed=st.integers(0, 99))
def test_linear(
    cpu: CpuKernels, rows: int, inputs: int, outputs: int, biased: bool, dtype: torch.dtype, seed: int
) -> None:
    x = numbers(rows, inputs, dtype=dtype, seed=seed, spare=seed % 3)
    weight = numbers(outputs, inputs, dtype=dtype, seed=seed + 1)
    bias = numbers(1, outputs, dtype=dtype, seed=seed + 2)[0] if biased else None
    exact = x.double() @ weight.double().T + (bias.double() if bias is not None else 0)
    assert_near(cpu.linear(x, weight, bias), exact.to(dtype), scale=inputs**0.5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("rows", [1, 3, 150])
def test_linear_of_columns_and_of_parts_of_rows(cpu: CpuKernels, rows: int, dtype: torch.dtype) -> None:
    """Weights that lie in memory otherwise than a checkpoint has them are taken for what they are."""
    x, weight = numbers(rows, 70, dtype=dtype, seed=1), numbers(33, 70, dtype=dtype, seed=2)
    for other_x in (x, x.T.contiguous().T):
        for other_weight in (weight, weight.T.contiguous().T, numbers(33, 90, dtype=dtype, seed=3)[:, :70]):
            expected = cpu.linear(x, other_weight.contiguous())
            assert torch.equal(cpu.linear(other_x, other_weight), expected)
            head = cpu.logits(other_x, other_weight)
            assert torch.equal(head, cpu.logits(x, other_weight.contiguous()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_linear_of_rows_that_lie_within_each_other(leveled: CpuKernels, dtype: torch.dtype) -> None:
    """Multiply rows like those of a column that was turned, and like one row that stands for many."""
    column, row = numbers(70, 1, dtype=dtype, seed=1), numbers(1, 70, dtype=dtype, seed=2)
    for weight in (column.T, row.expand(5, 70), row.expand(21, 70)):
        ours = min(9, leveled.rows_own_max[dtype])  # torch's bits go by how rows lie
        x = numbers(ours, 70, dtype=dtype, seed=3)
        assert torch.equal(
            leveled.linear(x, weight), leveled.linear(x, weight.clone(memory_format=torch.contiguous_format))
        )


@drawn
@given(
    shape=st.one_of(st.tuples(ROWS, SIZES), st.tuples(st.integers(0, 9), st.integers(1, 5), SIZES)),
    dtype=DTYPES,
    seed=st.integers(0, 99),
)
def test_norms(
    cpu: CpuKernels, reference: ReferenceKernels, shape: tuple[int, ...], dtype: torch.dtype, seed: int
) -> None:
    x = numbers(*shape, dtype=dtype, seed=seed, spare=seed % 3)
    weight, bias = numbers(2, shape[-1], dtype=dtype, seed=seed + 1)
    assert_near(cpu.rms_norm(x, weight, 1e-6), reference.rms_norm(x, weight, 1e-6), 4)
    wide = weight.float()
    assert_near(cpu.wide_rms_norm(x, wide, 1e-6), reference.wide_rms_norm(x, wide, 1e-6), 4)
    # The difference of two numbers from their mean has few good bits left.
    if shape[-1] > 4:
        assert_near(cpu.layer_norm(x, weight, bias, 1e-5), reference.layer_norm(x, weight, bias, 1e-5), 8)
    if len(shape) == 3:
        return
    residual = numbers(*shape, dtype=dtype, seed=seed + 2)
    for name, weights in {
        "add_rms_norm": (weight,),
        "add_wide_rms_norm": (wide,),
        "add_layer_norm": (weight, bias),
    }.items():
        if name == "add_layer_norm" and shape[-1] <= 4:
            continue
        found, expected = (
            getattr(kernels, name)(x, residual, *weights, 1e-5) for kernels in (cpu, reference)
        )
        assert_near(found[0], expected[0], 8)
        assert torch.equal(found[1], expected[1])


@drawn
@given(rows=ROWS, size=SIZES, dtype=DTYPES, seed=st.integers(0, 99))
def test_activations(
    cpu: CpuKernels, reference: ReferenceKernels, rows: int, size: int, dtype: torch.dtype, seed: int
) -> None:
    gate_up = numbers(rows, 2 * size, dtype=dtype, seed=seed, spare=seed % 3) * 4
    assert_near(cpu.silu_and_mul(gate_up), reference.silu_and_mul(gate_up), 16)
    assert_near(cpu.clamped_swiglu(gate_up), reference.clamped_swiglu(gate_up), 16)
    for tanh in (False, True):
        assert_near(cpu.gelu(gate_up, tanh), reference.gelu(gate_up, tanh), 4)
        assert_near(cpu.gelu_and_mul(gate_up, tanh), reference.gelu_and_mul(gate_up, tanh), 16)


class Heads:
    """A step's heads, cut from a fused projection, and the cache that they go into."""

    def __init__(self, tokens: int, heads: tuple[int, int], size: int, dtype: torch.dtype, seed: int) -> None:
        sizes = [heads[0] * size, heads[1] * size, heads[1] * size]
        fused = numbers(tokens, sum(sizes), dtype=dtype, seed=seed, spare=3)
        parts = torch.split_with_sizes(fused, sizes, dim=1)
        self.query, self.key, self.value = (part.unflatten(1, (-1, size)) for part in parts)
        self.caches = [torch.zeros(10, heads[1], 4, size, dtype=dtype) for _ in range(2)]
        generator = torch.Generator().manual_seed(seed)
        self.positions = torch.randint(50, (tokens,), generator=generator)
        self.slots = torch.randperm(40, generator=generator)[:tokens]

    def run(self, kernels: ReferenceKernels, table: Tensor | None, norms: HeadNorms | None) -> list[Tensor]:
        """Return the queries and the caches afterwards."""
        heads = self.query, self.key, self.value
        kernels.rope_and_write_kv(*heads, table, self.positions, *self.caches, self.slots, norms)
        return [self.query, *self.caches]


@drawn
@given(
    tokens=st.integers(0, 9),
    heads=st.sampled_from([(1, 1), (4, 2), (9, 3), (5, 1)]),
    halves=st.tuples(st.integers(0, 70), st.integers(1, 9)),
    wide=st.sampled_from([None, False, True]),
    dtype=DTYPES,
    seed=st.integers(0, 99),
)
@example(tokens=9, heads=(4, 2), halves=(28, 8), wide=False, dtype=torch.bfloat16, seed=0)
@example(tokens=9, heads=(4, 2), halves=(60, 8), wide=True, dtype=torch.bfloat16, seed=0)
def test_what_heads_go_through_before_attention(
    cpu: CpuKernels,
    reference: ReferenceKernels,
    tokens: int,
    heads: tuple[int, int],
    halves: tuple[int, int],
    wide: bool | None,
    dtype: torch.dtype,
    seed: int,
) -> None:
    rotary_dim, head_dim = 2 * halves[0], 2 * halves[0] + halves[1]
    table = numbers(50, rotary_dim, dtype=torch.float32, seed=seed) if rotary_dim else None
    norms = None
    if wide is not None:
        query, key = numbers(2, head_dim, dtype=torch.float32 if wide else dtype, seed=seed + 1)
        norms = HeadNorms(query=query, key=key, eps=1e-6, wide=wide)
    shape = (tokens, heads, head_dim, dtype, seed)
    together = Heads(*shape).run(cpu, table, norms)
    for found, expected in zip(together, Heads(*shape).run(reference, table, norms), strict=True):
        assert_near(found, expected, 8)
    if norms is not None:  # the same bits one after another
        apart, norm = Heads(*shape), cpu.wide_rms_norm if wide else cpu.rms_norm
        apart.query = norm(apart.query, norms.query, norms.eps)
        apart.key = norm(apart.key, norms.key, norms.eps)
        for found, expected in zip(together, apart.run(cpu, table, None), strict=True):
            assert torch.equal(found, expected)


@drawn
@given(
    moved=st.integers(1, 60).flatmap(
        lambda count: st.tuples(st.just(count), st.integers(0, count), st.integers(1, count))
    ),
    block=st.sampled_from([(1, 1, 1), (3, 5, 7), (2, 16, 64), (8, 16, 128)]),
    dtype=DTYPES,
    seed=st.integers(0, 99),
)
def test_moves_of_blocks(
    cpu: CpuKernels,
    reference: ReferenceKernels,
    moved: tuple[int, int, int],
    block: tuple[int, int, int],
    dtype: torch.dtype,
    seed: int,
) -> None:
    """Destinations are often sources too, in rings and chains; a source may have several."""
    (num_blocks, count, num_sources), generator = moved, torch.Generator().manual_seed(seed)
    destinations = torch.randperm(num_blocks, generator=generator)[:count]
    sources = torch.randint(num_sources, (count,), generator=generator)
    # Layers of two sizes.
    shapes = [(num_blocks, *block), (num_blocks, *block), (num_blocks, 1, 1, 3)]
    caches = [tuple(torch.randn(shape, generator=generator).to(dtype) for _ in range(2)) for shape in shapes]
    expected = [(keys.clone(), values.clone()) for keys, values in caches]
    cpu.move_kv(caches, sources, destinations)
    reference.move_kv(expected, sources, destinations)
    for found, wanted in zip(caches, expected, strict=True):
        assert torch.equal(found[0], wanted[0]) and torch.equal(found[1], wanted[1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_activations_hold_at_the_ends_of_the_range(cpu: CpuKernels, dtype: torch.dtype) -> None:
    lowest = max(-1e30, torch.finfo(dtype).min)
    x = torch.tensor([[lowest, -200.0, -88.0, -0.0, 0.0, 88.0, 200.0, 1e30, float("inf")]], dtype=dtype)
    ones = torch.ones_like(x)
    for acted in (
        cpu.silu_and_mul(torch.cat((x, ones), dim=1)),
        cpu.gelu(x, False),
    ):
        torch.testing.assert_close(acted[0, 3:], x[0, 3:])
        assert bool((acted[0, :3].abs() < 1e-5).all())


def test_float16_is_read_and_rounded_as_torch_does(leveled: CpuKernels) -> None:
    """Sums and products of any two: subnormal ones, ties, those that overflow, and NaN."""
    bits = torch.randint(-(1 << 15), 1 << 15, (2, 200, 501), generator=torch.Generator().manual_seed(0))
    x, y = bits.short().view(torch.float16)
    same = {"rtol": 0.0, "atol": 0.0, "equal_nan": True}
    total = leveled.add_rms_norm(x, y, torch.ones(501).half(), 1e-6)[1]
    torch.testing.assert_close(total, (x.float() + y.float()).half(), **same)
    product = leveled.linear(x[:, :1], y[0, :, None])
    torch.testing.assert_close(product, (x[:, :1].float() * y[0].float() + 0.0).half(), **same)


@drawn
@given(
    tokens=st.one_of(st.sampled_from([0, 1, 2]), st.integers(0, 130)),
    experts=st.integers(1, 9).flatmap(lambda count: st.tuples(st.just(count), st.integers(1, count))),
    sizes=st.tuples(SIZES, SIZES),
    activation=st.sampled_from(["silu", "gelu", "gelu_tanh", "clamped_swiglu"]),
    normalise=st.booleans(),
    dtype=DTYPES,
    seed=st.integers(0, 99),
)
def test_experts(
    cpu: CpuKernels,
    reference: ReferenceKernels,
    tokens: int,
    experts: tuple[int, int],
    sizes: tuple[int, int],
    activation: str,
    normalise: bool,
    dtype: torch.dtype,
    seed: int,
) -> None:
    (num_experts, top_k), (hidden, inner) = experts, sizes
    logits = numbers(tokens, num_experts, dtype=dtype, seed=seed, spare=seed % 3)
    if seed % 2:
        logits = logits.round()  # ties, and experts that all or none choose
    found, expected = (kernels.route(logits, top_k, normalise) for kernels in (cpu, reference))
    assert_near(found[0], expected[0])
    assert torch.equal(found[1], expected[1])
    x = numbers(tokens, hidden, dtype=dtype, seed=seed, spare=seed % 3)
    gate_up = numbers(num_experts, 2 * inner, hidden, dtype=dtype, seed=seed + 1) / hidden**0.5
    down = numbers(num_experts, hidden, inner, dtype=dtype, seed=seed + 2) / inner**0.5
    biases = NO_BIASES
    if seed % 3 == 0:
        biases = ExpertBiases(
            *(numbers(num_experts, size, dtype=dtype, seed=seed) for size in (2 * inner, hidden))
        )
    outputs = (
        kernels.moe(x, gate_up, down, *expected, activation, biases=biases) for kernels in (cpu, reference)
    )
    assert_near(*outputs, 8)


@drawn
@given(
    rows=st.integers(0, 12),
    vocab_size=st.one_of(st.sampled_from([1, 63, 64, 65]), st.integers(1, 3000)),
    scale=st.sampled_from([0.0, 0.3, 3.0, 30.0]),
    seed=st.integers(0, 999),
)
def test_the_same_tokens_are_drawn(
    leveled: CpuKernels,
    reference: ReferenceKernels,
    make_draws: Callable[..., tuple[Tensor, SamplingTensors]],
    rows: int,
    vocab_size: int,
    scale: float,
    seed: int,
) -> None:
    logits, params = make_draws(rows, vocab_size, scale, seed)
    assert torch.equal(leveled.sample(logits, params), reference.sample(logits, params))


@pytest.mark.parametrize("rows", [1, 2, 5])
def test_the_same_tokens_are_drawn_where_a_row_is_shared_by_threads(
    cpu: CpuKernels,
    reference: ReferenceKernels,
    make_draws: Callable[..., tuple[Tensor, SamplingTensors]],
    rows: int,
) -> None:
    """Share a row where rows are fewer than threads, and a vocabulary is large; ties lie in several threads' parts."""
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    for seed in range(20):
        logits, params = make_draws(rows, 20_000 + seed, 3.0, seed)
        assert torch.equal(cpu.sample(logits, params), reference.sample(logits, params))
    torch.set_num_threads(before)
