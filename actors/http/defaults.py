"""Values of requests that the operator sets where a request says nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import msgspec

from pageant.actors.http.openai.generation import Generation, StreamOptions

R = TypeVar("R")

__all__ = ["RequestDefaults"]


@dataclass(frozen=True)
class RequestDefaults:
    """Defaults of requests to OpenAI's routes.

    Attributes:
        usage_in_streams: end every stream with the usage, whatever its `stream_options` say.
        tokens_as_ids: write tokens in log-probabilities as `token_id:N`.
    """

    usage_in_streams: bool = False
    tokens_as_ids: bool = False

    def laid_under(self, asked: R) -> R:
        """Return a request with these defaults; one that generates nothing as it is."""
        if not isinstance(asked, Generation):
            return asked
        changed: dict[str, object] = {}
        if self.usage_in_streams and asked.stream:
            options = asked.stream_options or StreamOptions()
            changed["stream_options"] = msgspec.structs.replace(options, include_usage=True)
        if self.tokens_as_ids and asked.return_tokens_as_token_ids is None:
            changed["return_tokens_as_token_ids"] = True
        return msgspec.structs.replace(asked, **changed) if changed else asked
