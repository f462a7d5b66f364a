"""Transcriptions over HTTP, by the official client: what the library hears is what is right."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import tokenizers

import pageant
from pageant.actors.client.cast import HTTP
from pageant.actors.client.session import Session
from pageant.actors.client.settings import topology_of
from tests.speech_models import END, FIRST_TIME, WINDOW_SECONDS, Hearing, sound, wav

SMALL = {"placement": "one", "threads": 1, "dtype": "float32", "num_blocks": 40, "max_num_seqs": 4}
SHORT, LONG = wav(sound(1.5, 2)), wav(sound(5, 1))


def save_tokenizer(folder: Path) -> None:
    """Write a tokenizer of words, `w5` for the token 5, whose marks are special."""
    words = {f"w{index}": index for index in range(END)}
    marks = {f"<|{index}|>": index for index in range(END, FIRST_TIME + WINDOW_SECONDS * 50 + 1)}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(words | marks, unk_token="w0"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    made.add_special_tokens(list(marks))
    made.save(str(folder / "tokenizer.json"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    hearing = Hearing(Path(tmp_path_factory.mktemp("hearing")))
    save_tokenizer(hearing.path)
    return hearing.path


@pytest.fixture(scope="module")
def url(folder: Path) -> Iterator[str]:
    settings = SMALL | {"served_model_name": "m", "actors": {HTTP: {"options": {"port": 0}}}}
    session = Session(topology_of(folder, None, settings))
    session.start()
    yield session.served_at().split()[-1]
    session.stop()


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def heard(folder: Path) -> dict[str, Any]:
    with pageant.LLM(folder, progress=False, **SMALL) as llm:
        found = {
            "short": llm.transcribe(SHORT, language="en"),
            "with times": llm.transcribe(SHORT, language="en", timestamps=True, word_timestamps=True),
            "after a prompt": llm.transcribe(SHORT, language="en", prompt="w7 w8"),
            "long": llm.transcribe(LONG),
            "translated": llm.transcribe(SHORT, task="translate"),
        }
    return {name: one for name, (one,) in found.items()}


def test_the_openai_client_gets_what_the_library_hears(
    client: openai.OpenAI, url: str, heard: dict[str, Any]
) -> None:
    file = ("a.wav", SHORT)
    plain = client.audio.transcriptions.create(file=file, model="m", language="en")
    assert plain.text == heard["short"].text != "" and plain.usage.seconds == 2
    prompted = client.audio.transcriptions.create(file=file, model="m", language="en", prompt="w7 w8")
    assert prompted.text == heard["after a prompt"].text != plain.text
    # The client's method for it is deprecated in some versions.
    translated = httpx.post(f"{url}/v1/audio/translations", files={"file": file}, data={"model": "m"})
    assert translated.json()["text"] == heard["translated"].text
    text = client.audio.transcriptions.create(
        file=file, model="m", language="en", response_format="text", temperature=0
    )
    assert text.strip() == plain.text


def test_segments_have_times(client: openai.OpenAI, heard: dict[str, Any]) -> None:
    for name, file, given in (("with times", SHORT, {"language": "en"}), ("long", LONG, {})):
        found = client.audio.transcriptions.create(
            file=("a.wav", file),
            model="m",
            response_format="verbose_json",
            timestamp_granularities=["segment"],
            **given,
        )
        ours = heard[name]
        assert (found.text, found.language) == (ours.text, ours.language)
        assert float(found.duration) == pytest.approx(ours.duration)
        assert [one.tokens for one in found.segments] == [one.token_ids for one in ours.segments]
        for one, other in zip(found.segments, ours.segments, strict=True):
            assert (one.start, one.end) == (round(other.start, 2), round(other.end, 2))
            assert one.avg_logprob == pytest.approx(other.avg_logprob, abs=1e-5)


def test_words_have_times(client: openai.OpenAI, heard: dict[str, Any]) -> None:
    def asked(*granularities: str) -> Any:
        return client.audio.transcriptions.create(
            file=("a.wav", SHORT),
            model="m",
            language="en",
            response_format="verbose_json",
            timestamp_granularities=[*granularities],
            extra_body={"no_speech_threshold": 1.0},
        )

    both, words, ours = asked("word", "segment"), asked("word"), heard["with times"]
    assert words.segments is None and words.words == both.words != []
    assert [(one.word, one.start, one.end) for one in both.words] == [
        (one.word, one.start, one.end) for one in ours.words
    ]
    assert " ".join(one.word for one in both.words) == both.text == ours.text
    assert [one.tokens for one in both.segments] == [one.token_ids for one in ours.segments]
    assert all(0 < one.no_speech_prob < 1 for one in both.segments)


def test_unlikely_texts_are_written_again_at_the_last_of_several_temperatures(client: openai.OpenAI) -> None:
    for least, expected in ((-1000.0, 0.0), (-0.01, 1e-6)):
        found = client.audio.transcriptions.create(
            file=("a.wav", LONG),
            model="m",
            response_format="verbose_json",
            extra_body={
                "seed": 1,
                "temperature": [0, 1e-6],
                "logprob_threshold": least,
                "compression_ratio_threshold": 50,
            },
        )
        assert {one.temperature for one in found.segments} == {expected}


def test_subtitles_are_those_of_the_segments(client: openai.OpenAI, heard: dict[str, Any]) -> None:
    srt, vtt = (
        client.audio.transcriptions.create(file=("a.wav", LONG), model="m", response_format=form)
        for form in ("srt", "vtt")
    )
    segments = heard["long"].segments
    assert vtt.startswith("WEBVTT\n\n00:00:0") and srt.startswith("1\n00:00:0")
    for subtitles in (srt, vtt):
        assert subtitles.count(" --> ") == len(segments)
        assert all(one.text.strip() in subtitles for one in segments)
    assert srt.count(",") == 2 * len(segments) and f"\n{len(segments)}\n" in srt


def test_a_stream_has_the_text_window_by_window(client: openai.OpenAI, heard: dict[str, Any]) -> None:
    with client.audio.transcriptions.create(file=("a.wav", LONG), model="m", stream=True) as stream:
        events = list(stream)
    assert [event.type for event in events[-2:]] == ["transcript.text.delta", "transcript.text.done"]
    assert len(events) > 2 and events[-1].text == heard["long"].text
    assert "".join(event.delta for event in events[:-1]).strip() == heard["long"].text


def test_bad_input_is_refused_in_words(url: str) -> None:
    def refused(data: dict[str, str], file: bytes | None = SHORT) -> str:
        files = {"file": ("a.wav", file)} if file is not None else {"other": ("a", b"x")}
        answer = httpx.post(f"{url}/v1/audio/transcriptions", data={"model": "m", **data}, files=files)
        assert answer.status_code == 400, answer.text
        return str(answer.json()["error"]["message"])

    assert "language is 'xx'; expected one of" in refused({"language": "xx"})
    assert "temperature" in refused({"temperature": "7"})
    assert "temperature" in refused({"temperature": "hot"})
    assert "temperature is 9.0; expected a number from 0 to 2" in refused({"temperature[]": "9"})
    assert "logprob_threshold" in refused({"logprob_threshold": "likely"})
    assert "response_format" in refused({"response_format": "docx"})
    assert "expected json or text for a stream" in refused({"response_format": "srt", "stream": "true"})
    assert "expected verbose_json for times of words" in refused({"timestamp_granularities[]": "word"})
    assert "'letter'" in refused({"timestamp_granularities[]": "letter"})
    assert "no_speech_threshold is 2.0" in refused({"no_speech_threshold": "2"})
    assert "spells a mark" in refused({"prompt": f"<|{END}|>"})
    assert "other is a file" in refused({}, None)
    assert "no sound that is known here" in refused({}, b"<html>")
    assert "has no bytes" in refused({}, b"")
    assert "0 samples" in refused({}, wav(sound(0)))
    for answer in (
        httpx.post(f"{url}/v1/audio/transcriptions", json={"model": "m"}),
        httpx.post(f"{url}/v1/chat/completions", json={"messages": [{"role": "user", "content": "w1"}]}),
        httpx.post(f"{url}/v1/completions", json={"prompt": "w1", "max_tokens": 1}),
    ):
        assert answer.status_code == 400
    assert "this model writes down what it hears" in answer.json()["error"]["message"]
    form = {"files": {"file": ("a.wav", SHORT)}, "data": {"model": "m"}}
    foreign = httpx.post(
        f"{url}/v1/audio/transcriptions", headers={"origin": "https://other.example"}, **form
    )
    assert foreign.status_code == 415
    missing = httpx.post(f"{url}/v1/audio/transcriptions", files=form["files"], data={"model": "gone"})
    assert missing.status_code == 404
