"""`pageant bench serve`, with a server that really answers."""

import json
import os
from pathlib import Path
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner

import pageant
from pageant.actors.client.cast import HTTP
from pageant.actors.client.session import Session
from pageant.actors.client.settings import topology_of
from pageant.protocol.errors import BadRequest, PeerGone
from pageant.scripts.cli import app

DEMO = Path(pageant.__file__).parent / "models" / "demo"


@pytest.fixture(scope="module")
def url():
    settings = {"placement": "one", "threads": 1, "kv_cache_memory": "64MiB"}
    session = Session(topology_of(DEMO, None, settings | {"actors": {HTTP: {"options": {"port": 0}}}}))
    session.start()
    yield session.served_at().split()[-1]
    session.stop()


def bench(*arguments):
    return CliRunner().invoke(app, ["bench", "serve", *map(str, arguments)], catch_exceptions=False)


def test_answers_under_load_are_those_that_prompts_get_alone(url, tmp_path):
    result = bench(
        *(
            url,
            "--conversations",
            40,
            "--concurrency",
            16,
            "--input-tokens",
            "4:24",
            "--output-tokens",
            "2:12",
        ),
        *("--distinct", 5, "--verify", "--token-ids", "10:400", "--goodput", "ttft:60000"),
        *("--pid", os.getpid(), "--json", tmp_path / "figures.json", "--plot", tmp_path / "plot.svg"),
    )
    assert result.exit_code == 0, result.output
    assert "40 answers" in result.output and "0 failed" in result.output
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert (figures["completed"], figures["failed"]) == (40, 0)
    assert figures["load"]["concurrency"] == 16 and figures["load"]["rate"] is None
    assert figures["server_cpu_seconds"] > 0 and figures["server_memory_mib"][-1] > 0
    root = ElementTree.parse(tmp_path / "plot.svg").getroot()
    assert len(root.findall("{http://www.w3.org/2000/svg}polyline")) == 5


def test_conversations_through_chats_that_arrive_at_a_rate(url):
    result = bench(
        *(url, "--chat", "--turns", 2, "--conversations", 4, "--rate", 1000, "--burstiness", 0.5),
        *("--input-tokens", 5, "--output-tokens", 4, "--ramp-seconds", 0.01, "--json", "-"),
    )
    figures = json.loads(result.stdout)
    assert figures["completed"] == 8 and figures["output_tokens"] == 32


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--verify"], "expected --distinct"),
        (["--chat", "--token-ids", "1:5"], "conversations are of text"),
        (["--token-ids", "5:1"], "token_ids is '5:1'"),
        (["--extra", "[1]"], "expected a JSON object"),
        (["--goodput", "speed:3"], "goodput is 'speed:3'"),
        (["--pid", 2**22 + 1], "no process"),
    ],
)
def test_what_makes_no_sense_is_refused(url, arguments, said):
    with pytest.raises(BadRequest, match=said):
        bench(url, *arguments)


def test_a_server_that_is_not_there_is_named():
    with pytest.raises(PeerGone, match="cannot connect"):
        bench("http://127.0.0.1:9")
