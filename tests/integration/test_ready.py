"""A checkpoint that comes quantised behind everything that an engine does, and what is refused of one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForCausalLM

import pageant
from pageant.actors.runtime.topology import TopologyError
from pageant.models import CheckpointError
from pageant.scripts.commands import topology
from pageant.scripts.commands.doctor import examine_model
from pageant.scripts.engine_options import DEMO_MODEL

SETTINGS: dict[str, Any] = {"placement": "one", "progress": False, "num_blocks": 256, "max_model_len": 512}
GREEDY = pageant.SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
QUESTION = [{"role": "user", "content": "What is a list?"}]
PROMPTS = [
    f"{start} is a function that returns the number of items of a list" for start in ("len", "len", "count")
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, save_gptq: Callable[..., None]) -> Path:
    """The demo model in 4 bits, with inputs that are to be sorted."""
    path = tmp_path_factory.mktemp("gptq")
    save_gptq(Path(DEMO_MODEL), path, act_order=True)
    return path


@pytest.fixture(scope="module")
def expected(folder: Path) -> Iterator[list[Any]]:
    """Return the answers of a plain engine to some prompts, greedy and not."""
    with pageant.LLM(folder, **SETTINGS) as llm:
        (answer,) = llm.chat(QUESTION, pageant.SamplingParams(temperature=0, max_tokens=24))
        assert "list" in answer.outputs[0].text.lower()
        yield _tokens(llm)


def _tokens(llm: Any) -> list[Any]:
    sampled = pageant.SamplingParams(temperature=1, seed=3, n=2, max_tokens=16, ignore_eos=True)
    outputs = [*llm.generate(PROMPTS, GREEDY), *llm.generate(PROMPTS[:1], sampled)]
    return [tuple(one.token_ids) for output in outputs for one in output.outputs]


@pytest.mark.parametrize(
    "changes",
    [
        {"speculation": {"method": "ngram", "tokens": 3, "adaptive": False}},
        {"enable_prefix_caching": False},
        {"num_blocks": 12, "max_model_len": 128},
        {"max_num_batched_tokens": 16},
        {"placement": "each"},
    ],
    ids=str,
)
def test_tokens_are_those_of_a_plain_engine(
    folder: Path, expected: list[Any], changes: dict[str, Any]
) -> None:
    with pageant.LLM(folder, **(SETTINGS | changes)) as llm:
        assert _tokens(llm) == expected


def test_a_quantised_draft_model_changes_no_token(folder: Path, expected: list[Any]) -> None:
    speculation = {"method": "draft", "model": str(folder), "tokens": 2, "adaptive": False}
    with pageant.LLM(folder, **SETTINGS, speculation=speculation) as llm:
        assert _tokens(llm) == expected


@pytest.mark.parametrize("speculation", [None, {"method": "ngram", "tokens": 3, "adaptive": False}], ids=str)
async def test_an_adapter_comes_and_goes_on_quantised_weights(
    folder: Path, save_adapter: Callable[..., Any], speculation: Any
) -> None:
    model = AutoModelForCausalLM.from_pretrained(DEMO_MODEL, dtype="float32")
    path = str(save_adapter(model, ("q_proj", "o_proj", "up_proj", "down_proj"), size=0.2).path)
    settings = {name: value for name, value in SETTINGS.items() if name != "progress"}

    async def tokens_of(engine: pageant.Engine, adapter: str | None) -> list[list[int]]:
        some = (engine.complete(prompt, GREEDY, adapter=adapter) for prompt in PROMPTS)
        return [output.outputs[0].token_ids for output in await asyncio.gather(*some)]

    async with pageant.Engine(folder, **settings, adapters={"mine": path}) as engine:
        right = {name: await tokens_of(engine, name) for name in (None, "mine")}
    assert right[None] != right["mine"]
    async with pageant.Engine(folder, **settings, speculation=speculation) as engine:
        assert await tokens_of(engine, None) == right[None]
        await engine.add_adapter("late", path)
        found = await asyncio.gather(tokens_of(engine, None), tokens_of(engine, "late"))
        assert found == [right[None], right["mine"]]
        await engine.remove_adapter("late")
        assert await tokens_of(engine, None) == right[None]


def test_a_grammar_holds_on_quantised_weights(folder: Path) -> None:
    with pageant.LLM(folder, **SETTINGS) as llm:
        params = pageant.SamplingParams(
            temperature=0,
            max_tokens=24,
            structured_outputs=pageant.StructuredOutputsParams(choice=["yes", "no"]),
        )
        (answer,) = llm.chat(QUESTION, params)
        assert answer.outputs[0].text in ("yes", "no")


def test_it_is_refused_where_it_would_be_quantised_once_more(folder: Path) -> None:
    with pytest.raises(CheckpointError, match="quantization int8 for weights that GPTQ quantised"):
        pageant.LLM(folder, **SETTINGS, quantization="int8")


def test_its_head_may_be_quantised_while_it_is_loaded(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    with (
        caplog.at_level("INFO", "pageant.executor"),
        pageant.LLM(folder, **SETTINGS, head_quantization="int8") as llm,
    ):
        (answer,) = llm.chat(QUESTION, GREEDY)
    assert "with an int8 head" in caplog.text and "list" in answer.outputs[0].text.lower()
    with pytest.raises(TopologyError, match=r"head_quantization: .*'int3'"):
        topology.check({"model": str(folder), "head_quantization": "int3"})


@pytest.mark.parametrize("name", ["gptq", "gptq_marlin"])
def test_its_own_method_may_be_named(folder: Path, name: Any, capsys: pytest.CaptureFixture[str]) -> None:
    topology.check({"model": str(folder), "quantization": name})
    assert "4.5 bits a weight" in capsys.readouterr().out
    with pytest.raises(
        TopologyError, match="found 'awq'; expected int8 or int4, or gptq, which the checkpoint is"
    ):
        topology.check({"model": str(folder), "quantization": "awq"})


def test_it_is_told_of_before_it_is_loaded(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = "GPTQ: 20 matrices with exact codes and scales rounded to bfloat16 in 4.5 bits a weight"
    assert examine_model(str(folder)).means == said
    topology.check({"model": str(folder)})
    assert f"{folder.name}: {said}" in capsys.readouterr().out
    (folder / "quantize_config.json").write_text('{"bits": 8}')
    finding = examine_model(str(folder))
    (folder / "quantize_config.json").unlink()
    assert not finding.good and "bits is 8; expected 4, as config.json has it" in finding.means
