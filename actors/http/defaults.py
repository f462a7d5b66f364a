"""Values of requests that the operator sets where a request says nothing."""

from __future__ import annotations

from dataclasses import dataclass

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
