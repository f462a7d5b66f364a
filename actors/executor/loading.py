"""Loading of weights by an actor that may be told to end meanwhile."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pageant.actors.executor.options import ExecutorOptions, load_weights
from pageant.actors.runtime import Actor

if TYPE_CHECKING:
    from pageant.actors.executor.runners.loaded_model import LoadedModel

__all__ = ["LoadEnded", "Loading"]


class LoadEnded(RuntimeError):
    """The end of a load whose actor ends: nobody will compute with the weights."""


class Loading(Actor):
    """The part of an executor, or of another member of its group, that loads weights."""

    @property
    def rank(self) -> int:
        """Return this member's number in its group; 0 where it leads, or is alone."""
        return 0

    def _report(self, done: int, total: int) -> None:
        """Take note of how many bytes are loaded, of how many in all. Called in a thread, after each tensor.

        Raises:
            LoadEnded: the actor ends. A load of minutes would otherwise keep its process that long.
        """
        if self.is_ending:
            raise LoadEnded(f"{self.name} ends")

    def _load_weights(self, options: ExecutorOptions) -> LoadedModel:
        """Load this member's weights. For one of the actor's threads."""
        return load_weights(options, self.rank, self._report)
