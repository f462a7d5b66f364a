"""Models: what a checkpoint says (`Checkpoint`, `DecoderSpec`) and what computes it (`Decoder`).

Reading a checkpoint's description loads neither torch nor transformers, so that a front end may do it:
only `pageant.models.loading`, and what it imports to build a decoder, does.

`architectures` has a file for each family that is computed here (`native`); any other causal language model
of transformers that lets its attention be replaced runs on transformers' own code (`fallback`).
"""

from pageant.models.checkpoint import Checkpoint, resolve
from pageant.models.errors import CheckpointError
from pageant.models.spec import DecoderSpec

__all__ = ["Checkpoint", "CheckpointError", "DecoderSpec", "resolve"]
