"""Models: what a checkpoint says (`Checkpoint`, `DecoderSpec`) and what computes it (`Decoder`).

Reading a checkpoint's description loads neither torch nor transformers, so that a front end may do it:
only `pageant.models.decoder`, `pageant.models.layers` and `pageant.models.loading` import torch.
"""

from pageant.models.checkpoint import Checkpoint, resolve
from pageant.models.errors import CheckpointError
from pageant.models.spec import DecoderSpec

__all__ = ["Checkpoint", "CheckpointError", "DecoderSpec", "resolve"]
