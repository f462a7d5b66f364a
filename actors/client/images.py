"""The images that a topology's model takes, by its checkpoint and the settings."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from pageant.actors.client.tokenizers import revision_of
from pageant.actors.runtime.replicating import is_replicated
from pageant.actors.runtime.topology import Topology
from pageant.models.checkpoint import Checkpoint, CheckpointError, resolve
from pageant.models.vision.families import read_vision
from pageant.protocol.drafting import DEVICE_METHODS
from pageant.protocol.encoding import ImageInputs
from pageant.protocol.errors import TopologyError

__all__ = ["image_inputs", "images_most", "takes_images"]

IMAGES_MOST = 32
"""Images of one prompt, where nobody said how many."""
_LIMITS = "limit_mm_per_prompt"
_ALONE = ("tensor_parallel", "pipeline_parallel", "tensor_segments")
_OTHERS = ("audio", "video")


def images_most(topology: Topology) -> int:
    """Return how many images a prompt may have, by `limit_mm_per_prompt`.

    Raises:
        TopologyError: what is there is no such limit.
    """
    found = topology.settings.get(_LIMITS)
    if found is None:
        return IMAGES_MOST
    if not isinstance(found, Mapping):
        raise TopologyError(_LIMITS, f"found {found!r:.200}; expected a mapping such as {{image: 4}}")
    for kind, count in found.items():
        if kind not in ("image", *_OTHERS):
            raise TopologyError(f"{_LIMITS}.{kind}", "no such key; expected image")
        count = count.get("count", IMAGES_MOST) if isinstance(count, dict) else count
        if isinstance(count, bool) or not isinstance(count, int) or not 0 <= count <= 999:
            raise TopologyError(f"{_LIMITS}.{kind}", f"found {count!r:.100}; expected a number from 0 to 999")
        if kind in _OTHERS and count > (kind == "audio"):
            raise TopologyError(f"{_LIMITS}.{kind}", f"found {count}; expected 0: images alone are taken")
    image = found.get("image", IMAGES_MOST)
    return int(image.get("count", IMAGES_MOST) if isinstance(image, dict) else image)


def takes_images(topology: Topology) -> bool:
    """Tell whether a topology's model takes images. What is wrong with it is told where it is read."""
    try:
        if not topology.model or not images_most(topology):
            return False
        folder = resolve(topology.model, revision_of(topology.settings))
        return image_inputs(topology, Checkpoint(folder)) is not None
    except (TopologyError, CheckpointError, ModuleNotFoundError):
        return False


def image_inputs(topology: Topology, checkpoint: Checkpoint) -> ImageInputs | None:
    """Return the images that a model takes in a topology; None where it takes none.

    Raises:
        TopologyError: a setting is out of range, or Pillow is missing.
        CheckpointError: the model's configuration makes no sense.
    """
    most = images_most(topology)
    spec = read_vision(checkpoint) if most and checkpoint.purpose.generates else None
    if spec is None:
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
    return ImageInputs(
        placeholder=spec.placeholder,
        reserved=tuple(sorted({spec.placeholder, *image.token_ids})),
        most=most,
        around=spec.around,
        rotary=spec.rotary,
        whole=spec.whole,
    )


def _refuse_others(topology: Topology) -> None:
    """Refuse by name what is not served together with images.

    Raises:
        TopologyError: names the setting, and says how to serve texts alone.
    """
    texts_alone = f"or {_LIMITS}: {{image: 0}}, for texts alone"
    for name in _ALONE:
        if (count := _option(topology, name)) not in (None, 1):
            raise TopologyError(name, f"found {count!r:.80}; expected 1 with images, {texts_alone}")
    if is_replicated(topology, topology):
        raise TopologyError(
            "replicas", f"they are not served with images; expected 1 and no router, {texts_alone}"
        )
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
