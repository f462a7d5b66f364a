"""Links of a rank to the stages before and after its own, in a group whose ranks are in stages of a pipeline."""

from __future__ import annotations

from torch import Tensor

from pageant.kernels.collectives.base import Collectives

__all__ = ["StageLinks", "rank_in_pipeline"]


def rank_in_pipeline(stage: int, place: int, stages: int, each: int) -> int:
    """Return the number among all ranks of one of `each` ranks of a stage. Rank 0 is of the last stage."""
    return (stages - 1 - stage) * each + place


class StageLinks:
    """Passes tensors on, from the ranks of one stage to those of the next that have the same place in theirs.

    Args:
        group: the operations of all ranks, of which messages between two ranks are used.
        each: ranks of a stage.
    """

    def __init__(self, group: Collectives, each: int) -> None:
        self._group = group
        self.stages = group.size // each
        """Stages of the pipeline."""
        self.stage = self.stages - 1 - group.rank // each
        """This rank's, from 0 on."""
        self._before, self._after = group.rank + each, group.rank - each

    @property
    def is_first(self) -> bool:
        """Tell whether tokens are embedded on this rank."""
        return self.stage == 0

    @property
    def is_last(self) -> bool:
        """Tell whether logits are computed on this rank."""
        return self.stage == self.stages - 1

    def receive(self, tensor: Tensor) -> None:
        """Receive the next tensor of the stage before: [...] of its dtype and shape, mutated."""
        self._group.receive(tensor, self._before)

    def send(self, tensor: Tensor) -> None:
        """Send a tensor, [...] of any dtype, to the next stage. Waits only while two earlier ones are not received."""
        self._group.send(tensor, self._after)
