"""Messages of conversations as clients send them, past answers included as other servers and gateways wrote them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from pageant.actors.frontend.given_images import read_image, read_url
from pageant.actors.frontend.given_videos import read_video, read_video_url
from pageant.protocol.encoding import ImagePart, VideoPart
from pageant.protocol.errors import BadRequest
from pageant.protocol.tokenizing import ChatMessage, ToolCall

TEXT_PARTS = ("text", "input_text", "output_text", "summary_text", "reasoning_text")
IMAGE_PARTS = ("image_url", "input_image", "image")
"""Types of images: OpenAI's in chats and in responses, and the library's own."""
VIDEO_PARTS = ("video_url", "video")
"""Types of videos: vLLM's, and the library's own."""
_SPOKEN = (*TEXT_PARTS, *IMAGE_PARTS, *VIDEO_PARTS, "refusal", "thinking")
MEDIA = ("image", "audio", "video", "file", "document", "computer_screenshot")
"""What a part's type begins with, perhaps after `input_`, that is refused: passed over, it would be missed."""


class ContentPart(msgspec.Struct, kw_only=True):
    """A part of a message's content: text, an image, a video, what the model thought or refused, or what is refused.

    An image is in `image_url` (OpenAI's, a URL or an object with one) or in `image` (the library's own). A video is in
    `video_url` or `video` likewise, with an `fps` beside or within it: frames a second that the model sees.

    `cache_control`, a mark for Anthropic's API, is not needed: all is cached.
    """

    type: str = "text"
    text: str | None = None
    refusal: str | None = None
    thinking: str | tuple[dict[str, Any], ...] | None = None
    cache_control: Any = None
    annotations: Any = None
    logprobs: Any = None
    image_url: Any = None
    image: Any = None
    video_url: Any = None
    video: Any = None
    fps: Any = None
    detail: Any = None
    file_id: Any = None

    @staticmethod
    def is_read(given: dict[str, Any]) -> bool:
        """Tell whether its fields are read. Other types may have other values under the same names."""
        return given.get("type", "text") in _SPOKEN

    def thought(self) -> str:
        """Return what the model thought: a text, or as Mistral has it, parts with one."""
        if self.thinking is None or isinstance(self.thinking, str):
            return self.thinking or ""
        texts = [part.get("text") for part in self.thinking]
        return "".join(text for text in texts if isinstance(text, str))

    def said(self, place: str, parameter: str = "messages") -> str | None:
        """Return the part's text; None where it has none that a model could be told.

        Raises:
            BadRequest: an image, a video, a sound or a file, or a text that is missing.
        """
        check_medium(self.type, place, parameter)
        if self.type in TEXT_PARTS and self.text is None:
            raise BadRequest(f"{place} has no text", parameter)
        return self.refusal if self.type == "refusal" else self.text

    @property
    def is_image(self) -> bool:
        """Tell whether the part is an image."""
        return self.type in IMAGE_PARTS

    @property
    def is_seen(self) -> bool:
        """Tell whether the part is an image or a video."""
        return self.type in (*IMAGE_PARTS, *VIDEO_PARTS)

    def seen(self, place: str, parameter: str = "messages") -> ImagePart | VideoPart:
        """Return the image or the video that the part is.

        Raises:
            BadRequest: it is missing, or cannot be taken as it is.
        """
        if not self.is_image:
            return self._video(place, parameter)
        if self.image is not None:
            return read_image(self.image, f"{place}.image", parameter)
        url = self.image_url
        if isinstance(url, dict):
            return read_url(url.get("url"), f"{place}.image_url.url", parameter)
        if url is None and self.file_id is not None:
            raise BadRequest(
                f"{place}.file_id is given; expected image_url: files are not kept here", parameter
            )
        if url is None:
            raise BadRequest(f"{place} has no image_url", parameter)
        return read_url(url, f"{place}.image_url", parameter)

    def _video(self, place: str, parameter: str) -> VideoPart:
        if self.video is not None:
            return read_video(self.video, f"{place}.video", self.fps, parameter)
        url, where, fps = self.video_url, f"{place}.video_url", self.fps
        if isinstance(url, dict):
            fps = url.get("fps", fps)
            url, where = url.get("url"), f"{where}.url"
        if url is None:
            raise BadRequest(f"{place} has no video_url", parameter)
        return read_video_url(url, where, fps, parameter)


def merged(parts: Iterable[str | ContentPart]) -> str | tuple[str | ContentPart, ...]:
    """Return the content of parts, of which texts next to each other are one: a text where no part is an image."""
    found: list[str | ContentPart] = []
    for part in parts:
        if isinstance(part, str) and found and isinstance(last := found[-1], str):
            found[-1] = last + part
        elif part != "":
            found.append(part)
    if not found:
        return ""
    return found[0] if len(found) == 1 and isinstance(found[0], str) else tuple(found)


def check_medium(kind: str, place: str, parameter: str) -> None:
    """Refuse the types of parts that are images, sounds or files, where only a text is taken."""
    if kind.removeprefix("input_").startswith(MEDIA):
        raise BadRequest(
            f"{place}.type is {kind!r:.80}; expected 'text': audio and files are not taken, images in messages and "
            "results of tools alone, and videos in chats alone",
            parameter,
        )


