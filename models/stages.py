"""Stages of a pipeline: some of a model's layers each, one stage after another. Knows no torch."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["WHOLE", "Stage", "objection_to_stages"]


@dataclass(frozen=True, slots=True)
class Stage:
    """Stage of a pipeline. The first has the embedding, the last the final norm and the head."""

    number: int = 0
    """Counts from 0, in the order in which a token passes."""
    count: int = 1
    """Stages of the pipeline."""
    layers_of_each: tuple[int, ...] | None = None
    """Layers of each stage, where somebody has said so; else as many on each as can be. See `layers`."""

    @property
    def is_first(self) -> bool:
        """Tell whether tokens are embedded here."""
        return self.number == 0

    @property
    def is_last(self) -> bool:
        """Tell whether logits are computed here."""
        return self.number == self.count - 1

    def layers(self, num_layers: int) -> range:
        """Return this stage's layers of so many. What does not divide goes to the first stages: the last has the head.

        num_layers: at least `count`, and the sum of `layers_of_each` if that is given.
        """
        each, more = divmod(num_layers, self.count)
        counts = self.layers_of_each or tuple(each + (number < more) for number in range(self.count))
        first = sum(counts[: self.number])
        return range(first, first + counts[self.number])


WHOLE = Stage()
"""The only stage of a model that is on one."""


def objection_to_stages(num_layers: int, stages: int, layers_of_each: tuple[int, ...] | None) -> str:
    """Return why so many layers cannot be divided over so many stages, with what would do; "" if they can.

    layers_of_each: see `Stage`.
    """
    if stages > num_layers:
        return f"{num_layers} layers are fewer than {stages} stages; expected 1 to {num_layers}"
    if layers_of_each is not None and sum(layers_of_each) != num_layers:
        added = " + ".join(map(str, layers_of_each))
        return (
            f"{added} are {sum(layers_of_each)} layers; expected {num_layers} together, which the model has"
        )
    return ""
