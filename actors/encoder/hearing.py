"""Encoding of sounds: files to samples in a process of their own, features once a file, and rows once a window."""

from __future__ import annotations

import asyncio
from hashlib import blake2b
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pageant.actors.encoder.cache import ByteBudget
from pageant.actors.encoder.core import required, torch_ready
from pageant.actors.encoder.decoding import decoded
from pageant.actors.runtime import Actor
from pageant.actors.runtime.isolation import IsolatedLimits, Isolation
from pageant.models.audio.families import RATE, read_audio
from pageant.models.audio.isolated import OPENER, samples_of
from pageant.models.audio.processing import SECONDS_MAX, AudioRefused
from pageant.models.checkpoint import Checkpoint
from pageant.protocol.embedding import NAME_BYTES
from pageant.protocol.hearing import AudioInputs, AudioMeasured, AudioPart, EncodedAudio

__all__ = ["AudioEncoder", "Hearing"]

_DECODE_SECONDS = 60.0
_DECODE_BYTES = 1 << 30
_ANSWER_BYTES = SECONDS_MAX * RATE * 4 + (1 << 20)

Float32 = npt.NDArray[np.float32]


class AudioEncoder:
    """A model's tower of sounds. Its methods block.

    Args:
        folder, dtype, device, threads: see `ImageEncoder`.

    Raises:
        CheckpointError: the model does not hear, or its tower cannot be loaded.
    """

    def __init__(self, folder: Path, dtype: str, device: str, threads: int | None) -> None:
        checkpoint = Checkpoint(folder)
        self.inputs: AudioInputs = required(read_audio(checkpoint), folder, "sounds")
        from pageant.models.audio.towers import SpeechTower

        computed = torch_ready(checkpoint, dtype, device, threads)
        self._tower = SpeechTower(checkpoint, self.inputs.window_frames, computed, device)

    def features(self, samples: Float32) -> Float32:
        """Return the features of samples [samples]: float32 [bins, frames], at least a window of frames."""
        return self._tower.features(samples)

    def encode(self, features: Float32, first: int, end: int) -> EncodedAudio:
        """Return the window of features [bins, frames] that begins with a frame. It ends before `end`, where the
        sound is over, or where it is full; behind that it is empty."""
        size = self.inputs.window_frames
        part = features[:, first : min(first + size, end)]
        window = np.ascontiguousarray(np.pad(part, ((0, 0), (0, size - part.shape[1]))), dtype=np.float32)
        name = blake2b(window.tobytes(), digest_size=NAME_BYTES, person=b"pageant-sound").digest()
        return EncodedAudio(rows=self._tower.encode(window), name=np.frombuffer(name, np.uint8).copy())


class _Sound:
    """Features of a file, float32 [bins, frames], with the number of frames of the sound itself."""

    def __init__(self, features: Float32, num_samples: int, hop: float) -> None:
        self.features = features
        self.seconds = num_samples / RATE
        self.num_frames = max(1, round(num_samples // (hop * RATE)))


class Hearing:
    """The encoder's side of sounds: keeps the features of files, and the rows of windows, by digests of the files.

    Args:
        actor: the encoder, whose threads it computes in.
        turns: limits what is in work at a time.
        budget: bytes of features and rows that may be kept.
    """

    def __init__(self, actor: Actor, encoder: AudioEncoder, turns: asyncio.Semaphore, budget: int) -> None:
        self._actor, self._encoder, self._turns = actor, encoder, turns
        self._sounds: ByteBudget[bytes, _Sound] = ByteBudget(budget // 2)
        self._windows: ByteBudget[tuple[bytes, int], EncodedAudio] = ByteBudget(budget - budget // 2)
        limits = IsolatedLimits(
            seconds=_DECODE_SECONDS, memory_bytes=_DECODE_BYTES, answer_bytes=_ANSWER_BYTES
        )
        self._isolation = Isolation(OPENER, str(RATE), limits)
        self.encoded = self.cached = self.decoded = 0

    def close(self) -> None:
        """End the processes that decode. Blocks."""
        self._isolation.close()

    @property
    def evicted(self) -> int:
        """Return how many sounds and windows gave way."""
        return self._sounds.evicted + self._windows.evicted

    @property
    def num_bytes(self) -> int:
        """Return the bytes that are kept."""
        return self._sounds.num_bytes + self._windows.num_bytes

    async def measure(self, part: AudioPart) -> AudioMeasured:
        """Return how long a sound is; raises `AudioRefused`."""
        async with self._turns:
            sound = await self._sound(_digest(part), part)
        return AudioMeasured(num_frames=sound.num_frames, seconds=sound.seconds)

    async def encode(self, part: AudioPart) -> EncodedAudio:
        """Return what is made of a window; raises `AudioRefused`."""
        async with self._turns:
            file = _digest(part)
            key = file, part.first_frame
            if (known := self._windows.get(key)) is not None:
                self.cached += 1
                return known
            sound = await self._sound(file, part)
            if not 0 <= part.first_frame < sound.num_frames:
                raise AudioRefused(
                    f"the window begins with frame {part.first_frame}; the sound has {sound.num_frames}"
                )
            # A sound that is shorter than a window is heard with the silence behind it, as with transformers.
            size = self._encoder.inputs.window_frames
            end = max(sound.num_frames, size)
            found = await self._actor.offload(self._encoder.encode, sound.features, part.first_frame, end)
            self.encoded += 1
            self._windows.add(key, found, found.rows.nbytes)
            return found

    async def _sound(self, file: bytes, part: AudioPart) -> _Sound:
        """Return the features of a file with this digest."""
        if (known := self._sounds.get(file)) is not None:
            return known
        samples = await self._actor.offload_beside("decoding", self._decode, part.data.tobytes())
        self.decoded += 1
        features = await self._actor.offload(self._encoder.features, samples)
        sound = _Sound(features, len(samples), self._encoder.inputs.frame_seconds)
        self._sounds.add(file, sound, features.nbytes)
        return sound

    def _decode(self, data: bytes) -> Float32:
        """Return the samples of a file, float32 [samples]. Blocks."""
        return decoded(self._isolation, data, samples_of, AudioRefused, "sound")


def _digest(part: AudioPart) -> bytes:
    return blake2b(part.data.data, digest_size=NAME_BYTES).digest()
