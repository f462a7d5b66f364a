"""Every name of vLLM's is in the table, and the table tells the truth about ours."""

import pytest

from pageant.actors.client.cast import DEFAULT_CAST
from pageant.actors.client.vllm_names import (
    engine,
    methods,
    requests,
    server,
)
from pageant.actors.client.vllm_names.rows import Form, Kind
from pageant.actors.client.vllm_names.translating import OF_SERVERS, translated
from pageant.actors.parsers.formats import REASONING_MARKS, TOOL_FORMATS, formats_of
from pageant.actors.parsers.names import REASONING_PARSERS, TOOL_PARSERS
from pageant.actors.runtime.classes import load_actor_class
from pageant.actors.runtime.topology import FORM
from pageant.protocol.errors import TopologyError
from pageant.scripts.dropin import page

FORMS = {"none": Form.FLAG, "one": Form.VALUE, "optional": Form.OPTIONAL, "many": Form.MANY}
TABLES = [engine.ENGINE, server.SERVER, *page.SECTIONS.values()]
REFUSED = {"ssl_cert_reqs": 2, "hf_overrides": {"x": 1}}


def test_every_argument_of_the_engine_is_in_the_table(vllm):
    known = engine.ENGINE.keys() | server.SERVER.keys()
    for asked in (vllm["EngineArgs"], vllm["AsyncEngineArgs"], vllm["classes"]["LLM"]["__init__"]):
        assert not asked.keys() - known
    assert len(vllm["AsyncEngineArgs"]) == 255


def test_every_flag_of_serve_is_in_the_table_as_it_is_written(vllm):
    rows = engine.ENGINE | server.SERVER
    assert len(vllm["serve"]) == 316
    for flag in vllm["serve"]:
        row = rows[flag["name"]]
        short = tuple(one for one in flag["flags"] if not one.startswith("--"))
        assert (row.form, row.short) == (FORMS[flag["values"]], short), flag


def test_no_name_stands_in_two_tables_of_flags():
    assert not engine.ENGINE.keys() & server.SERVER.keys()


def test_every_parameter_of_requests_is_in_the_table(vllm):
    assert not vllm["SamplingParams"].keys() - requests.SAMPLING.keys()
    assert not vllm["SamplingParams.from_optional"].keys() - requests.SAMPLING.keys()
    assert not vllm["BeamSearchParams"].keys() - requests.BEAMS.keys()
    assert not vllm["StructuredOutputsParams"].keys() - requests.STRUCTURED.keys()


@pytest.mark.parametrize(
    "cls,table",
    [
        ("LLM", methods.LLM),
        ("LLMEngine", methods.LLM_ENGINE),
        ("AsyncLLM", methods.ASYNC_LLM),
        ("RequestOutput", methods.OUTPUTS),
        ("CompletionOutput", methods.OUTPUTS),
        ("LoRARequest", methods.LORA_REQUEST),
    ],
)
def test_every_member_of_a_class_is_in_the_table(vllm, cls, table):
    assert not vllm["classes"][cls].keys() - table.keys() - {"__init__"}


def test_every_public_name_is_in_the_table(vllm):
    assert not set(vllm["exports"]) - methods.EXPORTS.keys()


def test_every_parameter_of_the_methods_that_are_here_is_in_the_table(vllm):
    for cls, table in (
        ("LLM", methods.LLM),
        ("LLMEngine", methods.LLM_ENGINE),
        ("AsyncLLM", methods.ASYNC_LLM),
    ):
        for name, parameters in vllm["classes"][cls].items():
            if name == "__init__" or table[name].kind is Kind.NOT_YET:
                continue
            for parameter in parameters or ():
                if parameter != "cls":
                    assert parameter in methods.PARAMETERS, (cls, name, parameter)


def test_every_parser_chooses_ours_or_is_refused_with_a_reason(vllm):
    for names, (known, refused), ours in (
        (vllm["tool_parsers"], TOOL_PARSERS, TOOL_FORMATS),
        (vllm["reasoning_parsers"], REASONING_PARSERS, REASONING_MARKS),
    ):
        assert {*names} == {*known, *refused}
        assert not {*known.values()} - ours.keys()
        assert all(len(reason) > 20 for reason in refused.values())


def test_what_vllm_sets_unless_it_is_told_changes_nothing_here(vllm):
    """`LLM(**vars(engine_args))` passes every argument on, whatever was given."""
    for name, default in vllm["AsyncEngineArgs"].items():
        if name not in server.SERVER:
            translated({name: default})


def test_a_name_that_is_the_same_or_renamed_is_a_setting_of_ours():
    classes = [*DEFAULT_CAST.classes.values(), *DEFAULT_CAST.optional.values()]
    fields = {field for name in classes for field in load_actor_class(name, "").Options.__struct_fields__}
    known = fields | FORM | DEFAULT_CAST.extra_settings
    for row in engine.ENGINE.values():
        if row.kind in (Kind.SAME, Kind.RENAMED):
            assert (row.here or row.name) in known, row.name


def test_every_refusal_says_why():
    for table in TABLES:
        for row in table.values():
            assert len(row.meaning) >= 1, row.name
            if row.kind is Kind.NOT_YET:
                assert len(row.meaning) > 12, row.name
                assert row.here is None and row.read is None, row.name


def test_a_name_that_is_not_yet_is_refused_with_its_own_reason():
    for name, row in engine.ENGINE.items():
        if row.kind is Kind.NOT_YET:
            with pytest.raises(TopologyError) as error:
                translated({name: REFUSED.get(name, "something-else")})
            assert str(error.value).startswith(f"{name}: found ") and row.meaning in str(error.value)
            assert isinstance(error.value, ValueError)


