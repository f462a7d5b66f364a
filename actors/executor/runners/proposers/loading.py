"""Loading of a proposer by `speculation`."""

from __future__ import annotations

from pathlib import Path

from pageant.actors.executor.runners.proposers.base import Proposer
from pageant.models.decoder import Decoder
from pageant.protocol.drafting import Speculation

__all__ = ["load_proposer"]


def load_proposer(
    settings: Speculation | None, target: Decoder, dtype: str, max_model_len: int
) -> Proposer | None:
    """The proposer that the executor is to have, if any.

    Raises:
        CheckpointError: what `settings.model` holds does not go with the target.
    """
    if settings is None or not settings.on_device:
        return None
    assert settings.model is not None, "checked when the settings were made"
    path = Path(settings.model)
    if settings.method == "draft":
        from pageant.actors.executor.runners.proposers.draft_model import DraftModel

        return DraftModel(path, target, dtype, max_model_len)
    if settings.method == "eagle":
        from pageant.actors.executor.runners.proposers.eagle import Eagle

        return Eagle(path, target, max_model_len)
    from pageant.actors.executor.runners.proposers.medusa import Medusa

    return Medusa(path, target)
