from pageant.actors.observer.page import Page
from pageant.protocol.statistics import HistogramCounts


def test_each_metric_has_one_head_and_its_samples_together():
    page = Page()
    page.gauge("depth", "How deep.", 3, {"actor": "a"})
    page.counter("told_total", "Told.", 2, {"actor": "a"})
    page.gauge("depth", "How deep.", 0.25, {"actor": "b"})
    assert page.text() == (
        "# HELP pageant:depth How deep.\n# TYPE pageant:depth gauge\n"
        'pageant:depth{actor="a"} 3\npageant:depth{actor="b"} 0.25\n'
        "# HELP pageant:told_total Told.\n# TYPE pageant:told_total counter\n"
        'pageant:told_total{actor="a"} 2\n'
    )


def test_what_a_label_may_not_hold_is_escaped():
    page = Page()
    page.counters("x_total", "X.", "field", {'a"b\\c\nd': 1}, {})
    assert page.text().splitlines()[-1] == r'pageant:x_total{field="a\"b\\c\nd"} 1'


def test_a_metric_without_samples_is_there():
    page = Page()
    page.counters("x_total", "X.", "kind", {}, {})
    assert page.text() == "# HELP pageant:x_total X.\n# TYPE pageant:x_total counter\n"


def test_a_histograms_buckets_add_up():
    page = Page()
    page.histogram("t", "T.", HistogramCounts(bounds=(0.1, 1e6), counts=(2, 0, 3), sum=7.5), {"m": "x"})
    assert page.text().splitlines()[2:] == [
        'pageant:t_bucket{m="x",le="0.1"} 2',
        'pageant:t_bucket{m="x",le="1e+06"} 2',
        'pageant:t_bucket{m="x",le="+Inf"} 5',
        'pageant:t_sum{m="x"} 7.5',
        'pageant:t_count{m="x"} 5',
    ]
