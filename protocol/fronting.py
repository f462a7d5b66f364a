"""session ──GetServer / GetHttpStatistics / Drain──▶ http: what whoever started a server asks of it."""

from __future__ import annotations

from pageant.protocol.message import Message, Request


class ServerAddress(Message, frozen=True, kw_only=True):
    """Where a server is found, and what it serves."""

    url: str
    models: tuple[str, ...]


class GetServer(Request[ServerAddress], frozen=True, kw_only=True):
    """Where do you listen?"""


class HttpStatistics(Message, frozen=True, kw_only=True):
    """A server's counters. `loop_cpu_seconds` is CPU time of the thread that it runs in, with whatever else runs
    there: alone in its process, divided by `streamed_tokens`, it is what a streamed token costs.
    """

    open_requests: int
    streamed_tokens: int
    loop_cpu_seconds: float


class GetHttpStatistics(Request[HttpStatistics], frozen=True, kw_only=True):
    """How do you stand?"""


class Drained(Message, frozen=True, kw_only=True):
    """So many requests were still open when the time was over."""

    open_requests: int


class Drain(Request[Drained], frozen=True, kw_only=True):
    """Take no more requests, and let those that are open end, within so many seconds."""

    seconds: float
