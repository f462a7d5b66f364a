"""The router's advice on requests: asked for all of one turn of the loop at once, and never waited for long."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from pageant.actors.runtime import Actor
from pageant.protocol.arrays import int32
from pageant.protocol.errors import PageantError
from pageant.protocol.roles import ROUTER
from pageant.protocol.routing import Route
from pageant.protocol.serving import Submit

ADVICE_SECONDS = 0.25
"""The longest wait for the router. Whoever has no advice then chooses by itself."""


@dataclass(frozen=True)
class Advised:
    """Advice on one request; see `Routed`."""

    place: str
    ticket: int
    expected_tokens: int
    via: str = ""


NO_ADVICE = Advised("", 0, 0)


class Advice:
    """Asks the router about the requests to one model.

    Args:
        frontend: the actor that asks.
        model: the prefix of the model.
        has_router: tells whether the router is up.
    """

    def __init__(self, frontend: Actor, model: str, has_router: Callable[[], bool]) -> None:
        self._frontend, self._model, self._has_router = frontend, model, has_router
        self._asked: list[tuple[Submit, asyncio.Future[Advised]]] = []

    async def ask(self, submit: Submit) -> Advised:
        """Return the advice on a request, by its first submission."""
        if not self._has_router():
            return NO_ADVICE
        answer: asyncio.Future[Advised] = asyncio.get_running_loop().create_future()
        self._asked.append((submit, answer))
        if len(self._asked) == 1:
            self._frontend.spawn(self._ask_all())
        return await answer

    async def _ask_all(self) -> None:
        await asyncio.sleep(0)  # others of this turn join
        asked, self._asked = self._asked, []
        advised = await self._advice_on([submit for submit, _ in asked])
        for (_, answer), one in zip(asked, advised, strict=True):
            if not answer.done():
                answer.set_result(one)

    async def _advice_on(self, submits: list[Submit]) -> list[Advised]:
        try:
            routed = await self._frontend.ask(ROUTER.name, self._question(submits), timeout=ADVICE_SECONDS)
        except PageantError:  # it is down, slow, or somebody's own that fails
            return [NO_ADVICE] * len(submits)
        via = routed.via or ("",) * len(submits)
        columns = (routed.places, routed.tickets.tolist(), routed.expected_tokens.tolist(), via)
        if any(len(column) != len(submits) for column in columns):
            return [NO_ADVICE] * len(submits)
        return [Advised(*one) for one in zip(*columns, strict=True)]

    def _question(self, submits: list[Submit]) -> Route:
        return Route(
            model=self._model,
            token_ids=np.concatenate([submit.prompt_token_ids for submit in submits]),
            lengths=int32([len(submit.prompt_token_ids) for submit in submits]),
            max_tokens=int32([submit.params.max_tokens or 0 for submit in submits]),
            salts=tuple(submit.cache_salt for submit in submits),
            extra_keys=tuple(submit.extra_keys for submit in submits),
            adapters=tuple(submit.adapter for submit in submits),
            tenants=tuple(submit.tenant for submit in submits),
            text_tokens=int32([_num_text_tokens(submit) for submit in submits]),
        )


def _num_text_tokens(submit: Submit) -> int:
    """Return the number of a prompt's tokens before the first that an embedding stands for."""
    embeds = submit.prompt_embeds
    if embeds is None:
        return len(submit.prompt_token_ids)
    if embeds.attended or embeds.places is None or not len(embeds.places):
        return 0
    return int(embeds.places[0])


def advised_submits(submits: Sequence[Submit], advised: Advised) -> list[Submit]:
    """Return the submissions of a request's samples with the advice on it.

    The first has the ticket. The others are expected to find the prompt computed.
    """
    first, *others = submits
    expected = advised.expected_tokens if advised.ticket else None
    return [
        msgspec.structs.replace(first, ticket=advised.ticket, expected_tokens=expected),
        *(msgspec.structs.replace(other, expected_tokens=0) for other in others),
    ]
