import itertools
import random

import pytest

from pageant.protocol.errors import BadRequest
from pageant.scripts.bench.serving.load import Load
from pageant.scripts.loads import Arrivals, Lengths


def first(arrivals, count, seed=1):
    return list(itertools.islice(arrivals.times(random.Random(seed)), count))


def test_lengths_are_fixed_or_drawn():
    rng = random.Random(0)
    assert Lengths.parse("7", "x").draw(rng) == 7
    assert {Lengths.parse("2:4", "x").draw(rng) for _ in range(100)} == {2, 3, 4}
    drawn = [Lengths.parse("normal:50:10", "x").draw(rng) for _ in range(2000)]
    assert 48 < sum(drawn) / 2000 < 52 and min(drawn) >= 1 and max(drawn) > 65


@pytest.mark.parametrize(
    "text", ["", "0", "4:2", "1:2:3", "normal:0:1", "normal:5", "normal:nan:1", "-3", "x"]
)
def test_other_lengths_are_refused_by_name(text):
    with pytest.raises(BadRequest, match="input_tokens is") as caught:
        Lengths.parse(text, "input_tokens")
    assert caught.value.parameter == "input_tokens"


@pytest.mark.parametrize(("burstiness", "variation"), [(0.25, 2.0), (1.0, 1.0), (4.0, 0.5)])
def test_gaps_have_the_rate_and_the_burstiness(burstiness, variation):
    """Compare gamma gaps: the deviation over the mean is one by the root of the shape."""
    times = first(Arrivals(10.0, burstiness), 20_000)
    gaps = [b - a for a, b in itertools.pairwise([0.0, *times])]
    mean = sum(gaps) / len(gaps)
    deviation = (sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) ** 0.5
    assert mean == pytest.approx(0.1, rel=0.05)
    assert deviation / mean == pytest.approx(variation, rel=0.05)


def test_a_ramp_grows_evenly_and_then_holds():
    """Ramp from 0 to 100 per second in 10 seconds: half of them in the last three tenths, 100 per second after."""
    times = first(Arrivals(100.0, 1000.0, ramp_from=0.0, ramp_seconds=10.0), 1500)
    count = sum(time <= 10 for time in times)
    assert count == pytest.approx(500, abs=5)
    assert sum(time <= 10 / 2**0.5 for time in times) == pytest.approx(250, abs=5)
    assert times[1499] == pytest.approx(20, abs=0.2)
    down = first(Arrivals(10.0, 1000.0, ramp_from=30.0, ramp_seconds=10.0), 300)
    assert sum(time <= 10 for time in down) == pytest.approx(200, abs=3)


def test_without_a_rate_all_come_at_once():
    assert first(Arrivals(), 3) == [0.0, 0.0, 0.0]


@pytest.mark.parametrize(
    "bad", [{"rate": 0}, {"burstiness": 0}, {"ramp_seconds": -2}, {"rate": float("nan")}]
)
def test_arrivals_out_of_range_are_refused(bad):
    with pytest.raises(BadRequest, match=next(iter(bad))):
        Arrivals(**bad)


def test_a_load_is_the_same_for_every_server_and_repeats_only_if_asked():
    load = Load(Lengths(4, 9), Lengths(1, 30), turns=Lengths(1, 3), seed=5)
    assert [load.conversation(i) for i in range(9)] == [
        Load(Lengths(4, 9), Lengths(1, 30), turns=Lengths(1, 3), seed=5).conversation(i) for i in range(9)
    ]
    assert load.conversation(1) != load.conversation(2)
    assert load.conversation(1) != Load(
        Lengths(4, 9), Lengths(1, 30), turns=Lengths(1, 3), seed=6
    ).conversation(1)
    repeating = Load(Lengths(4, 9), distinct=3)
    assert repeating.conversation(1) == repeating.conversation(4) != repeating.conversation(5)


def test_prompts_are_words_or_ids_behind_a_shared_prefix():
    load = Load(Lengths(5, 5), prefix_tokens=8, prefixes=2, turns=Lengths(2, 2))
    begun = {tuple(load.conversation(i)[0].prompt.split()[:8]) for i in range(40)}
    assert len(begun) == 2
    one, other = load.conversation(0)
    assert (len(one.prompt.split()), len(other.prompt.split())) == (13, 5)
    ids = Load(Lengths(5, 5), prefix_tokens=8, token_ids=(10, 19)).conversation(0)[0].prompt
    assert len(ids) == 13 and set(ids) <= set(range(10, 20))