class CalledFunction(msgspec.Struct, kw_only=True):
    """A function that was called. Its arguments may be no JSON: a model was cut off, say."""

    name: str
    arguments: str | dict[str, Any] | list[Any] | bool | float | None = "{}"

    def written(self) -> str:
        """Return the arguments as text."""
        given = self.arguments
        if given is None:
            return "{}"
        return given if isinstance(given, str) else msgspec.json.encode(given).decode()


class CalledCustom(msgspec.Struct, kw_only=True):
    """A custom tool that was called, with a text."""

    name: str
    input: str = ""


class CalledTool(msgspec.Struct, kw_only=True):
    """A call that the model made in an earlier turn: of a function, or of a custom tool."""

    function: CalledFunction | None = None
    custom: CalledCustom | None = None
    id: str = ""
    type: str = "function"
    index: int | None = None

    def call(self, place: str) -> ToolCall:
        """Return the call as the tokenizer takes it; that of a custom tool is a function's with one argument.

        Raises:
            BadRequest: neither a function nor a custom tool.
        """
        if self.function is not None:
            return ToolCall(id=self.id, name=self.function.name, arguments=self.function.written())
        if self.custom is not None:
            arguments = msgspec.json.encode({"input": self.custom.input}).decode()
            return ToolCall(id=self.id, name=self.custom.name, arguments=arguments)
        raise BadRequest(f"{place} has neither function nor custom; expected one of them", "messages")


class Turn(msgspec.Struct, kw_only=True):
    """Message of a conversation.

    `reasoning` is another name of `reasoning_content`, and `function_call` an older form of `tool_calls`.
    """

    role: str
    content: str | tuple[str | ContentPart, ...] | None = None
    name: str | None = None
    refusal: str | None = None
    reasoning_content: Any = None
    reasoning: Any = None
    tool_calls: tuple[CalledTool, ...] | None = None
    tool_call_id: str | None = None
    annotations: Any = None
    function_call: CalledFunction | None = None

    def text(self, place: str) -> str | None:
        """Return the content's text, of several parts with a line for each to begin on.

        Images and videos are left out.

        Raises:
            BadRequest: a part is neither a text nor an image or a video.
        """
        if self.content is None or isinstance(self.content, str):
            return self.content if self.content is not None else self.refusal
        texts = [
            part if isinstance(part, str) else part.said(f"{place}.content[{index}]")
            for index, part in enumerate(self.content)
            if isinstance(part, str) or not part.is_seen
        ]
        return "\n".join(text for text in texts if text is not None)

    def parts(self, place: str) -> tuple[str | ImagePart | VideoPart, ...]:
        """Return texts, images and videos of the content, in order; nothing where it has texts alone.

        Raises:
            BadRequest: an image or a video cannot be taken as it is.
        """
        if not isinstance(self.content, tuple):
            return ()
        if not any(isinstance(part, ContentPart) and part.is_seen for part in self.content):
            return ()
        found: list[str | ImagePart | VideoPart] = []
        for index, part in enumerate(self.content):
            where = f"{place}.content[{index}]"
            if isinstance(part, ContentPart) and part.is_seen:
                found.append(part.seen(where))
            elif said := part if isinstance(part, str) else part.said(where):
                found.append(said)
        return tuple(found)

    def thoughts(self) -> str | None:
        """Return what the model thought before it said this, by whichever name the client has it."""
        for given in (self.reasoning_content, self.reasoning):
            if isinstance(given, str) and given:
                return given
        parts = self.content if isinstance(self.content, tuple) else ()
        return "".join(part.thought() for part in parts if isinstance(part, ContentPart)) or None

    def passed_over(self) -> list[str]:
        """Return the places of what is known here, and cannot be told to a model."""
        parts = self.content if isinstance(self.content, tuple) else ()
        kinds = [part.type for part in parts if isinstance(part, ContentPart) and says_nothing(part)]
        places = [f"messages[].content:{kind}"[:128] for kind in kinds]
        thoughts = {"reasoning_content": self.reasoning_content, "reasoning": self.reasoning}
        return places + [
            f"messages[].{name}"
            for name, given in thoughts.items()
            if given is not None and not isinstance(given, str)
        ]

    def message(self, place: str) -> ChatMessage:
        """Return the turn as the tokenizer takes it. `developer`, which few templates know, is a newer `system`.

        Raises:
            BadRequest: a part of it is no text, or no call.
        """
        text, thoughts, parts = self.text(place), self.thoughts(), self.parts(place)
        calls = [call.call(f"{place}.tool_calls[{i}]") for i, call in enumerate(self.tool_calls or ())]
        if self.function_call is not None and not calls:
            calls = [ToolCall(name=self.function_call.name, arguments=self.function_call.written())]
        if text is None and not calls and not thoughts:
            text = ""
        return ChatMessage(
            role=_ROLES.get(self.role, self.role),
            content=text,
            parts=parts,
            name=self.name,
            reasoning_content=thoughts,
            tool_calls=tuple(calls),
            tool_call_id=self.tool_call_id,
        )


_ROLES = {"developer": "system", "function": "tool"}


def says_nothing(part: ContentPart) -> bool:
    """Tell whether a part has nothing that a model could be told."""
    return (
        part.text is None
        and part.refusal is None
        and part.thinking is None
        and part.type not in (*TEXT_PARTS, *IMAGE_PARTS, *VIDEO_PARTS)
    )
