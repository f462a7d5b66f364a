"""`/v1/load_lora_adapter` and `/v1/unload_lora_adapter`: adapters that come and go while the server runs."""

from __future__ import annotations

from typing import Any

import msgspec
from litestar import Response, post
from litestar.exceptions import PermissionDeniedException

from pageant.actors.http.errors import NotFound
from pageant.actors.http.openapi import describe
from pageant.actors.http.operating import Ask
from pageant.actors.http.reading import read
from pageant.actors.http.service import Http, Service
from pageant.actors.http.tenants import caller
from pageant.protocol.errors import BadRequest
from pageant.protocol.lifecycle import (
    LOAD_SECONDS,
    AddAdapter,
    RemoveAdapter,
)


class LoadAdapterRequest(msgspec.Struct, kw_only=True):
    """`POST /v1/load_lora_adapter`.

    Attributes:
        lora_path: the adapter's folder, on the executor's host.
        load_inplace: it may take the name of another.
        base_model_name: the model that it is for; without one, the first.
    """

    lora_name: str
    lora_path: str
    load_inplace: bool = False
    base_model_name: str | None = None


class UnloadAdapterRequest(msgspec.Struct, kw_only=True):
    """`POST /v1/unload_lora_adapter`. `lora_int_id` is vLLM's, and is not looked at."""

    lora_name: str
    lora_int_id: int | None = None


def routes(service: Service, ask: Ask, *, enabled: bool) -> list[Any]:
    """The routes of this family.

    Args:
        ask: asks the lifecycle actor.
        enabled: the option `runtime_adapters`.
    """

    def check() -> str:
        """Refuse unless the routes are on. Returns the owner that requests have: "" is an operator."""
        if not enabled:
            raise PermissionDeniedException(
                "adapters cannot be loaded while this server runs; start it with --runtime-adapters "
                "(actors.http.options.runtime_adapters: true)"
            )
        who = caller()
        return "" if who.is_operator else who.tenant or ""

    @post("/v1/load_lora_adapter", status_code=200, opt=describe(LoadAdapterRequest, media="text/plain"))
    async def load_lora_adapter(request: Http) -> Response[str]:
        """Load an adapter, which is served as a model of its name."""
        owner = check()
        asked, _ = read(await request.body(), LoadAdapterRequest)
        if not (asked.lora_name and asked.lora_path):
            raise BadRequest("lora_name and lora_path are texts of at least a character", "lora_name")
        base = service.model(asked.base_model_name)
        order = AddAdapter(
            replica=base.replica,
            name=asked.lora_name,
            folder=asked.lora_path,
            in_place=asked.load_inplace,
            owner=owner,
        )
        await ask(order, LOAD_SECONDS)
        return _said(f"Success: LoRA adapter '{asked.lora_name}' added successfully.")

    @post("/v1/unload_lora_adapter", status_code=200, opt=describe(UnloadAdapterRequest, media="text/plain"))
    async def unload_lora_adapter(request: Http) -> Response[str]:
        """Unload an adapter. Its requests end with an error that names it."""
        owner = check()
        asked, _ = read(await request.body(), UnloadAdapterRequest)
        served = service.model(asked.lora_name)
        if served.adapter is None:
            raise NotFound(f"{asked.lora_name!r:.200} is a model, and no adapter", "lora_name")
        await ask(RemoveAdapter(replica=served.replica, name=asked.lora_name, owner=owner), LOAD_SECONDS)
        return _said(f"Success: LoRA adapter '{asked.lora_name}' removed successfully.")

    return [load_lora_adapter, unload_lora_adapter]


def _said(text: str) -> Response[str]:
    return Response(text, media_type="text/plain")
