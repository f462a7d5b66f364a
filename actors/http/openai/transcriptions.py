"""`/v1/audio/transcriptions` and `/v1/audio/translations`: files of sounds, and what is said in them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
from litestar import Response, post
from litestar.datastructures import UploadFile
from litestar.response import Stream

from pageant.actors.frontend.given_audio import read_audio_file
from pageant.actors.frontend.transcription import Heard, Transcription
from pageant.actors.frontend.transcription_settings import TranscriptionSettings, check_previous
from pageant.actors.frontend.transcripts import Segment
from pageant.actors.http.answers import Piece
from pageant.actors.http.errors import told
from pageant.actors.http.openai.transcript_formats import (
    Transcript,
    TranscriptDelta,
    TranscriptDone,
    TranscriptFormat,
    VerboseTranscript,
    brief,
    subtitles,
    usage_of,
    verbose,
)
from pageant.actors.http.openapi import describe
from pageant.actors.http.served import Served
from pageant.actors.http.service import Http, Service, Taken
from pageant.actors.http.streams import HEADERS, encode, sse, until_gone
from pageant.protocol.arrays import int32
from pageant.protocol.errors import BadRequest
from pageant.protocol.hearing import AudioMeasured, AudioPart, MeasureAudio
from pageant.protocol.tokenizing import Detokenize, Tokenize, Tokenized

__all__ = ["routes"]

Task = Literal["transcribe", "translate"]
ENCODE_SECONDS = 600.0
_FILE = {"type": "string", "format": "binary"}
_NUMBERS: dict[str, type] = {
    "temperature": float,
    "compression_ratio_threshold": float,
    "logprob_threshold": float,
    "no_speech_threshold": float,
    "seed": int,
    "max_completion_tokens": int,
}
_FLAGS = {"true": True, "false": False, "1": True, "0": False}
_GRANULARITIES = "timestamp_granularities"


class TranslationRequest(msgspec.Struct, kw_only=True):
    """`POST /v1/audio/translations`: a form with a file."""

    file: Annotated[str, msgspec.Meta(extra_json_schema=_FILE)]
    model: str | None = None
    language: str | None = None
    prompt: str | None = None
    response_format: TranscriptFormat | None = None
    temperature: float | list[float] | None = None
    compression_ratio_threshold: float | None = None
    logprob_threshold: float | None = None
    no_speech_threshold: float | None = None
    stream: bool | None = None
    seed: int | None = None
    max_completion_tokens: int | None = None

    @property
    def has_times(self) -> bool:
        """Tell whether the answer has times of pieces of text."""
        return self.response_format in ("verbose_json", "srt", "vtt")

    @property
    def has_words(self) -> bool:
        """Tell whether the answer has words with their times."""
        return False

    @property
    def has_segments(self) -> bool:
        """Tell whether the answer has segments, where its format has them."""
        return True

    def settings(self, task: Task) -> TranscriptionSettings:
        """Return what is asked, as transcriptions take it.

        Raises:
            BadRequest: a value is out of range.
        """
        if self.stream and self.response_format not in (None, "json", "text"):
            raise BadRequest(
                f"response_format is {self.response_format}; expected json or text for a stream",
                "response_format",
            )
        thresholds = {
            name: value
            for name in ("compression_ratio_threshold", "logprob_threshold", "no_speech_threshold")
            if (value := getattr(self, name)) is not None
        }
        return TranscriptionSettings(
            language=self.language or None,
            task=task,
            timestamps=self.has_times,
            word_timestamps=self.has_words,
            prompt=self.prompt or "",
            temperature=self.temperature or 0.0,
            seed=self.seed,
            max_tokens=self.max_completion_tokens,
            **thresholds,
        )


class TranscriptionRequest(TranslationRequest, kw_only=True):
    """`POST /v1/audio/transcriptions`: a form with a file."""

    timestamp_granularities: list[Literal["segment", "word"]] | None = None

    @property
    def has_words(self) -> bool:
        """See `TranslationRequest.has_words`."""
        return "word" in (self.timestamp_granularities or ())

    @property
    def has_segments(self) -> bool:
        """See `TranslationRequest.has_segments`."""
        return not self.has_words or "segment" in (self.timestamp_granularities or ())

    def settings(self, task: Task) -> TranscriptionSettings:
        """See `TranslationRequest.settings`."""
        if self.has_words and self.response_format != "verbose_json":
            raise BadRequest(
                f"response_format is {self.response_format or 'json'}; expected verbose_json for times of words",
                "response_format",
            )
        return super().settings(task)


def routes(service: Service) -> list[Any]:
    """The routes of this family."""
    answers = (Transcript, VerboseTranscript)

    @post(
        "/v1/audio/transcriptions",
        status_code=200,
        opt=describe(TranscriptionRequest, answers, streams=True, form=True),
    )
    async def transcriptions(request: Http) -> Response[Any]:
        """Write down what is said in a file."""
        return await _answer(service, request, TranscriptionRequest, "transcribe")

    @post(
        "/v1/audio/translations",
        status_code=200,
        opt=describe(TranslationRequest, answers, streams=True, form=True),
    )
    async def translations(request: Http) -> Response[Any]:
        """Write down in English what is said in a file."""
        return await _answer(service, request, TranslationRequest, "translate")

    return [transcriptions, translations]


async def _answer(
    service: Service, request: Http, shape: type[TranslationRequest], task: Task
) -> Response[Any]:
    service.part_of(request.headers.get("traceparent"))
    fields, data = await _form(request)
    taken: Taken[TranslationRequest] = service.check(
        encode(fields), shape, "transcr", request.headers.get("x-request-id")
    )
    asked, settings = taken.asked, taken.asked.settings(task)
    hearing = _Hearing(service, taken, await _begin(service, taken.served, data, settings))
    if asked.stream:
        return Stream(hearing.events(), media_type="text/event-stream", headers={**HEADERS, **taken.headers})
    segments = [one for window in [window async for window in hearing.windows(request)] for one in window]
    heard = hearing.transcription.output(segments)
    match asked.response_format:
        case "text":
            return _text(heard.text + "\n", taken, "text/plain")
        case "srt" | "vtt" as form:
            kind = "text/vtt" if form == "vtt" else "application/x-subrip"
            return _text(subtitles(heard.segments, form), taken, kind)
        case "verbose_json":
            body: Transcript = verbose(heard, task, words=asked.has_words, segments=asked.has_segments)
        case _:
            body = brief(heard)
    return Response(encode(body), headers=taken.headers, media_type="application/json")


def _text(text: str, taken: Taken[Any], kind: str) -> Response[Any]:
    return Response(text, headers=taken.headers, media_type=f"{kind}; charset=utf-8")


async def _form(request: Http) -> tuple[dict[str, Any], bytes]:
    """Return the fields of a form, and its file.

    Raises:
        BadRequest: no form with a file.
    """
    kind = request.headers.get("content-type", "")
    if not kind.startswith("multipart/form-data"):
        raise BadRequest(f"content-type is {kind!r:.80}; expected multipart/form-data with a file", "file")
    fields: dict[str, Any] = {}
    data: bytes | None = None
    for name, value in (await request.form()).multi_items():
        if name == "file":
            data = await value.read() if isinstance(value, UploadFile) else str(value).encode()
        elif isinstance(value, UploadFile):
            raise BadRequest(f"{name:.80} is a file; expected a text", name)
        elif name.endswith("[]"):
            fields.setdefault(name.removesuffix("[]"), []).append(_typed(name.removesuffix("[]"), value))
        elif name == _GRANULARITIES:
            fields.setdefault(name, []).append(value)
        else:
            fields[name] = _typed(name, value)
    if data is None:
        raise BadRequest("Object missing required field `file`", "file")
    return {**fields, "file": ""}, data


def _typed(name: str, value: Any) -> Any:
    """Return a field's text as what the field is; as it is where it is none, for the complaint."""
    if name == "stream":
        return _FLAGS.get(str(value).lower(), value)
    try:
        return _NUMBERS[name](value) if name in _NUMBERS else value
    except (TypeError, ValueError):
        return value


