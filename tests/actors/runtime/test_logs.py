import json
import logging
import re
from datetime import datetime

import pytest

from pageant.actors.runtime.logs import JsonFormatter, configure, current_form, read_level


def record(message="what %s", *arguments, level=logging.WARNING, **more):
    return logging.getLogger("pageant.x").makeRecord("pageant.x", level, "f", 1, message, arguments, **more)


def test_a_line_is_an_object_with_when_who_what_and_its_facts():
    line = JsonFormatter("front").format(
        record("said %s\n%d", "a", 2, exc_info=None, extra={"facts": {"tokens": 3, "error": None}})
    )
    assert "\n" not in line
    found = json.loads(line)
    when = datetime.fromisoformat(found.pop("time"))
    assert when.tzinfo is not None and when.year > 2000
    assert found == {
        **{"level": "warning", "logger": "pageant.x", "node": "front", "message": "said a\n2"},
        **{"tokens": 3, "error": None},
    }


def test_an_exception_is_a_field_and_what_json_has_not_is_a_text():
    try:
        raise ValueError("no")
    except ValueError as error:
        info = (type(error), error, error.__traceback__)
    line = JsonFormatter("n").format(record("x", exc_info=info, extra={"facts": {"path": object()}}))
    found = json.loads(line)
    assert "ValueError: no" in found["exception"] and found["path"].startswith("<object")


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_process_logs_as_it_is_told_and_tells_its_children(form, capsys, monkeypatch):
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [])
    monkeypatch.setattr(root, "level", root.level)
    configure("INFO", form, "front")
    logging.getLogger("pageant.x").info("hello")
    said = capsys.readouterr().err.strip()
    assert current_form() == form
    if form == "json":
        assert json.loads(said)["message"] == "hello"
    else:
        assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d INFO front: hello", said)


@pytest.mark.parametrize(("text", "level"), [("info", 20), ("WARNING", 30), ("25", 25), ("0", 0)])
def test_a_level_has_a_name_or_a_number(text, level):
    assert read_level(text) == level


def test_a_level_that_there_is_not_is_refused_with_those_there_are():
    with pytest.raises(ValueError, match="found 'loud'; expected debug, info, warning or error"):
        read_level("loud")
