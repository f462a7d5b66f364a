"""An executor without a model: tokens are a known function of what came before them, of seed and of position.

Everything above `ModelRunner` is the real executor. The stand-in keeps a number in each slot of its KV memory and
reads them all back at each draw, as attention does. So a block that two sequences own, a copy that was not made, or a
prefix that is not what the index says, gives a wrong token.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pageant.actors.executor.actor import Executor
from pageant.actors.executor.instructions import Launch
from pageant.actors.executor.simulated_runner import SimulatedOptions, SimulatedRunner
from pageant.actors.runtime.address import group_of
from pageant.protocol.ranks import DescribeRank, FormGroup
from pageant.protocol.roles import Feature

if TYPE_CHECKING:
    from pageant.actors.executor.runners.model_runner import ModelRunner
    from pageant.actors.executor.simulated_group import SimulatedMeeting

HOST_BYTES = 2**20


class SimulatedExecutor(Executor):
    """The real shell and batch, over a `SimulatedRunner`."""

    loads_weights = False
    follower = "pageant.actors.executor.simulated_group:SimulatedRank"
    _simulated: SimulatedMeeting
    """The meeting of the group that it leads."""
    soon_seconds = 0.0  # nothing may wait but in simulated time
    features = Executor.features - {
        *(Feature.TOP_K, Feature.TOP_P, Feature.MIN_P, Feature.EXTRA_ARGS, Feature.PROMPT_EMBEDS),
        Feature.IMAGES,
        Feature.AUDIO,
    }

    class Options(SimulatedOptions, frozen=True, kw_only=True):
        """See `SimulatedOptions`."""

    def open_runner(self) -> ModelRunner:
        if self.options.num_members > 1:
            from pageant.actors.executor.simulated_group import SimulatedLeader

            return SimulatedLeader(self.options, self._simulated)
        return SimulatedRunner(self.options, ready=self.options.torch_device == "cpu")

    async def _lead(self) -> ModelRunner:
        from pageant.actors.executor.simulated_group import meeting_of

        self._find_followers()
        group = group_of(self.name)
        self._simulated = meeting_of(group, self.incarnation, len(self.followers))
        await self._ask_all([DescribeRank()] * len(self.followers))
        form = FormGroup(collectives="simulated", meeting=group, num_near=1)
        await self._ask_all([form] * len(self.followers))
        return await self.offload(self.open_runner)

    async def _launch(self, order: Launch) -> None:
        if self.followers:
            await self._simulated.all_came(order.work.number)
        await super()._launch(order)

    def _host_bytes(self) -> int:
        return HOST_BYTES
