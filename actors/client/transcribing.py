"""Transcription by `LLM` and `Engine`: a sound of any length to text, over the session's requests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pageant.actors.client.asking import Asked
from pageant.actors.client.batching import Batch
from pageant.actors.client.outputs import RequestOutput
from pageant.actors.frontend.given_audio import read_sound
from pageant.actors.frontend.prompts import check_settings
from pageant.actors.frontend.transcription import Heard, Transcription
from pageant.actors.frontend.transcription_settings import TranscriptionSettings, check_previous
from pageant.actors.frontend.transcripts import TranscriptionOutput
from pageant.protocol.arrays import int32
from pageant.protocol.errors import BadRequest
from pageant.protocol.hearing import AudioInputs, AudioMeasured, AudioPart, MeasureAudio
from pageant.protocol.serving import Finished
from pageant.protocol.tokenizing import Detokenize, Tokenize, Tokenized

if TYPE_CHECKING:
    from pageant.actors.client.session import Session

__all__ = [
    "TranscribingMethods",
    "begin_transcription",
    "end_transcription",
    "heard_of",
    "transcription_settings",
]

ENCODE_SECONDS = 600.0
_DEATHS_MAX = 3


def transcription_settings(given: dict[str, Any]) -> tuple[TranscriptionSettings, dict[str, Any]]:
    """Return keyword arguments in two: the settings of a transcription, and those of its requests.

    Raises:
        BadRequest: a value is out of range.
    """
    names = TranscriptionSettings.__struct_fields__
    own = {
        name: value
        for name, value in given.items()
        if name in names and (value is not None or name.endswith("_threshold"))
    }
    rest = {name: value for name, value in given.items() if name not in names}
    return TranscriptionSettings(**own), rest


def begin_transcription(session: Session, sound: Any, settings: TranscriptionSettings) -> Transcription:
    """Return the transcription of a sound, which a user brings. Blocks.

    Raises:
        BadRequest: no sound, or one that the model cannot hear as asked.
    """
    inputs = session.limits.audio
    if inputs is None:
        raise BadRequest("this model takes texts; expected one that hears, such as Whisper", "model")
    audio: AudioPart = read_sound(sound)
    settings.check(inputs)
    previous: list[int] = []
    if settings.prompt.strip():
        previous = _tokens(session, f" {settings.prompt.strip()}", inputs)
    measured = session.ask(
        f"{session.replica}encoder", MeasureAudio(audio=audio), ENCODE_SECONDS, deaths_max=_DEATHS_MAX
    )
    if not isinstance(measured, AudioMeasured):
        raise BadRequest(measured.reason, "audio")
    limits = session.limits
    return Transcription(audio, measured, inputs, settings, previous, limits.max_model_len, limits.vocab_size)


def _tokens(session: Session, text: str, inputs: AudioInputs) -> list[int]:
    """Return the tokens of a text that comes before."""
    if not session.limits.has_tokenizer:
        raise BadRequest("prompt is given; the model is served without a tokenizer", "prompt")
    request = Tokenize(text=text, add_special_tokens=False)
    answer = session.ask(f"{session.replica}tokenizer", request, deaths_max=_DEATHS_MAX)
    if not isinstance(answer, Tokenized):
        raise BadRequest(answer.reason, "prompt")
    return check_previous(answer.token_ids.tolist(), inputs)


def end_transcription(session: Session, found: Transcription) -> TranscriptionOutput:
    """Return what was heard, as text where the model has a tokenizer. Blocks."""
    texts: Sequence[str] = ()
    if session.limits.has_tokenizer and (pieces := found.pieces(found.segments)):
        request = Detokenize(
            counts=int32([len(piece) for piece in pieces]),
            token_ids=int32([token for piece in pieces for token in piece]),
        )
        texts = session.ask(f"{session.replica}tokenizer", request, deaths_max=_DEATHS_MAX).texts
    return found.output(found.told(found.segments, texts))


def heard_of(output: RequestOutput, end: Finished | None) -> Heard:
    """Return the results of a transcription's request, from its last output and its end."""
    written = output.outputs[0]
    count, total = len(written.token_ids), written.cumulative_logprob
    listed = None
    if written.logprobs:
        *_, listed = written.logprobs[0].values()
    return Heard(
        token_ids=written.token_ids,
        avg_logprob=None if total is None or not count else total / count,
        listed_logprob=None if listed is None else listed.logprob,
        rows=None if end is None else end.pooled,
    )


class TranscribingMethods:
    """`LLM`'s methods for models that hear."""

    if TYPE_CHECKING:
        _session: Session

        def _batch(self, prompts: list[Any], own: Asked) -> Batch: ...

    def transcribe(self, audio: Any, **given: Any) -> list[TranscriptionOutput]:
        """Write down what is said in sounds, batched together; in the sounds' order.

        Args:
            audio: one sound, or a list of such: a file's bytes; samples as a float array [samples] or [channels,
                samples], of 16,000 a second; or such an array and its rate.
            given: see `TranscriptionSettings`, such as `language` and `timestamps`; and `RequestSettings`.

        Raises:
            BadRequest: no sound, a model that does not hear, or a setting that is out of range.
        """
        settings, rest = transcription_settings(given)
        own = check_settings(rest, self._session.limits.adapters)
        sounds: Sequence[Any] = audio if isinstance(audio, list) else [audio]
        found = [begin_transcription(self._session, sound, settings) for sound in sounds]
        while going := [one for one in found if not one.done]:
            drawn = Asked(
                params=[one.params() for one in going],
                settings=[own] * len(going),
                lora_requests=[None] * len(going),
            )
            batch = self._batch([one.prompt() for one in going], drawn)
            batch.run(shown=False)
            for one, output, of_one in zip(going, batch.outputs(), batch.completions, strict=True):
                one.advance(heard_of(output, of_one.end))
        return [end_transcription(self._session, one) for one in found]
