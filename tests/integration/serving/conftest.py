"""One server of the demo model for all tests here, and what the engine itself says."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path

import httpx
import openai
import pytest

import pageant
from pageant.actors.client.cast import HTTP
from pageant.actors.client.session import Session
from pageant.actors.client.settings import topology_of
from pageant.actors.runtime.yaml import merge

DEMO = Path(pageant.__file__).parent / "models" / "demo"
SMALL = {"placement": "one", "threads": 1, "kv_cache_memory": "64MiB"}


def start_server(settings=None, **options):
    """Start a server of the demo model; the keywords are options of its HTTP actor. The caller stops it."""
    actors = {"actors": {HTTP: {"options": {"port": 0} | options}}}
    session = Session(topology_of(DEMO, None, merge(SMALL | (settings or {}), actors)))
    session.start()
    return session


@pytest.fixture(scope="module")
def start():
    """Start servers as `start_server` does; they stop with the module, since an idle server takes processor time."""
    with ExitStack() as stack:

        def start(settings=None, **options):
            session = start_server(settings, **options)
            stack.callback(session.stop)
            return session

        yield start


@pytest.fixture(scope="session")
def session():
    session = start_server()
    yield session
    session.stop()


@pytest.fixture(scope="session")
def url(session):
    return session.served_at().split()[-1]


@pytest.fixture(scope="session")
def http(url):
    with httpx.Client(base_url=url, timeout=60) as http:
        yield http


@pytest.fixture(scope="session")
def client(url):
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture(scope="session")
def llm():
    """The same model without a server: what is right."""
    with pageant.LLM(DEMO, **SMALL) as llm:
        yield llm


@pytest.fixture(scope="module")
def parrot(start):
    """Starts servers of a model that says what it is told to, one for each format of calls; their clients."""
    sys.path.insert(0, str(Path(__file__).parent))
    options = {"actors": {"executor": {"options": {"logits_processors": ["parrot:Parrot"]}}}}
    clients = {}

    def served(form) -> openai.OpenAI:
        if form not in clients:
            session = start(options, tool_call_parser=form, reasoning_parser="think")
            clients[form] = openai.OpenAI(
                base_url=f"{session.served_at().split()[-1]}/v1", api_key="none", max_retries=0
            )
        return clients[form]

    yield served
    for client in clients.values():
        client.close()
    sys.path.remove(str(Path(__file__).parent))
