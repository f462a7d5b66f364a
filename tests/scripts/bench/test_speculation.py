"""The speculation benchmark, in small."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from pageant.actors.scheduler.draft_budget import DraftBudget
from pageant.scripts.cli import app

SMALL = ["--prompt", "12", "--output", "24", "--pairs", "2", "--useless-pairs", "2", "--batch", "3"]


def _figures(*options: str) -> dict:
    result = CliRunner().invoke(app, ["bench", "speculation", *SMALL, *options, "--json", "-"])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_a_drafter_that_knows_the_answer_is_right_as_often_as_it_is_told():
    found = _figures("--only", "known", "--rate", "1.0", "--placement", "one")["known"]
    assert found["drafts_accepted"] == found["drafts_proposed"] > 0
    assert len(found["pairs"]) == 2 and found["speedup"] > 0


@pytest.fixture
def eager(monkeypatch):
    """Want as many drafts whatever the clock says that they cost."""
    monkeypatch.setattr(
        DraftBudget, "wanted", lambda self, rows: np.full(len(rows), self.settings.tokens, np.int32)
    )


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize(("name", "accepted"), [("copy", True), ("useless", False)])
def test_outputs_that_copy_are_guessed_and_those_that_are_guessed_wrong_are_not(name, accepted):
    found = _figures("--only", name, "--placement", "one")[name]
    assert (found["drafts_accepted"] > 0) == accepted
    assert found["drafts_proposed"] > 0


def test_the_cost_of_n_grams_is_that_of_a_step():
    found = _figures("--only", "ngram")["ngram"]
    assert found["sequences"] == 256 and found["bytes_per_token"] <= 64


def test_what_there_is_not_is_named():
    result = CliRunner().invoke(app, ["bench", "speculation", "--only", "more"])
    assert result.exit_code == 2
    assert "known, copy, useless" in result.output
