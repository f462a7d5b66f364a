import json
import re

from pageant.actors.observer.exposition import exposition
from pageant.scripts.dashboard import FILE, text


def queries(dashboard):
    """All that its panels and variables ask."""
    asked = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]
    return [*asked, *(variable["query"] for variable in dashboard["templating"]["list"])]


def test_every_metric_that_the_dashboard_asks_for_is_there_with_its_labels(everything):
    page = exposition(everything)
    kinds = dict(re.findall(r"^# TYPE (\S+) (\S+)", page, re.M))
    labels = {}
    for name, shown in re.findall(r"^(pageant:\w+)\{(.*)\} ", page, re.M):
        labels[name] = {"instance", *re.findall(r'(\w+)="', shown)}  # the scraper adds its own
    asked = 0
    for query in queries(json.loads(FILE.read_text())):
        for name, matched in re.findall(r"(pageant:\w+)(?:\{([^}]*)\})?", query):
            whole = re.sub(r"_(bucket|sum|count)$", "", name)
            kind = kinds[name] if name in kinds else kinds[whole]
            assert kind == "histogram" or name in kinds, name
            assert set(re.findall(r"(\w+)=", matched)) <= labels[name], query
            rated = f"rate({name}" in query
            assert rated == (kind in ("counter", "histogram")) or "restarts" in name, query
            asked += 1
        for grouped in re.findall(r"by \(([^)]*)\)\((?:rate\()?(pageant:\w+)", query):
            assert set(grouped[0].split(", ")) <= labels[grouped[1]], query
    assert asked > 60


def test_the_file_is_as_its_script_writes_it():
    assert FILE.read_text() == text()
