"""Drawing tokens: the distribution, the filters, and independence of everything around a row."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from pageant.kernels.base import Kernels, SamplingTensors, TokenMasks
from pageant.kernels.sampling import filter_logits, gumbel_noise, select_rows, token_noise

ParamsMaker = Callable[..., SamplingTensors]


def random_logits(rows: int, vocab_size: int, seed: int = 0, scale: float = 2.0) -> Tensor:
    return torch.randn(rows, vocab_size, generator=torch.Generator().manual_seed(seed)) * scale


def chi_squared(tokens: Tensor, probabilities: Tensor) -> float:
    """The statistic of observed tokens, those expected fewer than five times put together."""
    expected = probabilities.double() * tokens.numel()
    observed = torch.bincount(tokens, minlength=probabilities.numel()).double()
    rare = expected < 5
    expected = torch.cat((expected[~rare], expected[rare].sum()[None]))
    observed = torch.cat((observed[~rare], observed[rare].sum()[None]))
    possible = expected > 0
    assert not observed[~possible].any(), "a token of probability zero was drawn"
    return float(((observed - expected).square() / expected)[possible].sum())


def critical_value(degrees: int) -> float:
    """Return chi-squared at p = 1e-4 (Wilson and Hilferty's approximation): 3.719 is the normal's."""
    spread = 2 / (9 * degrees)
    return degrees * (1 - spread + 3.719 * math.sqrt(spread)) ** 3


def expected_survivors(
    logits: Tensor, *, temperature: float, top_k: float, top_p: float, min_p: float
) -> set[int]:
    """The tokens that the filters leave of one row, straight from their definitions, in float64."""
    probabilities = (logits.double() / temperature).softmax(0)
    left = {token for token in range(logits.numel()) if probabilities[token] >= min_p * probabilities.max()}
    if 0 < top_k < len(left):
        threshold = sorted((float(logits[token]) for token in left), reverse=True)[int(top_k) - 1]
        left = {token for token in left if logits[token] >= threshold}
    total, mass = sum(float(probabilities[token]) for token in left), 0.0
    for token in sorted(left, key=lambda token: -float(probabilities[token])):
        threshold = float(probabilities[token])
        mass += threshold / total
        if mass >= top_p:
            break
    return {token for token in left if probabilities[token] >= threshold}


def test_greedy_rows_take_the_lowest_id_of_the_largest_logits(
    backend: Kernels, make_params: ParamsMaker
) -> None:
    logits = torch.zeros(4, 1000)
    logits[1, [700, 13, 400]] = 5.0
    logits[2, 999] = 1.0
    logits[3] = float("-inf")
    logits[3, 7] = -50.0
    params = make_params(4, temperature=[0.0, 0.0, 1e-6, 0.0], top_k=1, top_p=0.1, seed=9)
    assert backend.sample(logits, params).tolist() == [0, 13, 999, 7]


def test_no_rows_give_no_tokens(backend: Kernels, make_params: ParamsMaker) -> None:
    assert backend.sample(torch.empty(0, 50), make_params(0)).tolist() == []


@pytest.mark.parametrize(
    "filters",
    [
        {},
        {"temperature": 0.6},
        {"temperature": 1.8, "top_k": 6},
        {"top_p": 0.8},
        {"min_p": 0.1},
        {"temperature": 1.3, "top_k": 15, "top_p": 0.9, "min_p": 0.02},
    ],
    ids=str,
)
def test_tokens_follow_the_filtered_softmax(
    backend: Kernels, make_params: ParamsMaker, filters: dict[str, float]
) -> None:
    draws, logits = 20_000, random_logits(1, 31)
    params = make_params(draws, seed=42, position=torch.arange(draws), **filters)
    tokens = backend.sample(logits.expand(draws, -1).contiguous(), params)
    settings = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0} | filters
    left = expected_survivors(logits[0], **settings)
    kept = torch.tensor([token in left for token in range(31)])
    tempered = logits[0].double() / settings["temperature"]
    probabilities = tempered.masked_fill(~kept, float("-inf")).softmax(0)
    assert chi_squared(tokens, probabilities) < critical_value(int((probabilities > 0).sum()) - 1)


def flat_logits(generator: torch.Generator) -> Tensor:
    """Return up to 40 logits that differ by 1.4 at most; many are ties, or equal in their leading bits."""

    def some(*values: float) -> float:
        return values[int(torch.randint(len(values), (), generator=generator))]

    steps = torch.randint(30, (int(torch.randint(2, 40, (), generator=generator)),), generator=generator)
    gap, spacing = some(0.0, 0.25, 1.0), some(0.004, 0.013)
    return torch.cat((torch.zeros(1), -gap - steps * spacing))[
        torch.randperm(len(steps) + 1, generator=generator)
    ]


@pytest.mark.parametrize("filters", ["top_k", "top_p", "min_p", "top_k top_p", "top_k top_p min_p"])
def test_what_is_drawn_is_all_that_the_filters_leave_and_nothing_else(
    backend: Kernels, make_params: ParamsMaker, filters: str
) -> None:
    """Draw so much of flat distributions that each token comes up: one too many or too few shows.

    Edges lie between the shares and ratios of the tokens themselves, where rounding does not reach them.
    """
    generator, draws, cut = torch.Generator().manual_seed(1), 4000, 0
    for _ in range(60):
        logits = flat_logits(generator)
        place = int(torch.randint(len(logits) - 1, (), generator=generator))
        values = {"top_k": 0.0, "top_p": 1.0, "min_p": 0.0}
        if "min_p" in filters:
            ratios = (logits.double() - logits.max()).exp().unique().flip(0)
            edge = place % len(ratios)
            values["min_p"] = float(ratios[edge] + ratios[edge - 1]) / 2 if edge else 1.0
        if "top_k" in filters:
            values["top_k"] = place + 1
        if "top_p" in filters:
            kept = sorted(expected_survivors(logits, temperature=1.0, **values))
            shares = logits[kept].double().softmax(0).sort(descending=True).values.cumsum(0)
            half = place // 2 % len(kept)
            values["top_p"] = float(shares[half] + (shares[half - 1] if half else 0)) / 2
        survivors = expected_survivors(logits, temperature=1.0, **values)
        params = make_params(draws, position=torch.arange(draws), **values)
        tokens = backend.sample(logits.expand(draws, -1).contiguous(), params)
        assert set(tokens.tolist()) == survivors, (logits, values)
        cut += len(survivors) < len(logits)
    assert cut > 40


@pytest.mark.parametrize("varied", ["seed", "sample", "position"])
def test_each_part_of_a_draws_name_makes_it_another_draw(
    backend: Kernels, make_params: ParamsMaker, varied: str
) -> None:
    """Also above 32 bits, where a seed and a position have a second word."""
    shift = 0 if varied == "sample" else 33
    values = torch.arange(5000) << shift
    tokens = backend.sample(torch.zeros(5000, 8), make_params(5000, **{varied: values}))
    assert chi_squared(tokens, torch.full((8,), 1 / 8)) < critical_value(7)


@pytest.mark.parametrize("vocab_size", [37, 1501])
def test_filters_leave_what_their_definitions_say(make_params: ParamsMaker, vocab_size: int) -> None:
    generator = torch.Generator().manual_seed(5)
    rows = 60
    logits = random_logits(rows, vocab_size, seed=1, scale=1.5)
    logits[::3] = logits[::3].round()  # ties
    values = {
        "temperature": torch.rand(rows, generator=generator) * 1.5 + 0.3,
        "top_k": torch.randint(0, vocab_size + 5, (rows,), generator=generator) * (torch.arange(rows) % 2),
        "top_p": torch.rand(rows, generator=generator).clamp_(min=0.01),
        "min_p": torch.rand(rows, generator=generator) * 0.2 * (torch.arange(rows) % 4 == 1),
    }
    values["top_p"][::5] = 1.0
    filtered = filter_logits(logits, make_params(rows, **values))
    for row in range(rows):
        left = set(filtered[row].isfinite().nonzero()[:, 0].tolist())
        assert left == expected_survivors(logits[row], **{name: v[row].item() for name, v in values.items()})


def test_filters_leave_the_most_probable_token_whatever_they_are(make_params: ParamsMaker) -> None:
    logits = random_logits(1, 2000).expand(4, -1)
    params = make_params(
        4, temperature=[1e-4, 1.0, 1.0, 1.0], top_k=[0, 1, 0, 0], top_p=[1, 1, 1e-9, 1], min_p=[0, 0, 0, 1]
    )
    filtered = filter_logits(logits, params)
    assert filtered.argmax(-1).tolist() == [int(logits[0].argmax())] * 4
    assert filtered[1:].isfinite().sum(-1).tolist() == [1, 1, 1]
    assert not filtered.isnan().any()


def mixed_params(make_params: ParamsMaker, rows: int) -> SamplingTensors:
    index = torch.arange(rows)
    return make_params(
        rows,
        temperature=(index % 4) * 0.5,
        top_k=(index % 3) * 20,
        top_p=torch.where(index % 5 < 2, 0.7, 1.0),
        min_p=torch.where(index % 7 == 0, 0.05, 0.0),
        seed=index * 7919 - 40_000,
        sample=index % 2,
        position=index * 13,
    )


@pytest.mark.parametrize("vocab_size", [64, 1003, 5000])
def test_a_rows_token_does_not_depend_on_its_neighbours(
    backend: Kernels, make_params: ParamsMaker, vocab_size: int
) -> None:
    rows = 40
    logits, params = random_logits(rows, vocab_size), mixed_params(make_params, rows)
    together = backend.sample(logits, params)
    for part in (torch.arange(rows).flip(0), torch.arange(0, rows, 3), torch.tensor([8])):
        assert torch.equal(backend.sample(logits[part], select_rows(params, part)), together[part])
    alone = [backend.sample(logits[[row]], select_rows(params, torch.tensor([row]))) for row in range(rows)]
    assert torch.equal(torch.cat(alone), together)


def test_a_shard_of_the_vocabulary_knows_its_tokens_noise() -> None:
    seed, sample, position = torch.tensor([5, -5]), torch.tensor([0, 1]), torch.tensor([9, 1 << 40])
    whole = gumbel_noise(seed, sample, position, 1003)
    rows, tokens = torch.ones(2, 1003).nonzero(as_tuple=True)
    alone = token_noise(seed[rows], sample[rows], position[rows], tokens)
    assert torch.equal(alone, whole.flatten())


def test_noise_is_finite_standard_gumbel() -> None:
    noise = gumbel_noise(torch.arange(50), torch.zeros(50).int(), torch.zeros(50).long(), 20_000)
    assert noise.dtype == torch.float32 and bool(noise.isfinite().all())
    assert abs(float(noise.mean()) - 0.57722) < 0.005
    assert abs(float(noise.var()) - math.pi**2 / 6) < 0.02


def test_the_extreme_words_have_finite_noise() -> None:
    from pageant.kernels.sampling import _gumbel

    lowest, highest = _gumbel(torch.tensor([0, 2**32 - 1])).tolist()
    assert lowest == pytest.approx(-math.log(33 * math.log(2)), rel=1e-6)
    assert highest == pytest.approx(33 * math.log(2), rel=1e-6)


def test_equal_logits_draw_the_token_of_the_largest_documented_word(
    backend: Kernels, make_params: ParamsMaker, scalar_philox: Callable[[list[int], list[int]], list[int]]
) -> None:
    """The noise grows with the word, so the counters and keys can be checked without a logarithm."""
    seeds, samples, positions = [1234, -1, 1 << 40], [0, 3, 1], [0, 77, (5 << 32) + 1]
    params = make_params(3, seed=seeds, sample=samples, position=positions)
    tokens = backend.sample(torch.zeros(3, 402), params).tolist()
    for token, seed, sample, position in zip(tokens, seeds, samples, positions, strict=True):
        key = [seed % 2**32, (seed >> 32) % 2**32]
        words = [
            word
            for quad in range(101)
            for word in scalar_philox([quad, position % 2**32, position >> 32, sample], key)
        ]
        assert token == words.index(max(words[:402]))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_sampling_leaves_the_logits_alone(
    backend: Kernels, make_params: ParamsMaker, temperature: float
) -> None:
    logits = random_logits(3, 200)
    before = logits.clone()
    backend.sample(logits, make_params(3, temperature=temperature, top_k=3, top_p=0.5))
    assert torch.equal(logits, before)


@pytest.mark.parametrize("vocab_size", [1, 50, 8193, 20_011])
@pytest.mark.parametrize("k", [0, 1, 20])
def test_logprobs_are_those_of_the_log_softmax_in_the_order_of_a_stable_sort(
    backend: Kernels, vocab_size: int, k: int
) -> None:
    rows, k = 7, min(k, vocab_size)
    logits = random_logits(rows, vocab_size, scale=4.0)
    logits[1] = logits[1].round()  # ties
    logits[2] = 0.0
    logits[3, 1::2] = float("-inf")
    logits[4] = torch.where(logits[4] > 0, 0.0, -0.0)
    tokens = torch.randint(vocab_size, (rows,), generator=torch.Generator().manual_seed(1))
    tokens[5] = logits[5].argmax()
    tokens[6] = vocab_size - 1
    before = logits.clone()
    found = backend.top_logprobs(logits, tokens, k)
    assert torch.equal(logits, before)
    exact = logits.double().log_softmax(-1)
    order = logits.argsort(dim=-1, descending=True, stable=True)
    assert found.ranks.dtype == found.top_tokens.dtype == torch.int32
    assert found.ranks.tolist() == [
        row.tolist().index(token) + 1 for row, token in zip(order, tokens.tolist(), strict=True)
    ]
    assert torch.equal(found.top_tokens, order[:, :k].int())
    close = {"atol": 1e-5, "rtol": 1e-6}
    torch.testing.assert_close(found.chosen, exact.gather(-1, tokens[:, None])[:, 0].float(), **close)
    torch.testing.assert_close(found.top, exact.gather(-1, order[:, :k]).float(), **close)


def test_a_rows_logprobs_do_not_depend_on_its_neighbours(backend: Kernels) -> None:
    logits, tokens = random_logits(30, 9001), torch.arange(30) * 300
    together = backend.top_logprobs(logits, tokens, 5)
    for row in range(30):
        alone = backend.top_logprobs(logits[row : row + 1], tokens[row : row + 1], 5)
        assert all(torch.equal(one[0], all_[row]) for one, all_ in zip(alone, together, strict=True))


def test_no_rows_have_no_logprobs(backend: Kernels) -> None:
    found = backend.top_logprobs(torch.empty(0, 50), torch.empty(0).long(), 3)
    assert [tuple(part.shape) for part in found] == [(0,), (0,), (0, 3), (0, 3)]


@pytest.mark.parametrize("vocab_size", [32, 100, 1000, 16384])
def test_masks_forbid_what_their_bits_say_and_nothing_else(backend: Kernels, vocab_size: int) -> None:
    chance = torch.Generator().manual_seed(vocab_size)
    logits, rows = random_logits(7, vocab_size), torch.tensor([4, 0, 6, 5])
    allowed = torch.rand(len(rows), -(-vocab_size // 32) * 32, generator=chance) < 0.5
    allowed[0, :64], allowed[1, :96], allowed[3] = True, False, True  # whole words
    places = 1 << torch.arange(32)
    bits = (allowed.view(len(rows), -1, 32) * places).sum(-1).to(torch.int32)
    expected = logits.clone()
    expected[rows] = logits[rows].masked_fill(~allowed[:, :vocab_size], float("-inf"))
    backend.mask_logits(logits, rows, bits)
    assert torch.equal(logits, expected)


@pytest.mark.parametrize("vocab_size", [40, 1000, 16384])
@pytest.mark.parametrize("share", [0.001, 0.5, 1.0])
def test_with_masks_a_token_is_drawn_as_after_masking(
    backend: Kernels, make_params: ParamsMaker, vocab_size: int, share: float
) -> None:
    rows = 12
    chance = torch.Generator().manual_seed(vocab_size)
    params = make_params(rows, temperature=[0.0, 1.0, 0.7, 0.0] * 3, top_k=[0, 0, 5] * 4, top_p=0.9)
    logits, masked = random_logits(rows, vocab_size), torch.tensor([11, 0, 1, 2, 7, 5, 6, 10])
    allowed = torch.rand(len(masked), -(-vocab_size // 32) * 32, generator=chance) < share
    allowed[:, 7] = True
    allowed[2:4, :32] = True
    bits = (allowed.view(len(masked), -1, 32) * (1 << torch.arange(32))).sum(-1).to(torch.int32)
    before = logits.clone()
    before[masked] = before[masked].masked_fill(~allowed[:, :vocab_size], float("-inf"))
    expected = backend.sample(before, params)
    assert torch.equal(backend.sample(logits, params, TokenMasks(masked, bits)), expected)
    drawn = expected[masked]
    assert allowed[torch.arange(len(masked)), drawn].all()


def test_no_masks_forbid_nothing(backend: Kernels) -> None:
    logits = random_logits(2, 40)
    expected = logits.clone()
    backend.mask_logits(logits, torch.empty(0, dtype=torch.int64), torch.empty(0, 2, dtype=torch.int32))
    assert torch.equal(logits, expected)
