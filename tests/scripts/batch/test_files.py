"""Files that `run-batch` reads and writes."""

from __future__ import annotations

import json

import pytest

from pageant.protocol.errors import BadRequest, PageantError
from pageant.scripts.commands.run_batch import run_batch

LINE = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"model": "m", "prompt": "x"}}


@pytest.fixture
def asked(tmp_path):
    path = tmp_path / "in.jsonl"
    path.write_text(json.dumps(LINE) + "\n")
    return path


def _run(source, target, errors=None, model="/no/such/model", resume=False):
    run_batch(
        {"model": model},
        str(source),
        str(target),
        errors=errors,
        url=None,
        api_key=None,
        concurrency=1,
        resume=resume,
    )


def test_answers_that_are_there_outlive_a_model_that_is_not(asked, tmp_path):
    target = tmp_path / "out.jsonl"
    target.write_text("answers\n")
    with pytest.raises(PageantError, match="no such folder"):
        _run(asked, target)
    assert target.read_text() == "answers\n"


@pytest.mark.parametrize("others", ["in.jsonl", "./in.jsonl"])
def test_requests_are_not_written_over(asked, tmp_path, others):
    with pytest.raises(BadRequest, match="which is the input too"):
        _run(asked, tmp_path / others)
    with pytest.raises(BadRequest, match="which is the output too"):
        _run(asked, tmp_path / "out.jsonl", tmp_path / "out.jsonl")
    assert json.loads(asked.read_text()) == LINE


@pytest.mark.parametrize("written", ["answers\n", '{"custom_id": "a"}\n'])
def test_a_file_that_holds_no_answers_is_not_gone_on_with(asked, tmp_path, written):
    target = tmp_path / "out.jsonl"
    target.write_text(written)
    with pytest.raises(
        BadRequest, match=r"out.jsonl cannot be gone on with: line 1 is no answer of a batch: "
    ):
        _run(asked, target, resume=True)
    assert target.read_text() == written
