"""Paths that no route serves: which of them are known elsewhere, and what is served instead.

Clients of other servers ask for files, images or assistants, and people mistype a base URL. The answer says so, and
names the nearest routes, where a bare 404 would look like a server that is not there.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Sequence

from pageant.actors.http.errors import NotFound

__all__ = ["not_served"]

CHATS = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages")
NEAREST_MAX = 3
NOT_SERVED = "not_served"

# By the beginning of a path: what it is for, and the routes that come nearest.
_KNOWN: dict[str, tuple[str, tuple[str, ...]]] = {
    **dict.fromkeys(
        ("/embeddings", "/embed", "/v2/embed", "/v1/embed", "/encode", "/api/embed"),
        ("embeddings there", ("/v1/embeddings", "/pooling")),
    ),
    **dict.fromkeys(("/v1/classify", "/v1/moderations"), ("classes of texts there", ("/classify", *CHATS))),
    "/v1/audio": ("speech of its own there", ("/v1/audio/transcriptions", "/v1/chat/completions")),
    "/v1/realtime": ("sessions with audio", ("/v1/chat/completions",)),
    "/v1/images": ("images", CHATS),
    "/v1/videos": ("videos", CHATS),
    **dict.fromkeys(("/v1/files", "/v1/uploads", "/v1/containers"), ("files", CHATS)),
    **dict.fromkeys(
        ("/v1/batches", "/v1/messages/batches"),
        ("batches of files (see `pageant run-batch`)", ("/v1/chat/completions/batch",)),
    ),
    **dict.fromkeys(("/v1/fine_tuning", "/v1/evals"), ("training", CHATS)),
    **dict.fromkeys(
        ("/v1/vector_stores", "/v1/assistants", "/v1/threads"), ("assistants", ("/v1/responses",))
    ),
    "/v1/conversations": ("stored conversations", ("/v1/responses",)),
    "/v1/complete": ("Anthropic's text completions", ("/v1/messages",)),
    **dict.fromkeys(
        ("/generate", "/generate_stream", "/inference/v1/generate"), ("other servers' API", CHATS)
    ),
    **dict.fromkeys(("/api", "/completion", "/infill", "/props", "/slots"), ("other servers' API", CHATS)),
    **dict.fromkeys(
        ("/start_profile", "/stop_profile"), ("profiles (see `pageant serve --detailed-traces`)", ())
    ),
    **dict.fromkeys(("/collective_rpc", "/scale_elastic_ep"), ("calls of workers", ("/server_info",))),
}


def not_served(path: str, served: Collection[str]) -> NotFound:
    """Return the error for a path that no route serves.

    Args:
        served: the paths of all routes.
    """
    known = next((_KNOWN[name] for name in _beginnings(path) if name in _KNOWN), None)
    if known is not None:
        what, nearest = known
        there = [one for one in nearest if one in served]
        message = f"{path!r:.200}: this server has no {what}"
        return NotFound(message + (f"; it serves {_listed(there)}" if there else ""), code=NOT_SERVED)
    return NotFound(f"nothing is served at {path!r:.200}; {_hint(path, served)}", code=NOT_SERVED)


def _beginnings(path: str) -> list[str]:
    """Return a path, and what comes before each of its slashes, the longest first."""
    parts = path.rstrip("/").split("/")
    return ["/".join(parts[:count]) for count in range(len(parts), 1, -1)]


def _hint(path: str, served: Collection[str]) -> str:
    once = path.replace("/v1/v1/", "/v1/")
    if once != path and once in served:
        return f"the base URL has /v1 twice: expected {once}"
    nearest = difflib.get_close_matches(path, sorted(served), NEAREST_MAX, cutoff=0.7)
    return f"did you mean {_listed(nearest)}?" if nearest else "GET / lists what is"


def _listed(paths: Sequence[str]) -> str:
    return ", ".join(paths)
