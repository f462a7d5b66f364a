"""Health of an engine: its step loop is asked for a token, and has some time to bring anything at all.

Any output since the question will do, the probe's own or another's. A busy engine, in whose queue the probe
waits, is therefore healthy, and a hung one is not, whatever its mailboxes hold.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from pageant.actors.frontend.prompts import check_prompt
from pageant.actors.http.answers import Answers
from pageant.actors.http.served import Served
from pageant.actors.http.service import Service
from pageant.protocol.errors import PageantError
from pageant.protocol.sampling import SamplingParams

PROBE = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True, detokenize=False)


@dataclass
class _Question:
    """A probe on its way, and how many wait for anything to come."""

    stepped: asyncio.Future[None]
    probe: Answers
    waiting: int = 0


class Health:
    """Asks each model's step loop; those who ask at the same time share a question."""

    def __init__(self, service: Service, rests: Callable[[str], bool]) -> None:
        """Args: rests: whether the model of a replica was asked to compute nothing, so that nothing can come of it."""
        self._service, self._rests = service, rests
        self._questions: dict[str, _Question] = {}

    def stepped(self, replica: str) -> None:
        """Note output of a model's step loop."""
        question = self._questions.pop(replica, None)
        if question is not None and not question.stepped.done():
            question.stepped.set_result(None)

    async def check(self, seconds: float) -> bool:
        """Tell whether every model's loop brought output within `seconds`, except for models at rest."""
        replicas = {one.replica: one for one in self._service.models.values() if one.adapter is None}
        try:
            async with asyncio.timeout(seconds):
                for replica, served in replicas.items():
                    if not self._rests(replica):
                        await self._step(served)
        except TimeoutError:  # perhaps it was paused meanwhile
            return self._rests(replica)
        except PageantError:
            return False
        return True

    async def _step(self, served: Served) -> None:
        question = self._questions.get(served.replica)
        if question is None:
            prompt = check_prompt([0], served.limits, PROBE)
            probe = self._service.begin(
                served, [prompt], PROBE, self._service.new_id("health"), is_probe=True
            )
            question = _Question(asyncio.get_running_loop().create_future(), probe)
            self._questions[served.replica] = question
        question.waiting += 1
        try:
            await asyncio.shield(question.stepped)
        finally:
            question.waiting -= 1
            if not question.waiting:  # whoever asked later has more time left than who asked first
                if self._questions.get(served.replica) is question:  # nothing came: the next one asks again
                    del self._questions[served.replica]
                question.probe.close()
