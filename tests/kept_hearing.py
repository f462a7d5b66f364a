"""An encoder that looks features and rows up in a file, so that its process starts in a moment: it imports no torch."""

from __future__ import annotations

from hashlib import blake2b
from pathlib import Path
from typing import Any, cast

import numpy as np

from pageant.actors.encoder import Encoder
from pageant.actors.encoder.hearing import AudioEncoder
from pageant.models.audio.families import read_audio
from pageant.models.checkpoint import Checkpoint
from pageant.protocol.hearing import AudioInputs

KEPT = "kept_sounds.npz"


def name_of(array: np.ndarray) -> str:
    """Return a digest of an array's values."""
    return blake2b(np.ascontiguousarray(array, np.float32).tobytes(), digest_size=16).hexdigest()


def keep(folder: Path, sounds: list[np.ndarray]) -> None:
    """Write the features of sounds, and the rows of all windows of theirs, beside their checkpoint."""
    encoder = AudioEncoder(folder, "float32", "cpu", None)
    kept: dict[str, np.ndarray] = {}
    for samples in sounds:
        features = encoder.features(samples)
        kept[name_of(samples)] = features
        size = encoder.inputs.window_frames
        for first in range(0, features.shape[1], 2):
            window = features[:, first : first + size]
            window = np.pad(window, ((0, 0), (0, size - window.shape[1])))
            kept[name_of(window)] = encoder._tower.encode(window)
    np.savez(folder / KEPT, **cast(Any, kept))


class _KeptTower:
    """A tower that knows some sounds."""

    def __init__(self, folder: Path) -> None:
        with np.load(folder / KEPT) as kept:
            self._kept = dict(kept)

    def features(self, samples: np.ndarray) -> np.ndarray:
        """Return the features of samples [samples]."""
        return self._kept[name_of(samples)]

    def encode(self, window: np.ndarray) -> np.ndarray:
        """Return the rows of a window [bins, frames]."""
        return self._kept[name_of(window)]


class _KeptSounds(AudioEncoder):
    def __init__(self, folder: Path) -> None:
        self.inputs = cast(AudioInputs, read_audio(Checkpoint(folder)))
        self._tower = _KeptTower(folder)  # type: ignore[assignment]


class KeptHearing(Encoder):
    """The encoder, with a tower that knows some sounds."""

    def load_audio(self) -> AudioEncoder:
        """See `Encoder.load_audio`."""
        return _KeptSounds(Path(self.options.model))
