"""Adapters as vLLM's users name them, and what comes with the prompts of a call."""

import pytest

from pageant.actors.client.asking import asked, load_missing
from pageant.actors.client.lora import LoRARequest, lora_requests
from pageant.actors.client.sampling_params import SamplingParams
from pageant.actors.frontend.prompts import Limits
from pageant.protocol import sampling
from pageant.protocol.errors import BadRequest

LIMITS = Limits(100, 64, 5, sampling.SamplingParams(), adapters=("sql", "chat"))
SQL = LoRARequest("sql", 1, "folder")


def test_two_of_one_name_are_equal():
    assert SQL == LoRARequest("sql", 7) != LoRARequest("chat", 1)
    assert (SQL.name, SQL.adapter_id, SQL.path) == ("sql", 1, "folder")
    assert len({SQL, LoRARequest("sql", 2)}) == 1


@pytest.mark.parametrize(
    "given,message",
    [
        (("", 1), "lora_name is ''"),
        (("a", 0), "lora_int_id is 0"),
        (("a", True), "lora_int_id is True"),
        (("a", 1, "x", None, False, True), "is_3d_lora_weight: found True"),
    ],
)
def test_what_cannot_be_an_adapter_is_refused(given, message):
    with pytest.raises(BadRequest) as error:
        LoRARequest(*given)
    assert message in str(error.value)


def test_one_adapter_for_all_or_one_each():
    assert lora_requests(None, 2) == [None, None]
    assert lora_requests(SQL, 2) == [SQL, SQL]
    assert lora_requests([SQL, None, "chat"], 3) == [SQL, None, LoRARequest("chat", 1)]
    for wrong, message in (
        ([SQL], "1 entries for 2"),
        (5, "is a int"),
        ([5, 5], r"lora_request\[0\] is a int"),
    ):
        with pytest.raises(BadRequest, match=message):
            lora_requests(wrong, 2)


def test_adapters_that_are_not_loaded_are_to_be():
    new = LoRARequest("new", 3, "elsewhere")
    assert load_missing([SQL, new, None, new, LoRARequest("nowhere", 4)], LIMITS) == [new]
    assert load_missing(new, LIMITS) == [new] and load_missing(None, LIMITS) == []


def test_what_comes_with_prompts_under_either_name():
    params = SamplingParams(max_tokens=3)
    given = {"sampling_params": params, "use_tqdm": False, "lora_request": [SQL, None], "priority": [1, 2]}
    own = asked(LIMITS, ["a", {"prompt": "b", "cache_salt": "s"}], None, given)
    assert own.params == [params.frozen()] * 2 and own.progress is False
    assert own.settings == [
        {"adapter": "sql", "priority": 1},
        {"priority": 2, "cache_salt": "s"},
    ]
    assert own.lora_requests == [SQL, None]


def test_what_asks_for_nothing_is_passed_over():
    nothing = {
        "tokenization_kwargs": {},
        "mm_processor_kwargs": {"a": 1},
        "trace_headers": None,
        "session_id": None,
    }
    assert asked(LIMITS, ["a"], None, nothing).settings == [{}]
    traced = asked(LIMITS, ["a"], None, {"trace_headers": {"traceparent": "00-1-2-01", "other": "x"}})
    assert traced.settings == [{"traceparent": "00-1-2-01"}]


@pytest.mark.parametrize(
    "params,given,message",
    [
        (SamplingParams(), {"sampling_params": SamplingParams()}, "sampling_params is given beside params"),
        (None, {"use_tqdm": True, "progress": True}, "use_tqdm is given beside progress"),
        (None, {"lora_request": SQL, "adapter": "sql"}, "lora_request is given beside adapter"),
        (None, {"lora_request": LoRARequest("nowhere", 1)}, "adapter is 'nowhere'"),
        (None, {"priority": [1]}, "priority has 1 entries for 2 prompts"),
        (None, {"tokenization_kwargs": {"truncation": True}}, "tokenization_kwargs: found"),
        (None, {"session_id": "x"}, "session_id: found 'x'"),
        ([SamplingParams()], {}, "params has 1 entries for 2 prompts"),
        (None, {"nonsense": 1}, "nonsense is no setting of a request"),
    ],
)
def test_what_cannot_come_with_prompts_is_refused_by_name(params, given, message):
    with pytest.raises(BadRequest) as error:
        asked(LIMITS, ["a", "b"], params, given)
    assert message in str(error.value)
