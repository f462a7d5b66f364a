"""A server, and a collector of traces, as OpenTelemetry's is to its clients."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from pageant.actors.client.cast import HTTP
from pageant.actors.client.session import Session
from pageant.actors.client.settings import topology_of

KEY = "secret"


class Collector:
    """Keeps the spans that come; `statuses` are what the next requests are answered with."""

    def __init__(self) -> None:
        self.spans: list[dict] = []
        self.resources: list[dict] = []
        self.headers: list[dict] = []
        self.statuses: list[int] = []
        self._came = threading.Condition()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                status = outer.statuses.pop(0) if outer.statuses else 200
                self.send_response(status)
                self.send_header("content-length", "0")
                self.end_headers()
                if status == 200:
                    outer.take(self.path, dict(self.headers), body)

            def log_message(self, *arguments: object) -> None:
                """Says nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()

    def take(self, path: str, headers: dict, body: dict) -> None:
        assert path == "/v1/traces"
        with self._came:
            for resource in body["resourceSpans"]:
                self.headers.append({name.lower(): value for name, value in headers.items()})
                self.resources.append(attributes(resource["resource"]))
                self.spans += [span for scope in resource["scopeSpans"] for span in scope["spans"]]
            self._came.notify_all()

    def wait(self, name: str, count: int = 1) -> list[dict]:
        """All spans, once so many of that name have come."""
        with self._came:
            found = self._came.wait_for(lambda: sum(s["name"] == name for s in self.spans) >= count, 30)
        assert found, f"only {[span['name'] for span in self.spans]} came"
        return self.spans

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def attributes(of: dict) -> dict:
    """Return the attributes as a mapping."""
    return {one["key"]: next(iter(one["value"].values())) for one in of["attributes"]}


@pytest.fixture
def collector() -> Iterator[Collector]:
    collector = Collector()
    yield collector
    collector.close()


@pytest.fixture(scope="module")
def server(checkpoint) -> Iterator[str]:
    """The URL of a server; it asks for a key."""
    settings = {"placement": "one", "wire": "always", "threads": 1, "num_blocks": 64}
    http = {"options": {"port": 0, "api_keys": [KEY]}}
    session = Session(topology_of(checkpoint.path, None, settings | {"actors": {HTTP: http}}))
    session.start()
    yield session.served_at().split()[-1]
    session.stop()
