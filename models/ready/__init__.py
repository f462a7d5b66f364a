"""Checkpoints that come quantised: one file a format, and what all formats share.

- `method` reads the configuration that says how a checkpoint was quantised, and picks the format's file.
- `module` is a quantised linear map: the tensors that it is saved as, checked, and decoded a few rows at a time.
- `weights` finds the modules of a checkpoint, and chooses the form in which each fused weight is kept here.
- `filling` moves decoded rows into their place.

A format's file decides from the tensors that are there, and holds them against the configuration. Front ends check
checkpoints too, so torch is imported only where rows are decoded. `docs/quantized-checkpoints.md` is the map.
"""

from __future__ import annotations

from pageant.models.ready.method import QUANTISED, Method, find_method
from pageant.models.ready.weights import Form, ReadyWeights

__all__ = ["QUANTISED", "Form", "Method", "ReadyWeights", "find_method"]
