"""Arguments that are kept, and flags as vLLM's users write them."""

import dataclasses

import pytest

from pageant.actors.client.vllm_names.command_line import plain_flags, taken_apart, with_config
from pageant.actors.client.vllm_names.engine_args import (
    DEFAULT_MODEL,
    AsyncEngineArgs,
    EngineArgs,
    FlexibleArgumentParser,
)
from pageant.protocol.errors import ArgumentError


def test_arguments_become_keyword_arguments(vllm):
    arguments = EngineArgs("model", enforce_eager=True, max_num_seqs=8)
    assert vars(arguments) == dataclasses.asdict(arguments)
    assert {*vars(arguments)} >= {*vllm["EngineArgs"]}
    assert arguments.settings() == {"model": "model", "enforce_eager": True, "max_num_seqs": 8}
    assert issubclass(AsyncEngineArgs, EngineArgs) and AsyncEngineArgs(model="x").model == "x"


@pytest.mark.parametrize(
    "given,message",
    [
        ({"data_parallel_rank": 2}, "data_parallel_rank: found 2; expected none"),
        ({"tensr_parallel_size": 1}, "no such argument; did you mean 'tensor_parallel_size'"),
        ({"max_model_len": "4Q"}, "max_model_len: found '4Q'"),
    ],
)
def test_an_argument_that_cannot_be_is_refused_at_once(given, message):
    with pytest.raises(ArgumentError, match=message):
        EngineArgs("model", **given)


def test_the_model_of_arguments_that_name_none_is_vllms(vllm):
    assert DEFAULT_MODEL == vllm["EngineArgs"]["model"] == EngineArgs().model
    parser = EngineArgs.add_cli_args(FlexibleArgumentParser())
    assert parser.parse_args([]).model == DEFAULT_MODEL
    assert EngineArgs.from_cli_args(parser.parse_args(["--model", "x"])).model == "x"


def test_every_flag_of_the_engine_is_parsed(vllm):
    parser = EngineArgs.add_cli_args(FlexibleArgumentParser())
    known = parser._option_string_actions
    for flag in vllm["serve"]:
        if flag["name"] in vllm["EngineArgs"]:
            assert set(flag["flags"]) <= known.keys(), flag
    parser.set_defaults(model="model")
    parser.add_argument("--max-tokens", type=int)
    found = parser.parse_args([])
    assert EngineArgs.from_cli_args(found).settings() == {"model": "model"}


@pytest.mark.parametrize(
    "written,settings",
    [
        (["--max_model_len", "4k"], {"max_model_len": 4000}),
        (["--max-model-len=4K"], {"max_model_len": 4096}),
        (["-tp", "1", "-q", "int8"], {"tensor_parallel_size": 1, "quantization": "int8"}),
        (["-O3"], {"optimization_level": 3}),
        (["-O=2"], {"optimization_level": 2}),
        (["--no-enable-prefix-caching"], {"enable_prefix_caching": False}),
        (["--served-model-name", "a", "7"], {"served_model_name": ["a", "7"]}),
        (["--hf-token"], {"hf_token": True}),
        (["--limit-mm-per-prompt", '{"image": 2}'], {"limit_mm_per_prompt": {"image": 2}}),
        (
            ["--speculative-config.method", "ngram", "--speculative_config.num_speculative_tokens=3"],
            {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3}},
        ),
        (
            ["--compilation-config.pass_config.fuse", "true", "--compilation-config.sizes+", "1,2"],
            {"compilation_config": {"pass_config": {"fuse": True}, "sizes": ["1", "2"]}},
        ),
        (["--gpu-memory-utilization", ".5"], {"gpu_memory_utilization": 0.5}),
        (["--revision", "1.0"], {"revision": "1.0"}),
    ],
)
def test_values_in_all_their_forms(written, settings):
    parser = EngineArgs.add_cli_args(FlexibleArgumentParser())
    arguments = EngineArgs.from_cli_args(parser.parse_args(written))
    assert arguments.settings() == {"model": DEFAULT_MODEL} | settings


def test_a_command_takes_its_own_options_and_the_table_the_others():
    own = {"--model": 1, "--api-key": 1, "--raw": 0}
    line = ["folder", "--raw", "--api_key", "a", "b", "-tp", "1", "--enforce-eager", "--max-loras=2"]
    left, given, _ = taken_apart(plain_flags(line), own, frozenset({"--api-key"}))
    assert left == ["folder", "--raw", "--api-key", "a", "--api-key", "b"]
    assert given == {"tensor_parallel_size": 1, "enforce_eager": True, "max_loras": 2}


def test_the_beginning_of_one_flag_is_that_flag():
    """Take what argparse, and so vLLM, takes; a beginning of several flags is none of them."""
    line = ["--lora-module", "a=b", "--tensor-parallel=1", "--threa", "3"]
    left, given, unknown = taken_apart(line, {"--threads": 1})
    assert (left, unknown) == (["--threads", "3"], [])
    assert given == {"lora_modules": ["a=b"], "tensor_parallel_size": 1}
    assert taken_apart(["--max-num"], {}).unknown == ["--max-num"]


def test_what_nobody_knows_is_told():
    assert taken_apart(["--nonsense", "3", "--", "--x"], {}) == (["3", "--", "--x"], {}, ["--nonsense"])


@pytest.mark.parametrize(
    "line,message",
    [
        (["--pipeline-parallel-size"], "--pipeline-parallel-size: found no value"),
        (["--enforce-eager=1"], "--enforce-eager: found the value '1'; expected none, or --no-enforce-eager"),
        (["--hf-overrides.a"], "--hf-overrides.a: found no value"),
    ],
)
def test_flags_without_their_values(line, message):
    with pytest.raises(ArgumentError) as error:
        taken_apart(plain_flags(line), {})
    assert str(error.value).startswith(message)


def test_a_file_of_flags_goes_under_the_command_line(tmp_path):
    file = tmp_path / "serve.yaml"
    file.write_text(
        "model: folder\nport: 12323\nmax-model-len: 4k\nenforce_eager: true\nenable_prefix_caching: false\n"
        "trust_remote_code:\nserved_model_name: [a, b]\nspeculative-config: {method: ngram}\nport_: 1\n"
    )
    line = with_config(["--config", str(file), "--port", "0"])
    assert line == [
        *("folder", "--port", "0", "--max-model-len", "4k", "--enforce-eager", "--no-enable-prefix-caching"),
        *("--served-model-name", "a", "b", "--speculative-config", '{"method": "ngram"}', "--port-", "1"),
    ]
    assert with_config(["other", f"--config={file}"])[0] == "other"
    assert with_config(["--port", "0"]) == ["--port", "0"]
    for wrong in (["--config"], ["--config", "a", "--config", "b"]):
        with pytest.raises(ArgumentError, match="--config"):
            with_config(wrong)
