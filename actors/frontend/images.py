"""Images of prompts: where they stand, and what a scheduler is told of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt

from pageant.protocol.arrays import int32
from pageant.protocol.embedding import PromptEmbeds
from pageant.protocol.encoding import EncodedImage, ImageInputs, ImagePart
from pageant.protocol.errors import BadRequest
from pageant.protocol.sampling import SamplingParams
from pageant.protocol.tokenizing import Tokenize, TokenizeChat

__all__ = ["PromptWithImages", "check_images", "check_placeholders", "expand", "images_of", "without_images"]

Int32 = npt.NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class PromptWithImages:
    """A checked text, or token ids int32 [tokens], in which placeholders stand for images, in order."""

    prompt: Tokenize | Int32
    images: tuple[ImagePart, ...]


def images_of(prompt: object) -> tuple[ImagePart, ...]:
    """Return the images of a prompt, in order."""
    if isinstance(prompt, PromptWithImages):
        return prompt.images
    if not isinstance(prompt, TokenizeChat):
        return ()
    parts = (part for message in prompt.messages for part in message.parts)
    return tuple(part for part in parts if isinstance(part, ImagePart))


def without_images(
    prompt: PromptWithImages | TokenizeChat, inputs: ImageInputs
) -> Tokenize | TokenizeChat | Int32:
    """Return the same prompt for the tokenizer, which needs to know where images are, and not what they show."""
    if isinstance(prompt, PromptWithImages):
        text = prompt.prompt
        if isinstance(text, Tokenize):
            return msgspec.structs.replace(text, placeholder=inputs.placeholder, around=inputs.around)
        return text
    messages = []
    for message in prompt.messages:
        parts = tuple(part if isinstance(part, str) else ImagePart() for part in message.parts)
        messages.append(msgspec.structs.replace(message, parts=parts))
    return msgspec.structs.replace(
        prompt, messages=tuple(messages), placeholder=inputs.placeholder, around=inputs.around
    )


def check_images(count: int, inputs: ImageInputs | None, params: SamplingParams, name: str) -> None:
    """Refuse images that a model does not take, or too many of them.

    Raises:
        BadRequest: names the parameter `name`.
    """
    if not count:
        return
    if inputs is None:
        raise BadRequest(f"{name} has an image; this model takes texts alone", name)
    if count > inputs.most:
        raise BadRequest(
            f"{name} has {count} images; at most {inputs.most} are taken in one prompt (limit_mm_per_prompt)",
            name,
        )
    if params.truncate_prompt_tokens is not None:
        raise BadRequest(
            "truncate_prompt_tokens is given; expected none with images, which would be cut",
            "truncate_prompt_tokens",
        )


def check_placeholders(token_ids: Int32, count: int, inputs: ImageInputs, name: str) -> None:
    """Refuse a prompt, int32 [tokens], that has another number of placeholders than of images: a text spells one, say.

    Raises:
        BadRequest: names the parameter `name`.
    """
    found = int(np.isin(token_ids, inputs.reserved).sum())
    if found != count or (token_ids == inputs.placeholder).sum() != count:
        raise BadRequest(
            f"{name} has {found} placeholder tokens of images, and {count} images; expected one for each image, and "
            "none in a text",
            name,
        )


def expand(
    token_ids: Int32, images: Sequence[EncodedImage], inputs: ImageInputs
) -> tuple[Int32, PromptEmbeds]:
    """Return a prompt's tokens with those of images in place of placeholders, and what images are embedded as.

    Args:
        images: as many as the prompt has placeholders, at least one.
    """
    places = np.flatnonzero(token_ids == inputs.placeholder)
    pieces: list[Int32] = []
    rows_at: list[Int32] = []
    rotary: list[Int32] = []
    length = position = last = 0
    for place, image in zip(places.tolist(), images, strict=True):
        text = token_ids[last:place]
        pieces += [text, image.token_ids]
        length += len(text)
        rows_at.append(image.places + np.int32(length))
        length += len(image.token_ids)
        last = place + 1
        rotary += [_of_text(len(text), position), _of_image(image.grid.tolist(), position + len(text))]
        position += len(text) + int(image.grid[1:].max())
    pieces.append(token_ids[last:])
    rotary.append(_of_text(len(token_ids) - last, position))
    return np.concatenate(pieces), PromptEmbeds(
        rows=np.concatenate([image.rows for image in images]),
        names=np.concatenate([image.names for image in images]),
        places=np.concatenate(rows_at),
        rotary=np.concatenate(rotary, axis=1) if inputs.rotary else None,
        whole=inputs.whole,
    )


def _of_text(count: int, first: int) -> Int32:
    """Return rotary positions of a text, int32 [3, count]: one after another."""
    return np.tile(np.arange(first, first + count, dtype=np.int32), (3, 1))


def _of_image(grid: list[int], first: int) -> Int32:
    """Return rotary positions of an image, int32 [3, tokens], by time, height and width."""
    return int32(np.indices(grid).reshape(-1)).reshape(3, -1) + np.int32(first)
