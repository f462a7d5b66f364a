"""Help texts: nothing is cut short, and options stand in groups with their defaults."""

from __future__ import annotations

import re

import pytest
from typer.testing import CliRunner

from pageant.scripts.cli import app
from pageant.scripts.shared_options import SHARED

GROUPS = ("Options:", "The model:", "Memory and batches:", "Where it runs:", "Logs, metrics and traces:")


@pytest.mark.parametrize("columns", [60, 80, 200])
@pytest.mark.parametrize(
    "command", ["", "run", "serve", "chaos", "swap", "topology", "model", "bench", "bench throughput"]
)
def test_nothing_is_cut_short(command, columns):
    help_text = CliRunner(env={"COLUMNS": str(columns)}).invoke(app, [*command.split(), "--help"]).output
    assert not re.findall(r"…|\w\.\.\.$", help_text, re.MULTILINE)
    assert "\\[" not in help_text


def test_options_stand_in_groups_with_their_defaults():
    help_text = CliRunner(env={"COLUMNS": "120"}).invoke(app, ["serve", "--help"]).output
    places = [help_text.index(f"\n{group}\n") for group in GROUPS]
    assert places == sorted(places)
    for option in SHARED:
        assert re.search(rf"--{option.name.replace('_', '-').rstrip('-')}\b", help_text), option.name
    said = " ".join(help_text.split())
    assert "[default: 2048]" in said and "[default: 127.0.0.1]" in said


def test_every_command_is_listed_with_its_sentence():
    help_text = " ".join(CliRunner().invoke(app, ["--help"]).output.split())
    assert (
        "Go on with another class or other options of an actor while it serves; no request is lost."
        in help_text
    )


@pytest.mark.parametrize(
    ("command", "usage"),
    [
        ("run", "run [OPTIONS] PROMPT"),
        ("conformance", "conformance [OPTIONS] KIND CLASS"),
        ("swap", "swap [OPTIONS] ACTOR [CLASS]"),
        ("serve", "serve [OPTIONS] [MODEL]"),
    ],
)
def test_arguments_in_a_usage_line_are_no_choices(command, usage):
    assert f"{usage}\n" in CliRunner(env={"COLUMNS": "120"}).invoke(app, [command, "--help"]).output
