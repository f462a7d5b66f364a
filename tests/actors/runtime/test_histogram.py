from pageant.actors.runtime.histogram import Histogram, from_1_2_5


def test_values_count_at_the_smallest_bound_that_holds_them():
    histogram = Histogram((1.0, 2.0, 5.0))
    for value in (0.5, 1.0, 1.5, 5.0, 7.0):
        histogram.observe(value)
    histogram.observe(2.0, 3)
    counts = histogram.statistics()
    assert counts.counts == (2, 4, 1, 1)
    assert counts.sum == 0.5 + 1 + 1.5 + 5 + 7 + 6


def test_bounds_are_1_2_and_5_times_powers_of_ten():
    assert from_1_2_5(0.001, 0.05) == (0.001, 0.002, 0.005, 0.01, 0.02, 0.05)
    assert from_1_2_5(1, 10) == (1.0, 2.0, 5.0, 10.0)
