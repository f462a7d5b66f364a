"""Structured output end to end: what comes back is what was asked for, whatever happens on the way."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal

import jsonschema
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import pageant
from pageant import BadRequest, SamplingParams
from pageant.protocol.structured_outputs import StructuredOutputsParams as Asked

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
EXPRESSION = 'root ::= "(" root op root ")" | [0-9]\nop ::= "+" | "-"'
DEMO = "models/demo"


def params(asked: Asked | None, seed: int = 0, **more) -> SamplingParams:
    return SamplingParams(
        **{"temperature": 1.0, "max_tokens": 200, "seed": seed, "structured_outputs": asked} | more
    )


def valid(output, schema=PERSON) -> bool:
    (completion,) = output.outputs
    assert completion.finish_reason == "stop" and completion.stop_reason is None
    jsonschema.validate(json.loads(completion.text), schema)
    return True


@pytest.fixture(scope="module", params=["auto", "always"])
def demo(request, demo_path):
    with pageant.LLM(demo_path, placement="one", progress=False, threads=1, wire=request.param) as llm:
        yield llm


@pytest.fixture(scope="module")
def demo_path():
    from pathlib import Path

    return Path(__file__).parents[2] / DEMO


# What it looks like.


def test_each_kind_of_structure_comes_out_as_asked(demo):
    def one(asked, **more):
        (output,) = demo.generate("Tell me about Python: ", params(asked, **more))
        return output.outputs[0]

    assert one(Asked(choice=["yes", "no", "perhaps"])).text in ("yes", "no", "perhaps")
    assert re.fullmatch(r"[a-f]{4}-\d{2}", one(Asked(regex=r"[a-f]{4}-\d{2}")).text)
    text = one(Asked(grammar=EXPRESSION), seed=3).text
    assert text.count("(") == text.count(")") and eval(text) is not None
    assert isinstance(json.loads(one(Asked(json_object=True)).text), dict)
    jsonschema.validate(json.loads(one(Asked(json=PERSON)).text), PERSON)
    assert re.fullmatch(r"[^e]*e[ \n]*yes", one(Asked(choice=["yes"], reasoning_end="e"), seed=2).text)


def bounded_schemas(depth: int = 2) -> st.SearchStrategy[dict]:
    """Schemas whose values are short, in the shapes of the JSON Schema test suite."""
    low = st.integers(-1000, 1000)
    names = st.sampled_from(["id", "name", "a b", "größe", "$x", "x/y", '"'])
    leaves = st.one_of(
        st.just({"type": "boolean"}),
        st.just({"type": "null"}),
        st.builds(lambda a, n: {"type": "integer", "minimum": a, "maximum": a + n}, low, st.integers(0, 500)),
        st.builds(
            lambda a, n: {"type": "integer", "exclusiveMinimum": a, "maximum": a + n}, low, st.integers(1, 9)
        ),
        st.builds(
            lambda n, k: {"type": "string", "minLength": min(n, k), "maxLength": k}, *[st.integers(0, 12)] * 2
        ),
        st.sampled_from(["^[a-z]{1,6}$", r"^\d{3}-\d{4}$", "^(cat|dog)s?$"]).map(
            lambda pattern: {"type": "string", "pattern": pattern}
        ),
        st.sampled_from(["date", "uuid", "ipv4", "time"]).map(
            lambda form: {"type": "string", "format": form}
        ),
        st.lists(
            st.one_of(st.integers(-5, 5), st.booleans(), st.text("ab é", max_size=4)), min_size=1, max_size=4
        ).map(lambda values: {"enum": values}),
        st.one_of(st.none(), st.integers(0, 9), st.just([1, {"a": "b"}])).map(lambda value: {"const": value}),
        st.just({"type": ["integer", "null"], "minimum": 0, "maximum": 9}),
    )
    if not depth:
        return leaves
    inner = bounded_schemas(depth - 1)

    def an_object(properties: dict, more: bool) -> dict:
        required = [name for i, name in enumerate(properties) if more or i % 2]
        closed = {"type": "object", "properties": properties, "additionalProperties": False}
        return {**closed, "required": required}

    return st.one_of(
        leaves,
        st.builds(an_object, st.dictionaries(names, inner, max_size=4), st.booleans()),
        st.builds(
            lambda item, n: {"type": "array", "items": item, "minItems": n, "maxItems": n + 2},
            inner,
            st.integers(0, 2),
        ),
        st.lists(inner, min_size=1, max_size=3).map(
            lambda items: {"type": "array", "prefixItems": items, "items": False, "minItems": len(items)}
        ),
        st.lists(inner, min_size=1, max_size=3).map(lambda options: {"anyOf": options}),
        st.builds(
            lambda a, n: {"allOf": [{"type": "integer", "minimum": a}, {"maximum": a + n}]},
            low,
            st.integers(0, 50),
        ),
    )


def referred(item: dict) -> dict:
    """A list of what is defined elsewhere."""
    return {"$defs": {"item": item}, "type": "array", "items": {"$ref": "#/$defs/item"}, "maxItems": 2}


def drawn_schemas(count: int) -> list[dict]:
    """Always the same ones."""
    found: list[dict] = []

    @settings(
        max_examples=count, derandomize=True, database=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(st.one_of(bounded_schemas(), bounded_schemas(1).map(referred)))
    def collect(schema):
        found.append(schema)

    collect()
    return found


def test_bounded_schemas_finish_by_themselves_and_all_that_do_are_valid(demo_path):
    schemas = drawn_schemas(200)
    assert len({json.dumps(schema) for schema in schemas}) > 150
    with pageant.LLM(demo_path, placement="one", progress=False, threads=1, max_num_seqs=64) as llm:
        asked = [params(Asked(json=schema), seed, max_tokens=512) for seed, schema in enumerate(schemas)]
        outputs = llm.generate(["An example as JSON: "] * len(schemas), asked)
    finished = 0
    for output, schema in zip(outputs, schemas, strict=True):
        (completion,) = output.outputs
        if completion.finish_reason == "stop":
            finished += 1
            jsonschema.validate(json.loads(completion.text), schema, jsonschema.Draft202012Validator)
    assert finished >= 0.95 * len(schemas), f"{finished} of {len(schemas)} finished"


# When it ends.


def test_a_complete_output_ends_whatever_would_keep_it_going(demo):
    more = {"min_tokens": 50, "ignore_eos": True}
    (output,) = demo.generate("x", params(Asked(choice=["yes"]), **more))
    assert output.outputs[0].text == "yes" and output.outputs[0].finish_reason == "stop"


def test_where_it_could_go_on_it_ends_by_an_end_token_or_by_length(demo):
    many = demo.generate(["x"] * 6, [params(Asked(regex="(ab)+"), seed, max_tokens=20) for seed in range(6)])
    for output in many:
        assert re.fullmatch("(ab)+a?", output.outputs[0].text)
        assert output.outputs[0].finish_reason in ("stop", "length")
    (output,) = demo.generate("x", params(Asked(regex="(ab)+"), max_tokens=20, ignore_eos=True))
    assert output.outputs[0].finish_reason == "length"


def test_what_else_forbids_tokens_gives_way_where_nothing_would_be_left(demo):
    bias = {"bad_words": ("yes",), "allowed_token_ids": tuple(range(3, 50)), "presence_penalty": 1.0}
    (output,) = demo.generate("x", params(Asked(choice=["yes"]), **bias))
    assert output.outputs[0].text == "yes"


# Whom it concerns.


def test_a_request_gets_the_same_in_any_company_and_its_company_is_not_disturbed(demo):
    prompts = [f"Number {index}: " for index in range(12)]
    asked = [params(Asked(json=PERSON) if index % 2 else None, index, max_tokens=60) for index in range(12)]
    together = demo.generate(prompts, asked)
    alone = [demo.generate(prompt, one)[0] for prompt, one in zip(prompts, asked, strict=True)]
    assert [one.outputs[0].token_ids for one in together] == [one.outputs[0].token_ids for one in alone]
    assert all(valid(one) for one in together[1::2])


def test_samples_are_guided_each_by_itself(demo):
    (output,) = demo.generate("A person: ", params(Asked(json=PERSON), n=4, logprobs=2))
    texts = [completion.text for completion in output.outputs]
    assert len(set(texts)) > 1
    for completion in output.outputs:
        jsonschema.validate(json.loads(completion.text), PERSON)
        assert completion.logprobs is not None and len(completion.logprobs) == len(completion.token_ids)


@pytest.mark.parametrize(
    ("asked", "name"),
    [
        (Asked(regex="(a"), "regex"),
        (Asked(json={"type": "what"}), "json"),
        (Asked(grammar="start: x"), "grammar"),
    ],
)
def test_a_grammar_that_is_wrong_fails_its_own_request_and_names_itself(demo, asked, name):
    with pytest.raises(BadRequest, match=f"structured_outputs.{name}: ") as caught:
        demo.generate("x", params(asked))
    assert caught.value.parameter == "structured_outputs"
    assert demo.generate("x", params(Asked(choice=["yes"])))[0].outputs[0].text == "yes"


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"regex": "a", "json_object": True},
        {"choice": []},
        {"regex": 7},
        {"json": "x" * 300_000},
        {"json": {"a": {1}}},
        {"jsn": {}},
    ],
)
def test_parameters_that_make_no_sense_are_refused_at_once(wrong):
    with pytest.raises(BadRequest) as caught:
        SamplingParams(structured_outputs=wrong)
    assert caught.value.parameter == "structured_outputs"


def test_a_mapping_is_as_good(demo):
    asked = SamplingParams(structured_outputs={"choice": ["yes"]})
    assert demo.generate("x", asked)[0].outputs[0].text == "yes"
    assert asked == SamplingParams(structured_outputs=pageant.StructuredOutputsParams(choice=["yes"]))


# What happens on the way.


def at_rest(llm) -> bool:
    """Check that nothing is left, when the last step that was planned ahead is over."""
    for _ in range(200):
        if not llm.pool_statistics().blocks_held:
            return llm.scheduler_statistics().num_running == 0
    return False


def settings_of(**more):
    return {"placement": "one", "progress": False, "threads": 1} | more


def test_chunked_prefills_and_preemptions_change_nothing(demo_path):
    prompts = [f"{index} " + "and so on " * (5 * index) for index in range(10)]
    asked = [params(Asked(json=PERSON), seed) for seed in range(10)]
    with pageant.LLM(demo_path, **settings_of()) as llm:
        free = [output.outputs[0].token_ids for output in llm.generate(prompts, asked)]
    tight = settings_of(max_num_batched_tokens=48, num_blocks=40, max_model_len=512, block_size=16)
    with pageant.LLM(demo_path, **tight) as llm:
        outputs = llm.generate(prompts, asked)
        counters = llm.scheduler_statistics().counters
    assert [output.outputs[0].token_ids for output in outputs] == free
    assert counters["preemptions"] and counters["chunk_splits"]
    assert all(valid(output) for output in outputs)


@pytest.mark.parametrize("ahead", [True, False])
def test_late_masks_defer_their_rows_alone_and_change_no_token(demo_path, ahead, monkeypatch):
    monkeypatch.syspath_prepend(os.path.dirname(__file__))
    late = {"grammar": {"class": "guiding_players:LateGrammar"}}
    asked = [
        params(Asked(json=PERSON) if seed % 3 else None, seed, logprobs=1, max_tokens=60) for seed in range(9)
    ]
    prompts = [f"Number {index}: " for index in range(9)]
    with pageant.LLM(demo_path, **settings_of()) as llm:
        right = llm.generate(prompts, asked)
    with pageant.LLM(demo_path, **settings_of(actors=late, async_scheduling=ahead, block_size=4)) as llm:
        outputs = llm.generate(prompts, asked)
        again = llm.generate(prompts, asked)  # from what is cached of the first
        counters = llm.scheduler_statistics().counters
        assert at_rest(llm)
    for output, once_more, wanted in zip(outputs, again, right, strict=True):
        assert output.outputs[0].token_ids == wanted.outputs[0].token_ids == once_more.outputs[0].token_ids
        assert len(output.outputs[0].logprobs) == len(wanted.outputs[0].token_ids)
    assert counters["rows_deferred"] > 5
    assert bool(counters["rows_void"]) == ahead


@pytest.mark.parametrize("late", [False, True])
def test_drafts_are_verified_under_the_grammar_and_change_no_token(demo_path, late, monkeypatch):
    monkeypatch.syspath_prepend(os.path.dirname(__file__))
    import guiding_players

    prompts = [f"Number {index}: " for index in range(8)]
    asked = [
        params(Asked(json=PERSON) if seed % 3 else None, seed, logprobs=1, max_tokens=60) for seed in range(8)
    ]
    with pageant.LLM(demo_path, **settings_of()) as llm:
        right = llm.generate(prompts, asked)
    known = [[*output.prompt_token_ids, *output.outputs[0].token_ids] for output in right]
    monkeypatch.setattr(guiding_players, "RIGHT", known)
    speculation = {"method": "guiding_players:Guesser", "tokens": 4, "adaptive": False}
    actors = {"grammar": {"class": "guiding_players:LateGrammar"}} if late else {}
    with pageant.LLM(demo_path, **settings_of(speculation=speculation, actors=actors, block_size=4)) as llm:
        outputs = llm.generate(prompts, asked)
        again = llm.generate(prompts, asked)  # from what is cached of the first
        counters = llm.scheduler_statistics().counters
        assert at_rest(llm)
    for output, once_more, wanted in zip(outputs, again, right, strict=True):
        assert output.outputs[0].token_ids == wanted.outputs[0].token_ids == once_more.outputs[0].token_ids
        assert len(output.outputs[0].logprobs) == len(wanted.outputs[0].token_ids)
    assert counters["drafts_accepted"] > 100 and counters["drafts_proposed"] > counters["drafts_accepted"]
    assert counters["rows_deferred"] or not late  # without, they may be late on a machine that is busy


def test_masks_that_are_lost_are_asked_for_again(demo_path, monkeypatch):
    monkeypatch.syspath_prepend(os.path.dirname(__file__))
    prompts, asked = ["x", "y", "z"], [params(Asked(json=PERSON), seed) for seed in range(3)]
    with pageant.LLM(demo_path, **settings_of()) as llm:
        right = llm.generate(prompts, asked)
    lossy = {"grammar": {"class": "guiding_players:LossyGrammar"}}
    with pageant.LLM(demo_path, **settings_of(actors=lossy)) as llm:
        outputs = llm.generate(prompts, asked)
        assert llm.scheduler_statistics().counters["rows_deferred"]
        assert at_rest(llm)
    for output, wanted in zip(outputs, right, strict=True):
        assert output.outputs[0].token_ids == wanted.outputs[0].token_ids


def test_a_mask_that_never_comes_fails_its_own_request(demo_path, monkeypatch):
    monkeypatch.syspath_prepend(os.path.dirname(__file__))
    mute = {"grammar": {"class": "guiding_players:MuteGrammar"}}
    with pageant.LLM(demo_path, **settings_of(actors=mute, mask_patience=1.0)) as llm:
        good = llm.generate("x", params(Asked(json=PERSON)))
        assert valid(good[0])
        with pytest.raises(pageant.RequestFailed, match="did not say within 1 s"):
            llm.generate(["x", "y"], [params(Asked(regex="mute.{30}")), params(Asked(json=PERSON), 1)])
        assert valid(llm.generate("z", params(Asked(json=PERSON)))[0])
        assert at_rest(llm)


@pytest.mark.parametrize(
    ("killed", "placement"),
    [("grammar", "each"), ("executor", "each"), ("scheduler", "each"), ("executor", "auto")],
)
async def test_whoever_is_killed_the_output_goes_on_as_it_would_have(demo_path, killed, placement):
    asked = [params(Asked(regex=r"(\w+ ){40}\w+\."), seed, max_tokens=300) for seed in range(6)]
    prompts = [f"Number {index}: " for index in range(6)]
    with pageant.LLM(demo_path, **settings_of()) as llm:
        right = [output.outputs[0].token_ids for output in llm.generate(prompts, asked)]
    async with pageant.Engine(demo_path, placement=placement, threads=1) as engine:
        streams = [engine.generate(prompt, one) for prompt, one in zip(prompts, asked, strict=True)]
        for stream in streams:
            await anext(stream)
        (pid,) = [node.pid for node in await engine.statistics() if node.node == killed]
        os.kill(pid, signal.SIGKILL)
        outputs = await asyncio.gather(*map(_exhaust, streams))
        async with asyncio.timeout(120):  # they may have ended before it is back
            while not (after := [node.pid for node in await engine.statistics() if node.node == killed]):
                pass
        assert after != [pid]
    assert [output.outputs[0].token_ids for output in outputs] == right


async def _exhaust(stream):
    async for output in stream:
        last = output
    return last


async def test_requests_that_are_left_at_any_moment_leave_nothing_behind(demo_path):
    async with pageant.Engine(demo_path, placement="one", threads=1, max_num_seqs=8) as engine:

        async def leave_after(outputs: int, seed: int) -> None:
            asked = params(Asked(json=PERSON), seed, output_kind=pageant.RequestOutputKind.DELTA)
            stream = engine.generate(f"Number {seed}: ", asked)
            for _ in range(outputs):
                await anext(stream, None)
            await stream.aclose()

        await asyncio.gather(*[leave_after(seed % 5, seed) for seed in range(40)])
        assert valid(await engine.complete("A person: ", params(Asked(json=PERSON), 1)))
        for _ in range(200):
            if not (await engine.pool_statistics()).blocks_held:
                break
        assert (await engine.scheduler_statistics()).num_running == 0
