"""The images and videos that a topology's model takes, by its checkpoint and the settings."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any, NamedTuple

from pageant.actors.client.tokenizers import revision_of
from pageant.actors.runtime.topology import Topology
from pageant.models.checkpoint import Checkpoint, CheckpointError, resolve
from pageant.models.vision.families import VisionSpec, read_vision
from pageant.protocol.drafting import DEVICE_METHODS
from pageant.protocol.encoding import ImageInputs, VideoInputs
from pageant.protocol.errors import TopologyError

__all__ = ["image_inputs", "media_most", "takes_images"]

IMAGES_MOST = 32
"""Images of one prompt, where nobody said how many."""
VIDEOS_MOST = 4
"""Videos of one prompt, where nobody said how many."""
_LIMITS = "limit_mm_per_prompt"
_ALONE = ("tensor_parallel", "pipeline_parallel", "tensor_segments")
_KINDS = ("image", "video", "audio")


class MediaMost(NamedTuple):
    """Limits of one prompt."""

    images: int
    videos: int
    videos_asked: bool
    """Somebody said that videos are to be taken."""


def media_most(topology: Topology) -> MediaMost:
    """Return how many images and videos a prompt may have, by `limit_mm_per_prompt`.

    Raises:
        TopologyError: what is there is no such limit.
    """
    found = topology.settings.get(_LIMITS)
    if found is None:
        return MediaMost(IMAGES_MOST, VIDEOS_MOST, False)
    if not isinstance(found, Mapping):
        raise TopologyError(_LIMITS, f"found {found!r:.200}; expected a mapping such as {{image: 4}}")
    counts: dict[str, int] = {}
    for kind, count in found.items():
        if kind not in _KINDS:
            raise TopologyError(f"{_LIMITS}.{kind}", "no such key; expected image or video")
        default = VIDEOS_MOST if kind == "video" else IMAGES_MOST
        count = count.get("count", default) if isinstance(count, dict) else count
        if isinstance(count, bool) or not isinstance(count, int) or not 0 <= count <= 999:
            raise TopologyError(f"{_LIMITS}.{kind}", f"found {count!r:.100}; expected a number from 0 to 999")
        if kind == "audio" and count > 1:
            raise TopologyError(f"{_LIMITS}.{kind}", f"found {count}; expected at most 1")
        counts[kind] = count
    images = counts.get("image", IMAGES_MOST)
    videos = counts.get("video", VIDEOS_MOST if images else 0)  # without images, texts are alone
    return MediaMost(images, videos, counts.get("video", 0) > 0)


def takes_images(topology: Topology) -> bool:
    """Tell whether a topology's model takes images. What is wrong with it is told where it is read."""
    try:
        most = media_most(topology)
        if not topology.model or not (most.images or most.videos):
            return False
        folder = resolve(topology.model, revision_of(topology.settings))
        return image_inputs(topology, Checkpoint(folder)) is not None
    except (TopologyError, CheckpointError, ModuleNotFoundError):
        return False


def image_inputs(topology: Topology, checkpoint: Checkpoint) -> ImageInputs | None:
    """Return the images and videos that a model takes in a topology; None where it takes none.

    Raises:
        TopologyError: a setting is out of range, or Pillow is missing.
        CheckpointError: the model's configuration makes no sense.
    """
    most = media_most(topology)
    takes_any = bool(most.images or most.videos) and checkpoint.purpose.generates
    spec = read_vision(checkpoint) if takes_any else None
    if most.videos_asked and (spec is None or spec.video is None):
        raise TopologyError(f"{_LIMITS}.video", f"found {most.videos}; expected 0: the model takes no videos")
    if spec is None or not (most.images or spec.video):
        return None
    _refuse_others(topology)
    if find_spec("PIL") is None:
        raise TopologyError(
            "model",
            "it takes images, and Pillow is not installed; expected pip install 'pageant[vision]', or "
            f"{_LIMITS}: {{image: 0}}, for texts alone",
        )
    image = spec.tokens(
        spec.processing.size if max(spec.processing.size) else (spec.processing.multiple,) * 2
    )
    if spec.whole:
        _refuse_small_steps(topology, len(image.places))
    reserved = {spec.placeholder, *image.token_ids}
    if spec.video is not None:
        reserved.add(spec.video.placeholder)
    return ImageInputs(
        placeholder=spec.placeholder,
        reserved=tuple(sorted(reserved)),
        most=most.images,
        around=spec.around,
        rotary=spec.rotary,
        whole=spec.whole,
        video=_video_inputs(spec, most.videos),
    )


def _video_inputs(spec: VisionSpec, most: int) -> VideoInputs | None:
    if spec.video is None or not most:
        return None
    video = spec.video
    return VideoInputs(placeholder=video.placeholder, most=most, begin=video.begin, end=video.end)


def _refuse_others(topology: Topology) -> None:
    """Refuse by name what is not served together with images.

    Raises:
        TopologyError: names the setting, and says how to serve texts alone.
    """
    texts_alone = f"or {_LIMITS}: {{image: 0}}, for texts alone"
    for name in _ALONE:
        if (count := _option(topology, name)) not in (None, 1):
            raise TopologyError(name, f"found {count!r:.80}; expected 1 with images, {texts_alone}")
    speculation = topology.settings.get("speculation")
    method = speculation.get("method") if isinstance(speculation, Mapping) else None
    if method in DEVICE_METHODS:
        raise TopologyError(
            "speculation.method", f"found {method!r:.80}; expected ngram with images, {texts_alone}"
        )


_STEP_TOKENS, _SEQUENCES = 2048, 256
"""What a scheduler's options are by default."""


def _refuse_small_steps(topology: Topology, image_tokens: int) -> None:
    """Refuse steps in which an image that is computed whole might never find room beside all others.

    Raises:
        TopologyError: names the setting.
    """
    found = _option(topology, "max_num_batched_tokens", "scheduler")
    sequences = _option(topology, "max_num_seqs", "scheduler")
    sequences = sequences if isinstance(sequences, int) else _SEQUENCES
    least = image_tokens + sequences - 1
    if (found if isinstance(found, int) else _STEP_TOKENS) < least:
        raise TopologyError(
            "max_num_batched_tokens",
            f"found {found!r:.80}; expected at least {least}: an image is computed in one step, of {image_tokens} "
            f"tokens, beside {sequences - 1} other sequences",
        )


def _option(topology: Topology, name: str, actor: str = "executor") -> Any:
    """Return an option of an actor as it is written, or None."""
    entry = topology.actors.get(actor)
    found = None if entry is None else entry.options.get(name)
    return topology.settings.get(name) if found is None else found
