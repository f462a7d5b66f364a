"""`/v1/models`: what is served."""

from __future__ import annotations

from typing import Any

from litestar import get
from litestar.params import FromPath

from pageant.actors.http.openapi import describe
from pageant.actors.http.service import Service
from pageant.actors.http.shapes import Model, ModelList


def routes(service: Service) -> list[Any]:
    """The routes of this family."""

    @get("/v1/models", opt=describe(answer=ModelList))
    async def models() -> ModelList:
        """The models that are served."""
        return ModelList(data=[service.shown(served) for served in service.models.values()])

    @get("/v1/models/{name:path}", opt=describe(answer=Model))
    async def model(name: FromPath[str]) -> Model:
        """Show one model."""
        return service.shown(service.model(name.lstrip("/")))

    return [models, model]
