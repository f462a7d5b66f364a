"""Transcriptions through whole engines: transformers is the oracle, whatever happens to a request on its way."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import numpy as np
import pytest
import soxr

import pageant
from pageant.actors.client.audio import SEQUENCES, audio_inputs
from pageant.actors.executor.runners.config import RunnerConfig
from pageant.actors.executor.runners.memory import TooLittleMemory
from pageant.actors.executor.runners.runner import TorchRunner
from pageant.actors.executor.simulated import SimulatedExecutor
from pageant.actors.frontend.transcription_settings import compression_ratio
from pageant.actors.runtime.topology import Topology
from pageant.models.audio.alignment import token_rows
from pageant.models.checkpoint import Checkpoint
from pageant.protocol.drafting import DEVICE_METHODS
from pageant.protocol.encoding import GetEncoderStatistics
from pageant.protocol.errors import BadRequest, TopologyError
from pageant.protocol.roles import Feature
from tests.kept_hearing import keep
from tests.speech_models import FIRST_TIME, GERMAN, NO_TIMES, RATE, START, TRANSCRIBE, Hearing, sound, wav

ENGINE = {
    "skip_tokenizer_init": True,
    "placement": "one",
    "progress": False,
    "threads": 1,
    "dtype": "float32",
    "block_size": 8,
}
GREEDY = pageant.SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, detokenize=False)
PROMPT = [START, GERMAN, TRANSCRIBE, NO_TIMES]


def prompt(samples, token_ids=PROMPT):
    return {"prompt_token_ids": token_ids, "multi_modal_data": {"audio": samples}}


def statistics(llm):
    return llm._session.ask("encoder/0", GetEncoderStatistics())


@pytest.fixture(scope="module")
def hearing(tmp_path_factory):
    return Hearing(Path(tmp_path_factory.mktemp("hearing")))


@pytest.fixture(scope="module")
def llm(hearing):
    """An engine of few blocks, so that some requests give way, and of small steps, so that prompts are cut."""
    settings = {"num_blocks": 10, "max_num_batched_tokens": 6, "max_num_seqs": 4}
    with pageant.LLM(hearing.path, **settings, **ENGINE) as llm:
        yield llm


@pytest.mark.parametrize(
    ("given", "theirs"),
    [
        ({"language": "en"}, {"language": "en"}),
        ({}, {}),
        ({"language": "de", "task": "translate"}, {"language": "de", "task": "translate"}),
        ({"language": "en", "timestamps": True}, {"language": "en", "return_timestamps": True}),
    ],
    ids=["english", "language found", "translated", "with times"],
)
def test_tokens_of_a_window_are_transformers(llm, hearing, given, theirs):
    before = llm.scheduler_statistics().counters["preemptions"]
    sounds = [sound(length, seed) for seed, length in enumerate((1.9, 1.99, 1.2, 1.95))]
    if "timestamps" in given:  # transformers goes on into the silence behind a sound
        sounds = [sound(2, seed) for seed in range(4)]
    found = llm.transcribe(sounds, **given)
    assert [one.token_ids for one in found] == [hearing.written(samples, **theirs) for samples in sounds]
    assert all(one.language == given.get("language", one.language) for one in found)
    assert any(token >= FIRST_TIME for one in found for token in one.token_ids) or "timestamps" not in given
    assert llm.scheduler_statistics().counters["preemptions"] > before, "requests are meant to give way"


def test_long_sounds_are_stitched_by_times_as_transformers(llm, hearing):
    sounds = [sound(5, 0), sound(7.3, 1), sound(3.01, 2)]
    found = llm.transcribe(sounds, language="en")
    for samples, one in zip(sounds, found, strict=True):
        assert one.token_ids == hearing.written(samples, language="en", return_timestamps=True)
        assert one.num_windows > 1 and one.duration == pytest.approx(len(samples) / RATE)
        starts = [segment.start for segment in one.segments]
        assert starts == sorted(starts) and all(segment.end >= segment.start for segment in one.segments)


def test_a_window_is_written_again_at_the_next_temperature_as_by_transformers(llm, hearing, monkeypatch):
    """The second temperature is so near to 0 that it writes what is likeliest, too."""
    samples, temperatures, theirs = sound(7.3, 1), (0.0, 1e-6), []
    checks = {
        name: getattr(hearing.model, name)
        for name in ("_need_fallback", "_retrieve_avg_logprobs", "_retrieve_compression_ratio")
    }
    found = {}

    def recorded(name):
        def call(*arguments, **more):
            found[name] = checks[name](*arguments, **more)
            return found[name]

        return call

    def needs_fallback(tokens, outputs, index, processors, config, vocab_size, temperature):
        needs = checks["_need_fallback"](tokens, outputs, index, processors, config, vocab_size, temperature)
        mean, ratio = float(found["_retrieve_avg_logprobs"]), found["_retrieve_compression_ratio"]
        assert compression_ratio(tokens.tolist(), vocab_size) == ratio
        if not needs[0] or temperature == temperatures[-1]:
            theirs.append((temperature, mean))
        return needs

    for name in checks:
        monkeypatch.setattr(
            hearing.model, name, needs_fallback if name == "_need_fallback" else recorded(name)
        )
    asked = {"temperature": temperatures, "compression_ratio_threshold": 50.0}
    seen = set()
    for least in (-20.0, -1.29, -0.1):
        theirs.clear()
        tokens = hearing.written(
            samples, language="en", return_timestamps=True, logprob_threshold=least, **asked
        )
        (one,) = llm.transcribe(samples, language="en", seed=3, logprob_threshold=least, **asked)
        assert one.token_ids == tokens and len(theirs) == one.num_windows
        kept = list(dict.fromkeys((part.temperature, part.avg_logprob) for part in one.segments))
        assert [temperature for temperature, _ in kept] == [temperature for temperature, _ in theirs]
        for (temperature, ours), (_, mean) in zip(kept, theirs, strict=True):
            # Above 0, transformers' is among tokens that a filter of its own has left.
            assert temperature or ours == pytest.approx(mean, abs=1e-4)
        seen |= {temperature for temperature, _ in kept}
    assert seen == {temperatures[0], temperatures[-1]}
    repeats = {**asked, "compression_ratio_threshold": 0.1, "logprob_threshold": None}
    (one,) = llm.transcribe(samples, language="en", seed=3, **repeats)
    assert {part.temperature for part in one.segments} == {temperatures[-1]}


def test_tokens_are_said_when_transformers_finds_them(llm, hearing):
    """Short sounds and long ones, computed in chunks of 6 tokens, together, and with requests that give way."""
    before = llm.scheduler_statistics().counters["preemptions"]
    sounds = [sound(2, 0), sound(2, 1), sound(5, 0), sound(7.3, 1)]
    found = llm.transcribe(sounds, language="en", timestamps=True, word_timestamps=True)
    for samples, one in zip(sounds, found, strict=True):
        given = {"language": "en", "return_timestamps": True}
        assert one.token_ids == hearing.written(samples, **given)
        times = [time for segment in one.segments for time in segment.token_times]
        assert [end for _, end in times] == pytest.approx(hearing.times(samples, **given), abs=1e-5)
        assert all(start <= end for start, end in times) and one.words == []
    assert llm.scheduler_statistics().counters["preemptions"] > before, "requests are meant to give way"
    (bare,) = llm.transcribe(sounds[0], language="en", word_timestamps=True, max_tokens=1)
    assert [one.token_times for one in bare.segments] == [[(0.0, 0.0)]]
    (without,) = llm.transcribe(sounds[0], language="en", timestamps=True)
    assert without.token_ids == found[0].token_ids
    assert all(segment.token_times == [] for segment in without.segments)


def test_windows_of_silence_are_passed_over_as_by_transformers(llm, hearing):
    samples, given = sound(5, 0), {"language": "en", "logprob_threshold": -0.01}
    (all_of_it,) = llm.transcribe(samples, no_speech_threshold=1.0, **given)
    probabilities = sorted({segment.no_speech_prob for segment in all_of_it.segments})
    assert all_of_it.token_ids == hearing.written(samples, return_timestamps=True, language="en")
    assert 0 < probabilities[0] < probabilities[-1] < 1
    lengths = set()
    for threshold in (0.0, probabilities[-1] * 0.999, probabilities[-1] * 1.001):
        asked = {"no_speech_threshold": threshold, "temperature": 0.0, **given}
        (one,) = llm.transcribe(samples, **asked)
        theirs = hearing.written(samples, return_timestamps=True, **asked)
        assert one.token_ids == theirs
        lengths.add(len(theirs))
    assert 0 in lengths and len(lengths) == 3, "some windows are passed over, and others not"
    likely = {**given, "logprob_threshold": -1000.0}
    (one,) = llm.transcribe(samples, no_speech_threshold=0.0, **likely)
    assert one.token_ids == all_of_it.token_ids, "what is likely is written, however silent it is"
    (one,) = llm.transcribe(samples, language="en", no_speech_threshold=0.0, logprob_threshold=None)
    assert (one.segments, one.text, one.num_windows) == ([], "", 3), "silence alone decides then"
    (short,) = llm.transcribe(sound(2, 0), no_speech_threshold=0.0, **given)
    assert short.segments == [] and short.num_windows == 1


def test_times_are_found_again_after_the_executor_dies_of_them(llm, hearing, monkeypatch):
    samples, asked = sound(2, 0), {"language": "en", "timestamps": True, "word_timestamps": True}
    (expected,) = llm.transcribe(samples, **asked)
    deaths = []

    def dies_once(weights, filter_width):
        if not deaths:
            deaths.append(len(weights))
            raise RuntimeError("of the first times")
        return token_rows(weights, filter_width)

    monkeypatch.setattr("pageant.actors.executor.runners.aligning.token_rows", dies_once)
    (one,) = llm.transcribe(samples, **asked)
    assert one == expected and deaths == [3]


def test_a_model_of_one_language_is_told_none(tmp_path):
    hearing = Hearing(tmp_path, languages=False)
    with pageant.LLM(
        hearing.path, num_blocks=60, speculation={"method": "ngram", "tokens": 3}, **ENGINE
    ) as llm:
        samples = sound(1.5, 4)
        (one,) = llm.transcribe(samples)
        assert one.token_ids == hearing.written(samples) and one.language is None
        (long,) = llm.transcribe(sound(4, 4))
        assert long.token_ids == hearing.written(sound(4, 4), return_timestamps=True)
        with pytest.raises(BadRequest, match="language is 'en'; expected one of none"):
            llm.transcribe(samples, language="en")
        with pytest.raises(BadRequest, match="this model transcribes alone"):
            llm.transcribe(samples, task="translate")


def test_equal_sounds_are_encoded_once_and_shared_and_others_never_are(hearing):
    first = sound(1.5, 1)
    second = first.copy()
    second[9000] += 0.25
    long = [*range(10, 30)]
    with pageant.LLM(hearing.path, num_blocks=100, **ENGINE) as llm:

        def cached(samples):
            (output,) = llm.generate(prompt(samples, long), GREEDY)
            return output.num_cached_tokens, output.outputs[0].token_ids

        assert cached(first)[0] == 0
        drawn = cached(second)
        assert drawn[0] == 0, "nothing is shared by two sounds"
        assert cached(second) == (19, drawn[1]) and cached(first)[0] == 19
        found = statistics(llm)
        assert (found.encoded, found.cached, found.decoded) == (2, 2, 2)
        several = pageant.SamplingParams(n=3, temperature=0.9, seed=5, max_tokens=6, detokenize=False)
        (one,) = llm.generate(prompt(first), several)
        (again,) = llm.generate(prompt(first), several)
        tokens = [sample.token_ids for sample in one.outputs]
        assert tokens == [sample.token_ids for sample in again.outputs] and len({*map(tuple, tokens)}) > 1


def test_sounds_of_other_forms_are_heard_alike(llm, hearing):
    samples = sound(1.5, 2)
    (plain,) = llm.transcribe(samples, language="en")
    same = [
        wav(samples),
        wav(samples, kind="FLAC", subtype="PCM_24"),
        wav(samples, subtype="PCM_16"),
        wav(samples, subtype="PCM_32"),
        wav(np.stack([samples, samples], axis=1)),
        np.stack([samples, samples]),
        (samples, RATE),
    ]
    assert [one.token_ids for one in llm.transcribe(same, language="en")] == [plain.token_ids] * len(same)
    high = sound(1.5 * 3, 5)  # 48,000 samples a second
    (one,) = llm.transcribe([(high, 48_000)], language="en")
    assert one.token_ids == hearing.written(soxr.resample(high, 48_000, RATE, quality="HQ"), language="en")
    rough = [wav(samples, subtype="PCM_U8"), wav(samples[::2], 8000)]
    assert all(one.duration == pytest.approx(1.5) for one in llm.transcribe(rough, language="en"))


def test_an_executor_that_is_swapped_hears_on_and_messages_between_processes_carry_sounds(hearing):
    settings = {**ENGINE, "num_blocks": 60, "max_num_seqs": 2, "wire": "always"}
    samples = sound(4, 3)
    with pageant.LLM(hearing.path, **settings) as llm:
        expected = hearing.written(samples, language="en", return_timestamps=True)
        times = hearing.times(samples, language="en", return_timestamps=True)
        for _ in range(2):
            (one,) = llm.transcribe(samples, language="en", word_timestamps=True)
            assert one.token_ids == expected
            ends = [end for segment in one.segments for _, end in segment.token_times]
            assert ends == pytest.approx(times, abs=1e-5)
            llm.swap("executor/0")


def test_memory_of_encoders_is_counted_and_bounded(hearing, llm, monkeypatch):
    decoder = Checkpoint(hearing.path).decoder_spec()
    rows = -(-decoder.encoder_rows // 16) * 16
    of_one = rows * 2 * decoder.num_layers * decoder.attention.kv_size * 4
    of_blocks = 10 * 8 * 2 * decoder.num_layers * decoder.attention.kv_size * 4
    (device,) = llm._session.devices().values()
    assert device.memory_bytes["kv_cache"] == of_blocks + 4 * of_one
    monkeypatch.setattr("pageant.actors.executor.runners.runner.available_bytes", lambda: 5 * of_one)
    config = RunnerConfig(
        **{"model": hearing.path, "dtype": "float32", "device": "cpu", "backend": "reference", "threads": 1},
        **{"block_size": 8, "max_model_len": 48, "max_num_seqs": 4, "budget_bytes": None, "num_blocks": 10},
    )
    with pytest.raises(TooLittleMemory, match=r"max_num_seqs is 4: .* expected at most 2"):
        TorchRunner(config)


async def test_nothing_is_lost_when_the_encoder_dies(hearing):
    """The encoder has a process of its own, so that sounds and rows cross between processes."""
    sounds = [sound(1.8, 6), sound(4.5, 7)]
    keep(hearing.path, sounds)
    theirs = [{}, {"return_timestamps": True}]
    expected = [hearing.written(one, language="en", **more) for one, more in zip(sounds, theirs, strict=True)]
    settings = {key: value for key, value in ENGINE.items() if key not in ("progress", "placement")}
    own = {"nodes": {"front": {}, "ears": {"process": True}}}
    own["actors"] = {"encoder": {"node": "ears", "class": "tests.kept_hearing:KeptHearing"}}
    async with pageant.Engine(hearing.path, num_blocks=60, max_num_seqs=2, **own, **settings) as engine:
        pids = {node.node: node.pid for node in await engine.statistics()}
        os.kill(pids["ears"], signal.SIGSTOP)  # so that it has sounds in hand when it dies
        asked = [asyncio.create_task(engine.transcribe(one, language="en")) for one in sounds]
        await engine.pool_statistics()  # asked by a thread behind theirs
        os.kill(pids["ears"], signal.SIGKILL)
        assert [one.token_ids for one in await asyncio.gather(*asked)] == expected
        assert {node.node: node.pid for node in await engine.statistics()}["ears"] != pids["ears"]


BAD = {
    "nothing": (b"", "has no bytes"),
    "no sound": (b"RIFF and no more", "no sound that is known here"),
    "an image": (b"\x89PNG\r\n\x1a\n" + bytes(64), "no sound that is known here"),
    "0 s": (wav(np.zeros(0, np.float32)), "0 samples"),
    "NaN": (wav(np.array([0.1, np.nan], np.float32)), "no numbers"),
    "an empty array": (np.zeros(0, np.float32), "0 samples"),
    "NaN in an array": (np.array([0.1, np.nan], np.float32), "no numbers"),
    "whole numbers": (np.zeros(100, np.int16), "expected a file's bytes"),
    "a path": ("speech.wav", "expected a file's bytes"),
    "too many channels": (np.zeros((200, 100), np.float32), "200 channels"),
    "another rate": ((np.zeros(100, np.float32), -1), "rate -1"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_sound_is_refused(llm, name):
    given, message = BAD[name]
    with pytest.raises(BadRequest, match=message):
        llm.transcribe(given, language="en")


def test_other_bad_input_is_refused_and_disturbs_nobody(llm, hearing, checkpoint):
    samples = sound(1.2)
    for given, message in (
        ({"language": "xx"}, "language is 'xx'; expected one of de, en"),
        ({"temperature": 3}, "temperature"),
        ({"temperature": (0, 3)}, "temperature is 3; expected a number from 0 to 2"),
        ({"temperature": ()}, "temperature has 0 numbers; expected 1 to 16"),
        ({"logprob_threshold": 0.5}, "logprob_threshold is 0.5; expected a number from"),
        ({"no_speech_threshold": 1.5}, "no_speech_threshold is 1.5; expected a number from 0 to 1"),
        ({"word_timestamps": 1}, "word_timestamps is 1; expected true or false"),
        ({"task": "sing"}, "expected transcribe or translate"),
        ({"prompt": "Pageant"}, "without a tokenizer"),
        ({"deadlin": 3}, "deadlin is no setting"),
    ):
        with pytest.raises(BadRequest, match=message):
            llm.transcribe(samples, **given)
    with pytest.raises(BadRequest, match="has no sound; this model writes down what it hears"):
        llm.generate([START, 5], GREEDY)
    with pytest.raises(BadRequest, match="beams are of tokens"):
        llm.beam_search([prompt(samples)], pageant.BeamSearchParams(beam_width=2, max_tokens=3))
    cut = pageant.SamplingParams(max_tokens=4, truncate_prompt_tokens=3, detokenize=False)
    with pytest.raises(BadRequest, match="expected none with a sound"):
        llm.generate(prompt(samples), cut)
    with pytest.raises(BadRequest, match="this model takes texts alone"):
        llm.generate({"prompt_token_ids": [5], "multi_modal_data": {"image": np.zeros((4, 4, 3), np.uint8)}})
    with pageant.LLM(checkpoint.path, num_blocks=32, placement="one", progress=False, threads=1) as texts:
        with pytest.raises(BadRequest, match="this model takes texts; expected one that hears"):
            texts.transcribe(samples)
        with pytest.raises(BadRequest, match="the prompt has a sound; this model takes texts"):
            texts.generate(prompt(samples))
    (one,) = llm.transcribe(samples, language="en")
    assert one.token_ids == hearing.written(samples, language="en")


def test_what_is_not_there_yet_is_refused_by_name(hearing):
    checkpoint = Checkpoint(hearing.path)

    def refused(**settings):
        return audio_inputs(Topology(model=str(hearing.path), settings=settings), checkpoint)

    for name in ("tensor_parallel", "pipeline_parallel", "tensor_segments"):
        with pytest.raises(TopologyError, match=rf"{name}.*expected 1 for a model that hears"):
            refused(**{name: 2})
    for name, value in (("adapters", {"a": "b"}), ("enable_prompt_embeds", True), ("store_memory", "1GiB")):
        with pytest.raises(TopologyError, match=rf"{name}.*expected none for a model that hears"):
            refused(**{name: value})
    for method in DEVICE_METHODS:
        with pytest.raises(TopologyError, match=rf"'{method}'; expected ngram for a model that hears"):
            refused(speculation={"method": method, "model": "x"})
    assert Feature.AUDIO not in SimulatedExecutor.features
    assert audio_inputs(Topology(model=str(hearing.path)), checkpoint) is not None and SEQUENCES < 256