def test_names_of_earlier_versions_are_all_that_vllm_has_not(vllm):
    asked = vllm["AsyncEngineArgs"].keys() | vllm["classes"]["LLM"]["__init__"].keys()
    asked |= {flag["name"] for flag in vllm["serve"]}
    assert engine.ENGINE.keys() - asked == {row.name for row in engine.OLDER}
    assert not server.SERVER.keys() - asked


def test_what_only_servers_use_is_left_out_elsewhere():
    assert {name for name in OF_SERVERS if translated({name: "qwen3"}) != {}} == set()


def test_the_page_is_written_from_the_table():
    assert page.PAGE.read_text() == page.render(), "run python -m pageant.scripts.dropin.page"


@pytest.mark.parametrize(
    "given,ours",
    [
        ({"dtype": "half"}, {"dtype": "float16"}),
        ({"dtype": "float"}, {"dtype": "float32"}),
        ({"max_model_len": "4k"}, {"max_model_len": 4000}),
        ({"max_model_len": "4K"}, {"max_model_len": 4096}),
        ({"max_model_len": "auto"}, {"max_model_len": None}),
        ({"max_model_len": -1}, {"max_model_len": None}),
        ({"max_num_batched_tokens": "25.6k"}, {"max_num_batched_tokens": 25600}),
        ({"max_num_batched_tokens": "1e4"}, {"max_num_batched_tokens": 10000}),
        ({"kv_cache_memory_bytes": "1g"}, {"kv_cache_memory": 10**9}),
        ({"kv_cache_memory_bytes": "8GiB"}, {"kv_cache_memory": "8GiB"}),
        ({"kv_cache_dtype": "auto"}, {"kv_cache_dtype": "auto"}),
        ({"kv_cache_dtype": "int8"}, {"kv_cache_dtype": "int8"}),
        ({"kv_cache_dtype": "fp8_e4m3"}, {"kv_cache_dtype": "fp8"}),
        ({"kv_cache_dtype": "int8_per_token_head"}, {"kv_cache_dtype": "int8"}),
        ({"kv_cache_dtype": "fp8_per_token_head"}, {"kv_cache_dtype": "fp8"}),
        ({"calculate_kv_scales": True}, {}),
        ({"kv_offloading_size": 2}, {"host_memory": 2**31}),
        ({"num_gpu_blocks_override": 7}, {"num_blocks": 7}),
        ({"scheduling_policy": "priority"}, {"policy": "priority"}),
        ({"disable_hybrid_kv_cache_manager": True}, {"group_layers": False}),
        ({"generation_config": "vllm"}, {"generation_config": "none"}),
        ({"long_prefill_token_threshold": 0}, {"long_prefill_token_threshold": None}),
        ({"collect_detailed_traces": ["model"]}, {"detailed_traces": True}),
        (
            {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4}},
            {"speculation": {"method": "ngram", "tokens": 3}},
        ),
        (
            {"spec_method": "draft_model", "spec_model": "small", "spec_tokens": 2},
            {"speculation": {"method": "draft", "model": "small", "tokens": 2}},
        ),
        (
            {"speculative_config": {"method": "eagle3", "model": "heads"}, "spec_tokens": 5},
            {"speculation": {"method": "eagle", "model": "heads", "tokens": 5}},
        ),
        (
            {"speculative_config": {"method": "mtp", "num_speculative_tokens": 2}},
            {"speculation": {"method": "mtp", "tokens": 2}},
        ),
        ({"speculative_config": {"method": "qwen3_next_mtp"}}, {"speculation": {"method": "mtp"}}),
        ({"my_own_option": 3}, {"my_own_option": 3}),
    ],
)
def test_values_are_read_as_vllm_reads_them(given, ours):
    assert translated(given) == ours


@pytest.mark.parametrize(
    "given,message",
    [
        ({"max_model_len": "4Q"}, "max_model_len: found '4Q'; expected a whole number"),
        ({"max_model_len": "1.5K"}, "expected a whole number before K, or k"),
        (
            {"data_parallel_rank": 2},
            "data_parallel_rank: found 2; expected none: one server starts all replicas",
        ),
        (
            {"kv_cache_dtype": "fp8_e5m2"},
            "kv_cache_dtype: found 'fp8_e5m2'; expected 'auto' or 'int8' or 'fp8' or",
        ),
        ({"kv_cache_dtype": 8}, "kv_cache_dtype: found 8; expected 'auto' or"),
        ({"load_format": "dummy"}, "load_format: found 'dummy'; expected 'auto' or 'safetensors'"),
        ({"speculative_config": {"method": "suffix"}}, "found method 'suffix'"),
        ({"speculative_config": {"metod": "ngram"}}, "found the key 'metod'; did you mean 'method'"),
        ({"speculative_config": 4}, "found 4; expected a mapping"),
        (
            {"kv_cache_memory": 1, "kv_cache_memory_bytes": 2},
            "kv_cache_memory_bytes: the same setting as kv_cache_memory",
        ),
    ],
)
def test_values_that_cannot_be_are_refused_by_name(given, message):
    with pytest.raises(TopologyError) as error:
        translated(given)
    assert message in str(error.value)


def test_one_name_of_mistrals_parser_is_for_both_of_its_formats():
    older, newer = "{{ '[TOOL_CALLS]' }}", "{{ '[TOOL_CALLS]' }}{{ '[ARGS]' }}"
    assert formats_of([older], "mistral").tools is TOOL_FORMATS["mistral"]
    assert formats_of([newer], "mistral").tools is TOOL_FORMATS["mistral_args"]


@pytest.mark.parametrize("name,mark", [("qwen3", "<think>"), ("mistral", "[THINK]"), ("think", "<think>")])
def test_a_reasoning_parser_under_vllms_name_or_ours(name, mark):
    assert formats_of([], reasoning=name).reasoning.begin == mark