async def _begin(
    service: Service, served: Served, data: bytes, settings: TranscriptionSettings
) -> Transcription:
    """Return the transcription of a file.

    Raises:
        BadRequest: no sound, or one that the model cannot hear as asked.
    """
    inputs = served.limits.audio
    if inputs is None:
        raise BadRequest("this model takes texts; expected one that hears, such as Whisper", "model")
    settings.check(inputs)
    audio: AudioPart = read_audio_file(data)
    previous: list[int] = []
    if text := settings.prompt.strip():
        if not served.limits.has_tokenizer:
            raise BadRequest("prompt is given; the model is served without a tokenizer", "prompt")
        asked = Tokenize(text=f" {text}", add_special_tokens=False)
        answer = await service.ask(served, "tokenizer", asked, again=True)
        if not isinstance(answer, Tokenized):
            raise BadRequest(answer.reason, "prompt")
        previous = check_previous(answer.token_ids.tolist(), inputs)
    measured = await service.ask(served, "encoder", MeasureAudio(audio=audio), ENCODE_SECONDS, again=True)
    if not isinstance(measured, AudioMeasured):
        raise BadRequest(measured.reason, "file")
    limits = served.limits
    return Transcription(audio, measured, inputs, settings, previous, limits.max_model_len, limits.vocab_size)


