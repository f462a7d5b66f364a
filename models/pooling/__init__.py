"""Models that embed and classify: which vectors of a text are read, and what is made of them.

- `purpose` decides whether a checkpoint generates, pools, or both.
- `spec` describes pooling as data; `reading` finds it in a checkpoint, with `sentence_transformers` for that library's
  folders and `classifiers` for the heads of transformers.
- `pooler` computes it, in float32, from the hidden states of a step.

All but `pooler` know no torch: front ends check checkpoints too.
"""

from __future__ import annotations

from pageant.models.pooling.purpose import Purpose, read_purpose
from pageant.models.pooling.reading import read_pooling
from pageant.models.pooling.spec import PoolingSpec

__all__ = ["PoolingSpec", "Purpose", "read_pooling", "read_purpose"]
