"""Images and videos of prompts: where they stand, and what a scheduler is told of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt

from pageant.protocol.arrays import int32
from pageant.protocol.embedding import PromptEmbeds
from pageant.protocol.encoding import EncodedImage, ImageInputs, ImagePart, VideoPart
from pageant.protocol.errors import BadRequest
from pageant.protocol.sampling import SamplingParams
from pageant.protocol.tokenizing import Tokenize, TokenizeChat

__all__ = [
    "PromptWithImages",
    "check_images",
    "check_placeholders",
    "expand",
    "images_of",
    "marks_of",
    "place_of",
    "without_images",
]

Int32 = npt.NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class PromptWithImages:
    """A checked text, or token ids int32 [tokens], in which placeholders stand for images and videos.

    Those of each kind are in the order of its placeholders.
    """

    prompt: Tokenize | Int32
    images: tuple[ImagePart | VideoPart, ...]


def images_of(prompt: object) -> tuple[ImagePart | VideoPart, ...]:
    """Return the images and videos of a prompt, those of each kind in order."""
    if isinstance(prompt, PromptWithImages):
        return prompt.images
    if not isinstance(prompt, TokenizeChat):
        return ()
    parts = (part for message in prompt.messages for part in message.parts)
    return tuple(part for part in parts if not isinstance(part, str))


def without_images(
    prompt: PromptWithImages | TokenizeChat, inputs: ImageInputs
) -> Tokenize | TokenizeChat | Int32:
    """Return the same prompt for the tokenizer, which needs to know where images are, and not what they show."""
    video = None if inputs.video is None else inputs.video.placeholder
    if isinstance(prompt, PromptWithImages):
        text = prompt.prompt
        if isinstance(text, Tokenize):
            return msgspec.structs.replace(text, placeholder=inputs.placeholder, around=inputs.around)
        return text
    messages = []
    for message in prompt.messages:
        parts = tuple(part if isinstance(part, str) else type(part)() for part in message.parts)
        messages.append(msgspec.structs.replace(message, parts=parts))
    return msgspec.structs.replace(
        prompt,
        messages=tuple(messages),
        placeholder=inputs.placeholder,
        video_placeholder=video,
        around=inputs.around,
    )


def check_images(
    parts: Sequence[ImagePart | VideoPart], inputs: ImageInputs | None, params: SamplingParams, name: str
) -> None:
    """Refuse images and videos that a model does not take, or too many of them.

    Raises:
        BadRequest: names the parameter `name`.
    """
    if not parts:
        return
    videos = _count_videos(parts)
    images = len(parts) - videos
    if inputs is None:
        raise BadRequest(
            f"{name} has {'a video' if videos else 'an image'}; this model takes texts alone", name
        )
    if videos and inputs.video is None:
        raise BadRequest(f"{name} has a video; this model takes texts and images alone", name)
    for kind, count, most in (
        ("images", images, inputs.most),
        ("videos", videos, 0 if inputs.video is None else inputs.video.most),
    ):
        if count > most:
            raise BadRequest(
                f"{name} has {count} {kind}; at most {most} are taken in one prompt (limit_mm_per_prompt)",
                name,
            )
    if params.truncate_prompt_tokens is not None:
        raise BadRequest(
            "truncate_prompt_tokens is given; expected none with images or videos, which would be cut",
            "truncate_prompt_tokens",
        )


def _count_videos(parts: Sequence[ImagePart | VideoPart]) -> int:
    return sum(isinstance(part, VideoPart) for part in parts)


def check_placeholders(
    token_ids: Int32, parts: Sequence[ImagePart | VideoPart], inputs: ImageInputs, name: str
) -> None:
    """Refuse a prompt, int32 [tokens], that has other numbers of placeholders than of images and videos.

    A text spells one, say.

    Raises:
        BadRequest: names the parameter `name`.
    """
    videos = _count_videos(parts)
    images = len(parts) - videos
    video = None if inputs.video is None else inputs.video.placeholder
    of_videos = 0 if video is None else int((token_ids == video).sum())
    found = int(np.isin(token_ids, inputs.reserved).sum()) - of_videos
    for kind, tokens, count in (("images", found, images), ("videos", of_videos, videos)):
        if tokens != count:
            raise BadRequest(
                f"{name} has {tokens} placeholder tokens of {kind}, and {count} {kind}; expected one for each of them, "
                "and none in a text",
                name,
            )
    if (token_ids == inputs.placeholder).sum() != images:
        raise BadRequest(
            f"{name} has tokens that stand within images; expected {inputs.placeholder} for each", name
        )


def place_of(parts: Sequence[ImagePart | VideoPart], index: int) -> str:
    """Return what a part is called, such as "image 2 of 3"."""
    kind = "video" if isinstance(parts[index], VideoPart) else "image"
    same = [place for place, part in enumerate(parts) if type(part) is type(parts[index])]
    return f"{kind} {same.index(index) + 1} of {len(same)}"


def marks_of(images: Iterable[EncodedImage]) -> tuple[str, ...]:
    """Return the distinct texts that tell times within videos, for the tokenizer."""
    return tuple(dict.fromkeys(mark for image in images for mark in image.marks))


def expand(
    token_ids: Int32,
    images: Sequence[EncodedImage],
    inputs: ImageInputs,
    marks: Mapping[str, Int32] | None = None,
) -> tuple[Int32, PromptEmbeds]:
    """Return a prompt's tokens with those of images in place of placeholders, and what images are embedded as.

    Args:
        images: images and videos, as many as the prompt has placeholders and at least one, those of each kind in order.
        marks: the tokens of `marks_of`.
    """
    video = None if inputs.video is None else inputs.video.placeholder
    left = {
        True: iter([one for one in images if video is not None and one.token_ids[0] == video]),
        False: iter([one for one in images if video is None or one.token_ids[0] != video]),
    }
    expanded = _Expanded()
    ordered: list[EncodedImage] = []  # as they stand in the prompt
    last = 0
    for place in np.flatnonzero((token_ids == inputs.placeholder) | (token_ids == video)).tolist():
        image = next(left[bool(token_ids[place] == video)])
        ordered.append(image)
        before = token_ids[last:place]
        last = place + 1
        if image.marks:
            assert inputs.video is not None and marks is not None, "a video has marks"
            begin, end = inputs.video.begin, inputs.video.end
            # Templates put these around a video; each of its steps has its own.
            if len(before) and before[-1] == begin and last < len(token_ids) and token_ids[last] == end:
                before, last = before[:-1], last + 1
            expanded.add_text(before)
            expanded.add_steps(image, int32([begin]), int32([end]), marks)
        else:
            expanded.add_text(before)
            expanded.add_image(image.token_ids, image.places, image.grid.tolist(), image.interval)
    expanded.add_text(token_ids[last:])
    return np.concatenate(expanded.token_ids), PromptEmbeds(
        rows=np.concatenate([image.rows for image in ordered]),
        names=np.concatenate([image.names for image in ordered]),
        places=np.concatenate(expanded.places),
        rotary=np.concatenate(expanded.rotary, axis=1) if inputs.rotary else None,
        whole=inputs.whole,
    )


class _Expanded:
    """Tokens of a prompt and their positions, as they are put together."""

    def __init__(self) -> None:
        self.token_ids: list[Int32] = []
        self.places: list[Int32] = []
        """Those of tokens that are embedded as images are, within the prompt."""
        self.rotary: list[Int32] = []
        """[3, tokens] of each piece: positions by time, height and width."""
        self._length = self._position = 0

    def add_text(self, token_ids: Int32) -> None:
        """Add tokens [tokens] of a text."""
        count = len(token_ids)
        self.token_ids.append(token_ids)
        self.rotary.append(_of_text(count, self._position))
        self._length += count
        self._position += count

    def add_image(self, token_ids: Int32, places: Int32, grid: list[int], interval: float) -> None:
        """Add tokens [tokens] of an image, or of a video that is one grid by time, height and width."""
        self.token_ids.append(token_ids)
        self.places.append(places + np.int32(self._length))
        positions = _of_image(grid, self._position, interval)
        self.rotary.append(positions)
        self._length += len(token_ids)
        last_step = int(np.float32(grid[0] - 1) * np.float32(interval))
        self._position += max(last_step + 1, *grid[1:])

    def add_steps(self, video: EncodedImage, begin: Int32, end: Int32, marks: Mapping[str, Int32]) -> None:
        """Add a video each of whose steps of time is a grid by itself, behind the text that tells the time."""
        steps, height, width = video.grid.tolist()
        size = height * width
        for step, mark in zip(range(steps), video.marks, strict=True):
            self.add_text(np.concatenate([marks[mark], begin]))
            tokens = video.token_ids[step * size : (step + 1) * size]
            self.add_image(tokens, video.places[:size], [1, height, width], 1.0)
            self.add_text(end)


def _of_text(count: int, first: int) -> Int32:
    """Return rotary positions of a text, int32 [3, count]: one after another."""
    return np.tile(np.arange(first, first + count, dtype=np.int32), (3, 1))


def _of_image(grid: list[int], first: int, interval: float) -> Int32:
    """Return rotary positions of an image or a video, int32 [3, tokens], by time, height and width."""
    found = int32(np.indices(grid).reshape(-1)).reshape(3, -1)
    found[0] = (found[0].astype(np.float32) * np.float32(interval)).astype(np.int32)
    return found + np.int32(first)