def _heard_of(piece: Piece) -> Heard:
    """Return the results of a transcription's request, from the whole of its answer."""
    listed = None
    if piece.logprobs:
        *_, listed = piece.logprobs[0].values()
    return Heard(
        token_ids=piece.token_ids,
        avg_logprob=piece.choice.cumulative_logprob / max(1, len(piece.token_ids)),
        listed_logprob=None if listed is None else listed.logprob,
        rows=None if piece.finished is None else piece.finished.pooled,
    )


@dataclass(frozen=True)
class _Hearing:
    """A transcription on its way."""

    service: Service
    taken: Taken[TranslationRequest]
    transcription: Transcription

    async def windows(self, request: Http | None = None) -> AsyncIterator[list[Segment]]:
        """Yield the segments of each window, with their texts.

        Args:
            request: ends it all where its client leaves; None leaves that to the caller.
        """
        service, taken, found = self.service, self.taken, self.transcription
        while not found.done:
            answers = service.begin(taken.served, [found.prompt()], found.params(), taken.name, whole=True)
            try:
                if request is None:
                    (piece,) = await answers.whole()
                else:
                    async with until_gone(request.receive, answers):
                        (piece,) = await answers.whole()
            except BaseException:
                answers.close()
                raise
            if answers.is_aborted:
                found.cut()
            segments = found.advance(_heard_of(piece))
            yield found.told(segments, await self._texts(found.pieces(segments)))

    async def _texts(self, pieces: list[list[int]]) -> list[str]:
        """Return the texts of tokens; none where the model has no tokenizer."""
        if not pieces or not self.taken.served.limits.has_tokenizer:
            return []
        asked = Detokenize(
            counts=int32([len(piece) for piece in pieces]),
            token_ids=int32([token for piece in pieces for token in piece]),
        )
        return list((await self.service.ask(self.taken.served, "tokenizer", asked, again=True)).texts)

    async def events(self) -> AsyncIterator[bytes]:
        """Yield server-sent events: the text of each window, then all of it."""
        heard_segments: list[Segment] = []
        try:
            async for segments in self.windows():
                heard_segments += segments
                if delta := "".join(one.text for one in segments):
                    yield sse(encode(TranscriptDelta(delta=delta)))
            heard = self.transcription.output(heard_segments)
            yield sse(encode(TranscriptDone(text=heard.text, usage=usage_of(heard))))
        except Exception as error:
            yield sse(encode(told(error)))
        yield sse(b"[DONE]")
