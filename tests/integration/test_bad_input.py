"""Bad input gets one clear error that names the place and the remedy, and everything else goes on."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import msgspec
import pytest

import pageant
from pageant import BadRequest, SamplingParams, TopologyError
from pageant.models.errors import CheckpointError
from pageant.models.tokenization import Tokenization

SHORT = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)


@pytest.mark.parametrize(
    "prompt,message",
    [
        ("", "the prompt is empty"),
        ([], "the prompt has no tokens"),
        ([1, 2, -3], r"prompt\[2\] is -3; expected a token id from 0 to"),
        ([1, 10**9], r"prompt\[1\] is 1000000000"),
        ([1, True], r"prompt\[1\] is True"),
        ([1.5, 2.5], r"prompt\[0\] is 1.5"),
        ([4] * 256, "the prompt has 256 tokens; max_model_len is 256, so at most 255"),
        (b"bytes", "the prompt is a bytes; expected a str or a list of token ids"),
        ({"a": 1}, r"the prompt is a mapping of \['a'\]; expected one of prompt, prompt_token_ids"),
        ({"prompt": "a", "prompt_embeds": [1.0]}, "not served with enable_prompt_embeds"),
        (
            {"prompt": "a", "multi_modal_data": {"image": 1}},
            r"multi_modal_data.image\[0\] is a int; expected an image",
        ),
        ({"prompt": "a", "multi_modal_data": {"image": b"GIF"}}, "this model takes texts alone"),
        ({"prompt": [1]}, "prompt is a list; expected a text"),
        ({"prompt_token_ids": "a"}, "prompt_token_ids is a str; expected a list of token ids"),
        (None, "the prompt is a NoneType"),
        ("\ud800", "a lone surrogate"),
    ],
)
def test_a_bad_prompt_is_refused_by_its_index_and_the_next_is_served(llm, prompt, message):
    with pytest.raises(BadRequest, match=rf"prompts\[1\]: .*{message}"):
        llm.generate(["fine", prompt], SHORT)
    assert llm.generate("fine", SHORT)[0].finished


def test_a_text_that_becomes_too_many_tokens_is_refused(llm):
    with pytest.raises(BadRequest, match=r"prompts\[1\]: .* has 300 tokens; max_model_len is 256"):
        llm.generate(["fine", "x" * 300, "also fine"], SHORT)
    assert llm.generate("fine", SHORT)[0].finished


@pytest.fixture
def with_an_unknown_token(tmp_path):
    """The demo model with a tokenizer that has a token more than its embeddings."""
    path = tmp_path / "model"
    shutil.copytree(Path(pageant.__file__).parent / "models" / "demo", path)
    tokenizer = json.loads((path / "tokenizer.json").read_text())
    vocab_size = json.loads((path / "config.json").read_text())["vocab_size"]
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    tokenizer["added_tokens"].append({"id": vocab_size, "content": "<extra>", "special": True} | flags)
    (path / "tokenizer.json").write_text(json.dumps(tokenizer))
    return path


def test_tokens_without_embeddings_are_refused(with_an_unknown_token):
    with pageant.LLM(with_an_unknown_token, num_blocks=32, max_model_len=64) as llm:
        with pytest.raises(
            BadRequest, match="the token 4096 of the tokenizer; the model knows those from 0 to 4095"
        ):
            llm.generate("A <extra> list", SHORT)
        with pytest.raises(BadRequest, match="bad_words has the token 4096"):
            llm.generate("A list", msgspec.structs.replace(SHORT, bad_words=("<extra>",)))
        assert llm.generate("A list", SHORT)[0].finished


def test_a_text_that_no_tokens_could_hold_is_refused_unread(llm, monkeypatch):
    encode = Tokenization.encode
    monkeypatch.setattr(Tokenization, "encode", lambda self, text, *more: encode(self, text[:9999], *more))
    with pytest.raises(
        BadRequest, match="has 200000 characters; 255 tokens, the most that are taken, have at most"
    ):
        llm.generate("word " * 40_000, SHORT)
    with pytest.raises(BadRequest, match=r"has \d+ characters; 255 tokens"):
        llm.chat([{"role": "user", "content": "word " * 40_000}], SHORT)
    cut = msgspec.structs.replace(SHORT, truncate_prompt_tokens=5)
    assert len(llm.generate("word " * 40_000, cut)[0].prompt_token_ids) == 5


@pytest.mark.parametrize("conversations", [5, None, "hi", {"role": "user", "content": "x"}, iter([])])
def test_conversations_of_another_type_are_refused(llm, conversations):
    with pytest.raises(BadRequest, match="messages is a"):
        llm.chat(conversations)


@pytest.mark.parametrize(
    "messages,message",
    [
        ("hi", "messages is a str"),
        ([], "messages is empty"),
        ([{"role": "user"}], r"messages\[0\].content is None"),
        (
            [{"role": "user", "content": "a"}, {"role": 3, "content": "b"}],
            r"messages\[1\].role: Expected `str`, got `int`",
        ),
        (
            [{"role": "user", "content": [{"type": "image_url"}]}],
            r"messages\[0\].content\[0\] has no image_url",
        ),
        ([17], r"messages\[0\] is a int"),
    ],
)
async def test_a_bad_conversation_is_refused_by_index(checkpoint, messages, message):
    engine = pageant.Engine(checkpoint.path)
    with pytest.raises(BadRequest, match=message):
        engine.chat(messages)


@pytest.mark.parametrize(
    "name,value,expected",
    [
        ("temperature", math.nan, "a number from 0 to 100"),
        ("temperature", math.inf, "a number from 0 to 100"),
        ("temperature", -0.1, "a number from 0 to 100"),
        ("temperature", "hot", "a number from 0 to 100"),
        ("top_p", 0.0, "a number above 0 up to 1"),
        ("top_p", 1.1, "a number above 0 up to 1"),
        ("min_p", -1, "a number from 0 to 1"),
        ("top_k", -2, "a whole number from -1"),
        ("top_k", 1.5, "a whole number"),
        ("max_tokens", 0, "a whole number from 1"),
        ("max_tokens", True, "a whole number from 1"),
        ("min_tokens", -1, "a whole number from 0"),
        ("min_tokens", 17, "more than max_tokens"),
        ("seed", -(2**63) - 1, "a whole number from -9223372036854775808 to 9223372036854775807"),
        ("seed", 2**63, "a whole number from -9223372036854775808 to 9223372036854775807"),
        ("stop", [1], "a string or a list of strings"),
        ("stop", "", "1 to 1024"),
        ("stop", ["x"] * 65, "at most 64"),
        ("stop_token_ids", [-1], "a whole number from 0"),
        ("ignore_eos", "yes", "true or false"),
        ("presence_penalty", math.nan, "a number from -2 to 2"),
        ("frequency_penalty", 2.5, "a number from -2 to 2"),
        ("repetition_penalty", 0, "a number above 0 up to 100"),
        ("logit_bias", {1: 101}, "a number from -100 to 100"),
        ("logit_bias", dict.fromkeys(range(1025), 1), "at most 1024"),
        ("allowed_token_ids", [], "at least one"),
        ("allowed_token_ids", [0] * 65_537, "at most 65536"),
    ],
)
def test_a_parameter_out_of_range_names_itself_and_what_is_expected(name, value, expected):
    with pytest.raises(BadRequest, match=expected) as caught:
        SamplingParams(**{name: value})
    assert name in str(caught.value)


def test_parameters_that_do_not_fit_the_prompts_are_refused(llm):
    with pytest.raises(BadRequest, match="params has 1 entries for 2 prompts"):
        llm.generate(["a", "b"], [SHORT])
    with pytest.raises(BadRequest, match="params is a dict; expected SamplingParams"):
        llm.generate("a", {"temperature": 0})
    with pytest.raises(BadRequest, match=r"stop_token_ids\[0\] is 100000"):
        llm.generate("a", SamplingParams(stop_token_ids=[100000]))
    with pytest.raises(BadRequest, match=r"allowed_token_ids\[1\] is 100000; expected a token id from 0 to"):
        llm.generate("a", SamplingParams(allowed_token_ids=[5, 100000]))
    with pytest.raises(BadRequest, match="logit_bias: a token id is 100000; expected a token id from 0 to"):
        llm.generate("a", SamplingParams(logit_bias={5: 1, 100000: 1}))
    allowed = llm.generate("a", msgspec.structs.replace(SHORT, max_tokens=1))[0].prompt_token_ids
    assert len(allowed) == 1
    with pytest.raises(
        BadRequest, match="bad_words has every one of allowed_token_ids; expected one that is"
    ):
        llm.generate("a", SamplingParams(allowed_token_ids=allowed, bad_words=["a"]))
    assert llm.generate("a", SHORT)[0].finished


async def test_a_request_id_in_use_is_refused_and_its_owner_goes_on(checkpoint):
    async with pageant.Engine(checkpoint.path, placement="one", threads=1, num_blocks=64) as engine:
        first = engine.generate(
            "a", SamplingParams(temperature=0, max_tokens=50, ignore_eos=True), request_id="x"
        )
        await anext(first)
        with pytest.raises(BadRequest, match="request_id 'x' is in use"):
            await engine.complete("b", SHORT, request_id="x")
        assert [output async for output in first][-1].finished


def _broken(checkpoint, tmp_path, break_it):
    path = tmp_path / "broken"
    shutil.copytree(checkpoint.path, path)
    break_it(path)
    return path


def _edit_config(path, **changes):
    config = json.loads((path / "config.json").read_text()) | changes
    (path / "config.json").write_text(json.dumps(config))


def _truncate(path):
    data = (path / "model.safetensors").read_bytes()
    (path / "model.safetensors").write_bytes(data[: len(data) // 2])


@pytest.mark.parametrize(
    "break_it,message",
    [
        (lambda path: shutil.rmtree(path), "no such folder"),
        (lambda path: (path / "config.json").unlink(), "no config.json"),
        (lambda path: (path / "model.safetensors").unlink(), "safetensors"),
        (_truncate, "model.safetensors"),
        (lambda path: _edit_config(path, architectures=["NobodyForCausalLM"]), "NobodyForCausalLM"),
        (lambda path: _edit_config(path, auto_map={"AutoModelForCausalLM": "code.Model"}), "auto_map"),
        (lambda path: _edit_config(path, quantization_config={"quant_method": "quip"}), "'quip'"),
    ],
)
def test_a_bad_checkpoint_is_refused_before_anything_starts(checkpoint, tmp_path, break_it, message):
    path = _broken(checkpoint, tmp_path, break_it)
    with pytest.raises(CheckpointError, match=message) as caught:
        pageant.Engine(path)
    assert str(path) in str(caught.value)


def test_a_checkpoint_without_a_tokenizer_gives_its_own_error_and_not_a_hang(checkpoint, tmp_path):
    def remove(path):
        for name in ("tokenizer.json", "tokenizer_config.json"):
            (path / name).unlink()

    path = _broken(checkpoint, tmp_path, remove)
    with pytest.raises(pageant.StartupError, match="TokenizerError"):
        pageant.LLM(path, placement="one", progress=False, threads=1, num_blocks=64)


@pytest.mark.parametrize(
    "settings,message",
    [
        ({"max_num_seq": 3}, "max_num_seq: no such argument; did you mean 'max_num_seqs'"),
        ({"max_num_seqs": 0}, "max_num_seqs: found 0; expected at least 1"),
        ({"max_num_seqs": "many"}, "max_num_seqs: found 'many'; expected a whole number, such as"),
        ({"max_model_len": 10**9}, "max_model_len: found 1000000000; expected 1 to 256"),
        (
            {"placement": "everywhere"},
            "placement: Invalid enum value 'everywhere'; expected one of: auto, each, one",
        ),
        ({"dtype": "float8"}, "dtype: Invalid enum value 'float8'; did you mean 'float"),
        ({"actors": {"schedular": {}}}, "actors.schedular: .*did you mean 'scheduler'"),
        ({"actors": {"scheduler": {"node": "gpu"}}}, "actors.scheduler.node: no node 'gpu'"),
        (
            {"actors": {"scheduler": {"class": "nowhere:X"}}},
            "actors.scheduler.class: there is no module 'nowhere'",
        ),
        (
            {"actors": {"scheduler": {"class": "pageant.actors.tokenizer:Tokenizer"}}},
            "actors.scheduler.class: Tokenizer does not take the role of scheduler",
        ),
        (
            {"actors": {"scheduler": {"options": {"polcy": "fcfs"}}}},
            "polcy: no such option; did you mean 'policy'",
        ),
        ({"replicas": 0}, "replicas: found 0; expected 1 to 64"),
        ({"replicas": "two"}, "replicas: Expected `int`, got `str`"),
        ({"replicas": 2, "start_asleep": True}, "start_asleep: .*a model with replicas does not sleep"),
        ({"num_blocks": 2, "max_model_len": 64}, "num_blocks: found 2"),
        ({"policy": "fcsf"}, "policy: no policy 'fcsf'"),
        ({"policy": "nowhere:X"}, "policy: there is no module 'nowhere'"),
        ({"kernels": "cpuu"}, "kernels: found 'cpuu'; did you mean 'cpu'"),
        ({"device": "tpu"}, "device: found 'tpu'; expected cpu, cpu:0-3, cuda or cuda:N"),
        ({"kv_cache_dtype": "int4"}, "kv_cache_dtype: found 'int4'; expected 'auto' or 'int8' or 'fp8'"),
        ({"actors": {"executor": {"options": {"kv_cache_dtype": "int4"}}}}, "kv_cache_dtype: .*'int4'"),
        ({"kv_cache_memory": -5}, "kv_cache_memory: found -5; expected at least a byte"),
        ({"host_memory": -1}, "host_memory: found -1; expected a size such as 8GiB"),
        ({"host_memory": "lots"}, "host_memory: found 'lots'; expected a number of bytes"),
        ({"host_memory": "9999999999GiB"}, "host_memory: found '9999999999GiB'; expected .* 0 to 1 PiB"),
        ({"host_memory": 1.5}, "host_memory: Expected `int | str`, got `float`"),
        ({"host_memory": "1GiB", "enable_prefix_caching": False}, "it needs enable_prefix_caching"),
        ({"disk_space": "1GiB", "disk_path": "x"}, "no room for in host_memory, which is 0"),
        ({"disk_space": "1GiB", "host_memory": "1MiB"}, "disk_space: there is no disk_path"),
        ({"disk_space": -2, "disk_path": "x"}, "disk_space: found -2; expected a size"),
        ({"disk_path": 5}, "disk_path: Expected `str | null`, got `int`; found 5"),
        ({"max_num_seqs": 10**9}, "max_num_seqs: found 1000000000; expected at most 65536"),
        ({"seed": -4}, "seed: found -4; expected 0 to"),
        ({"served_model_name": 5}, "served_model_name: found 5; expected a name"),
        ({"actors": {"scheduler": {"count": 2}}}, "actors.scheduler: found 2 of it; expected exactly one"),
        ({"actors": {"executor": {"count": 2}}}, "actors.executor: found 2 of it; expected exactly one"),
    ],
)
def test_a_bad_topology_names_the_place_and_the_nearest_name(checkpoint, settings, message):
    with pytest.raises(TopologyError, match=message):
        pageant.Engine(checkpoint.path, **settings)


def test_without_a_model_the_topology_says_what_is_missing():
    with pytest.raises(TopologyError, match="model: no model is named"):
        pageant.Engine()


def test_a_length_that_is_asked_for_and_does_not_fit_says_what_would_help(checkpoint):
    settings = {"kv_cache_memory": "16KiB", "max_model_len": 256}
    message = (
        r"^executor/0 failed while starting: TooLittleMemory: .*lower max_model_len to .* or raise kv_cache"
    )
    with pytest.raises(pageant.StartupError, match=message) as caught:
        pageant.LLM(checkpoint.path, placement="one", progress=False, threads=1, **settings)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "path,message", [("nowhere", "which is no folder"), ("/proc", "no file can be made")]
)
def test_a_disk_path_that_cannot_be_used_is_named_before_anything_is_loaded(checkpoint, path, message):
    settings = {"host_memory": "1MiB", "disk_space": "1MiB", "disk_path": path}
    with pytest.raises(pageant.StartupError, match=rf"disk_path is '{path}', .*{message}"):
        pageant.LLM(checkpoint.path, placement="one", progress=False, threads=1, **settings)


def test_a_checkpoint_that_cannot_be_read_is_tried_once_and_told_in_one_line(checkpoint, tmp_path):
    def remove(path):
        (path / "tokenizer.json").write_text("{")

    path = _broken(checkpoint, tmp_path, remove)
    with pytest.raises(pageant.StartupError) as caught:
        pageant.LLM(path, placement="one", progress=False, threads=1)
    text = str(caught.value)
    assert "tokenizer failed while starting: TokenizerError: " in text and "\n" not in text
    assert not hasattr(caught.value, "__notes__")
