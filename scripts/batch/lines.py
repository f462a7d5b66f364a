"""Lines of batch files: what is asked, checked as a whole before anything runs; and what is answered."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Literal

import msgspec

from pageant.protocol.errors import BadRequest

PROBLEMS_MAX = 10  # that are told of
REASON_MAX = 300  # characters of a failure that are shown
CUSTOM_ID_MAX = 512  # characters
PASSING = (429, 503)  # statuses of a server that has no time now


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """A request. `url` is the path of an endpoint, `body` what it takes."""

    custom_id: str
    method: Literal["POST"]
    url: str
    body: msgspec.Raw


class Response(msgspec.Struct, frozen=True, kw_only=True):
    """Response of the endpoint, errors of its own included."""

    status_code: int
    request_id: str
    body: msgspec.Raw


class Error(msgspec.Struct, frozen=True, kw_only=True):
    """Reason why there is no response."""

    code: str
    message: str


class Answered(msgspec.Struct, frozen=True, kw_only=True):
    """An answer. Either `response` or `error` is there."""

    id: str
    custom_id: str
    response: Response | None = None
    error: Error | None = None

    @property
    def succeeded(self) -> bool:
        """Tell whether the response is what was asked for."""
        return self.response is not None and 200 <= self.response.status_code < 300

    @property
    def reason(self) -> str:
        """Return why it failed, in a line: the status and the message of the endpoint, or of the connection."""
        if self.response is None:
            return self.error.message if self.error is not None else "no answer"
        try:
            message = _decode_failure(self.response.body).error.message
        except msgspec.DecodeError:
            message = bytes(self.response.body).decode(errors="replace")
        return f"{self.response.status_code}: {message[:REASON_MAX]}"

    @property
    def may_pass(self) -> bool:
        """Tell whether asking again may have another end."""
        return self.response is None or self.response.status_code in PASSING


class _FailureError(msgspec.Struct):
    message: str


class _Failure(msgspec.Struct):
    error: _FailureError


_decode_failure = msgspec.json.Decoder(_Failure).decode


class _Body(msgspec.Struct):
    stream: Any = None


_decode = msgspec.json.Decoder(Asked).decode
_decode_body = msgspec.json.Decoder(_Body).decode
_decode_answered = msgspec.json.Decoder(Answered).decode


def read(lines: Iterable[bytes]) -> list[Asked]:
    """The requests of a file; blank lines are none.

    Raises:
        BadRequest: the file is not as it should be; names the first lines that are not, and what is wrong there.
    """
    found: list[Asked] = []
    problems: list[str] = []
    first: dict[str, int] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            asked = _decode(line)
            _check(asked, first)
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            problems.append(f"line {number}: {error}")
            continue
        first[asked.custom_id] = number
        found.append(asked)
    if problems:
        rest = len(problems) - PROBLEMS_MAX
        more = [f"and {rest} more"] if rest > 0 else []
        raise BadRequest("\n".join(["no batch was begun:", *problems[:PROBLEMS_MAX], *more]), "input")
    return found


def _check(asked: Asked, first: dict[str, int]) -> None:
    if not 0 < len(asked.custom_id) <= CUSTOM_ID_MAX:
        raise ValueError(f"custom_id has {len(asked.custom_id)} characters; expected 1 to {CUSTOM_ID_MAX}")
    if asked.custom_id in first:
        raise ValueError(f"custom_id {asked.custom_id!r} is that of line {first[asked.custom_id]} too")
    if (
        not asked.url.startswith("/v1/")
        or not asked.url.isascii()
        or not asked.url.isprintable()
        or " " in asked.url
    ):
        raise ValueError(
            f"url is {asked.url!r:.100}; expected an endpoint's path, such as /v1/chat/completions"
        )
    if _decode_body(asked.body).stream:
        raise ValueError("body.stream is set; a batch is not streamed")


def answered(lines: Iterable[bytes]) -> Iterator[tuple[str, bytes]]:
    """The ids and lines of a file's answers. Errors are left out: their requests are asked again.

    Raises:
        BadRequest: a line is no answer; names it.
    """
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                found = _decode_answered(line)
            except ValueError as error:
                raise BadRequest(f"line {number} is no answer of a batch: {error}", "output") from None
            if found.succeeded:
                yield found.custom_id, line
