"""Embeddings, classes and scores of an engine, against transformers' hidden states pooled by hand."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from transformers import AutoTokenizer

import pageant
from pageant import PoolingParams
from tests.pooled_models import WORDS, change_config, save_model

SMALL: dict[str, Any] = {
    "placement": "one",
    "dtype": "float32",
    "threads": 1,
    "progress": False,
    "max_num_batched_tokens": 192,
    "max_num_seqs": 8,
}
Saved = tuple[Path, Any, Any]


def text(seed: int, words: int) -> str:
    chosen = np.random.default_rng(seed).integers(0, len(WORDS), words)
    return " ".join(WORDS[index] for index in chosen)


TEXTS = [text(seed, length) for seed, length in enumerate([3, 40, 1, 100, 17, 60, 8, 80, 5, 33, 90, 12])]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Saved]:
    """Saves models, each once: their folders, and what transformers has of them."""
    made: dict[str, Saved] = {}

    def save(kind: str, name: str = "", **options: Any) -> Saved:
        key = f"{kind} {name}"
        if key not in made:
            folder = tmp_path_factory.mktemp(kind)
            config = options.pop("config", {})
            model = save_model(folder, kind, **options)
            change_config(folder, **config)
            made[key] = folder, model, AutoTokenizer.from_pretrained(folder)
        return made[key]

    return save


@contextmanager
def serving(path: Path, **settings: Any) -> Iterator[pageant.LLM]:
    with pageant.LLM(path, **SMALL | settings) as llm:
        yield llm


@torch.inference_mode()
def hidden(model: Any, token_ids: list[int]) -> torch.Tensor:
    return model.base_model(input_ids=torch.tensor([token_ids])).last_hidden_state[0]


def pooled(states: torch.Tensor, how: str) -> torch.Tensor:
    return {"cls": states[0], "mean": states.mean(0), "lasttoken": states[-1]}[how]


def embedded(saved: Saved, how: str, one: str, *, normal: bool = True) -> torch.Tensor:
    _, model, tokenizer = saved
    found = pooled(hidden(model, tokenizer(one)["input_ids"]), how)
    return F.normalize(found, dim=0) if normal else found


def cosine(found: Any, expected: torch.Tensor) -> float:
    return float(F.cosine_similarity(torch.as_tensor(found), expected, dim=0))


@pytest.mark.parametrize(
    ("kind", "how"),
    [
        ("bert", "mean"),
        ("bert", "cls"),
        ("xlm_roberta", "mean"),
        ("modernbert", "cls"),
        ("qwen3", "lasttoken"),
        ("mistral", "lasttoken"),
        ("qwen3_causal", "mean"),
    ],
)
def test_embeddings_are_those_of_transformers(saved: Callable[..., Saved], kind: str, how: str) -> None:
    model = saved(kind, how, pooling=how, by_name=kind == "bert")
    expected = [embedded(model, how, one) for one in TEXTS]
    with serving(model[0]) as llm:
        # A prefix of some texts, twice: what is cached must change nothing.
        for texts in (TEXTS, [*TEXTS[5:], *TEXTS[:5]]):
            found = dict(zip(texts, llm.embed(texts), strict=True))
            for one, right in zip(TEXTS, expected, strict=True):
                assert cosine(found[one].outputs.embedding, right) >= 0.99999
        assert abs(float(np.linalg.norm(found[TEXTS[0]].outputs.embedding)) - 1) < 1e-5
        assert llm.pool_statistics().blocks_held == 0
        by_ids = llm.embed([found[one].prompt_token_ids for one in TEXTS[:3]])
        for one, again in zip(TEXTS, by_ids, strict=False):
            np.testing.assert_allclose(again.outputs.embedding, found[one].outputs.embedding, atol=1e-5)


@pytest.mark.asyncio
async def test_an_async_engine_embeds_and_scores_as_the_blocking_one(saved: Callable[..., Saved]) -> None:
    """Calls of several tasks are batched together. A cancelled one leaves nothing behind, and costs no other."""
    model = saved("bert", "cls", pooling="cls")
    with serving(model[0]) as llm:
        expected = [output.outputs.embedding for output in llm.embed(TEXTS)]
        (score,) = llm.score(TEXTS[0], TEXTS[1])
    settings = {name: value for name, value in SMALL.items() if name != "progress"}
    async with pageant.Engine(model[0], **settings) as engine:
        calls = [asyncio.create_task(engine.embed(one)) for one in TEXTS]
        cancelled = asyncio.create_task(engine.embed(TEXTS * 50))
        await asyncio.sleep(0)
        cancelled.cancel()
        for (output,), right in zip(await asyncio.gather(*calls), expected, strict=True):
            np.testing.assert_allclose(output.outputs.embedding, right, atol=1e-5)
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        (scored,) = await engine.score(TEXTS[0], TEXTS[1])
        assert abs(scored.outputs.score - score.outputs.score) < 1e-5
        (array,) = await engine.encode(TEXTS[:1], pooling_task="token_embed")
        assert array.outputs.data.shape[0] == len(array.prompt_token_ids)
        with pytest.raises(pageant.BadRequest, match=r"prompts\[1\]"):
            await engine.embed([TEXTS[0], " ".join(TEXTS * 10)])
        with pytest.raises(pageant.BadRequest):
            await engine.classify(TEXTS)
        async with asyncio.timeout(30):
            while (await engine.pool_statistics()).blocks_held:
                pass


def test_dense_layers_prompts_and_dimensions(saved: Callable[..., Saved]) -> None:
    model = saved(
        "bert",
        "dense",
        pooling="mean",
        dense=24,
        prompts={"query": "w1 w2 ", "document": ""},
        config={"matryoshka_dimensions": [8, 24]},
    )
    weights = load_file(model[0] / "2_Dense/model.safetensors")

    def expected(one: str, width: int) -> torch.Tensor:
        dense = torch.tanh(F.linear(embedded(model, "mean", one, normal=False), *weights.values()))
        return F.normalize(dense[:width], dim=0)

    order = ["linear.weight", "linear.bias"]
    weights = {name: weights[name] for name in order}
    with serving(model[0]) as llm:
        (whole,) = llm.embed(TEXTS[0])
        (cut,) = llm.embed(TEXTS[0], dimensions=8)
        (query,) = llm.embed(TEXTS[0], prompt_name="query")
        (plain,) = llm.embed(TEXTS[0], PoolingParams(normalize=False))
        np.testing.assert_allclose(whole.outputs.embedding, expected(TEXTS[0], 24), atol=1e-5)
        np.testing.assert_allclose(cut.outputs.embedding, expected(TEXTS[0], 8), atol=1e-5)
        np.testing.assert_allclose(query.outputs.embedding, expected("w1 w2 " + TEXTS[0], 24), atol=1e-5)
        assert abs(np.linalg.norm(plain.outputs.embedding) - 1) > 0.1
        for wrong, why in (
            ({"dimensions": 9}, "dimensions is 9; expected 8, 24"),
            ({"prompt_name": "other"}, "prompt_name is 'other'"),
            ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens is 0"),
        ):
            with pytest.raises(pageant.BadRequest, match=why):
                llm.embed(TEXTS[0], **wrong)
        with pytest.raises(pageant.BadRequest, match="embeds texts and generates none"):
            llm.generate("w1")
        with pytest.raises(pageant.BadRequest, match="params is a SamplingParams; expected PoolingParams"):
            llm.embed("w1", pageant.SamplingParams(), dimensions=8)
        with pytest.raises(pageant.BadRequest, match="the task is classify; this model does embed"):
            llm.classify("w1")
        with pytest.raises(pageant.BadRequest, match=r"prompts\[1\].*at most 130 are taken"):
            llm.embed(["w1", text(1, 150)])
        with pytest.raises(pageant.BadRequest, match="is empty"):
            llm.embed("")
        (cut_text,) = llm.embed(text(1, 150), truncate_prompt_tokens=-1)
        assert len(cut_text.prompt_token_ids) == 130 and cut_text.prompt_token_ids[-1] == 3
        assert llm.embed([]) == []


def test_every_token_has_a_vector(saved: Callable[..., Saved]) -> None:
    model = saved("qwen3", "lasttoken", pooling="lasttoken")
    with serving(model[0], max_num_batched_tokens=32) as llm:
        found = llm.encode(TEXTS[:6], pooling_task="token_embed")
        assert llm.scheduler_statistics().counters["chunk_splits"] > 0
        for one, output in zip(TEXTS, found, strict=False):
            right = F.normalize(hidden(model[1], output.prompt_token_ids), dim=1)
            np.testing.assert_allclose(output.outputs.data, right, atol=1e-4)
            assert len(output.outputs.data) == len(model[2](one)["input_ids"])


@pytest.mark.parametrize("kind", ["bert_labels", "xlm_roberta_labels", "modernbert_labels", "qwen3_labels"])
def test_classes_are_those_of_transformers(saved: Callable[..., Saved], kind: str) -> None:
    path, model, _ = saved(kind)
    model.config.pad_token_id = 0
    with serving(path) as llm:
        for output in llm.classify(TEXTS):
            with torch.inference_mode():
                logits = model(input_ids=torch.tensor([output.prompt_token_ids])).logits[0]
            np.testing.assert_allclose(output.outputs.probs, logits.softmax(0), atol=1e-4)
        (raw,) = llm.classify(TEXTS[0], use_activation=False)
        assert abs(sum(raw.outputs.probs) - 1) > 1e-3
        with pytest.raises(pageant.BadRequest, match="labels; expected one"):
            llm.score("w1", "w2")


@pytest.mark.parametrize("kind", ["bert_pairs", "roberta_pairs", "qwen3_pairs"])
def test_pairs_are_scored_as_by_transformers(saved: Callable[..., Saved], kind: str) -> None:
    path, model, tokenizer = saved(kind)
    model.config.pad_token_id = 0
    with serving(path) as llm:
        found = llm.score(TEXTS[0], TEXTS[4:9])
        for second, output in zip(TEXTS[4:9], found, strict=True):
            types = kind == "bert_pairs"
            given = tokenizer(TEXTS[0], second, return_tensors="pt", return_token_type_ids=types)
            with torch.inference_mode():
                logit = model(**given).logits[0, 0]
            assert abs(output.outputs.score - float(logit.sigmoid())) < 1e-4
            assert output.prompt_token_ids == given["input_ids"][0].tolist()
        with pytest.raises(pageant.BadRequest, match="data_1 has 2 texts"):
            llm.score(["a", "b"], ["c", "d", "e"])


def test_an_embedder_scores_by_cosines(saved: Callable[..., Saved]) -> None:
    model = saved("bert", "mean", pooling="mean")
    with serving(model[0]) as llm:
        (output,) = llm.score(TEXTS[1], TEXTS[3])
    assert (
        abs(
            output.outputs.score
            - cosine(embedded(model, "mean", TEXTS[1]), embedded(model, "mean", TEXTS[3]))
        )
        < 1e-5
    )


def test_a_reranker_that_answers_yes_or_no(saved: Callable[..., Saved]) -> None:
    template = (
        "{% for m in messages %}{% if m.role == 'query' %}w1 w2 {{ m.content }}{% endif %}"
        "{% if m.role == 'document' %} w3 {{ m.content }} w4{% endif %}{% endfor %}"
    )
    path, model, tokenizer = saved("qwen3_causal", "reranker")
    (path / "chat_template.jinja").write_text(template)
    overrides = {"classifier_from_token": ["no", "yes"], "is_original_qwen3_reranker": True}
    with serving(path, runner="pooling", hf_overrides=overrides) as llm:
        (output,) = llm.score(TEXTS[0], TEXTS[2])
    ids = tokenizer(f"w1 w2 {TEXTS[0]} w3 {TEXTS[2]} w4", add_special_tokens=False)["input_ids"]
    assert output.prompt_token_ids == ids
    with torch.inference_mode():
        logits = model(input_ids=torch.tensor([ids])).logits[0, -1]
    no, yes = logits[tokenizer.convert_tokens_to_ids(["no", "yes"])]
    assert abs(output.outputs.score - float((yes - no).sigmoid())) < 1e-4


def test_one_engine_generates_and_embeds(saved: Callable[..., Saved]) -> None:
    model = saved("qwen3_causal", "both", pooling="mean")
    settings = {"runner": "generate", "convert": "embed", "max_num_batched_tokens": 48}
    with serving(model[0], **settings) as llm:
        params = pageant.SamplingParams(max_tokens=40, temperature=0, ignore_eos=True)
        alone = [one.outputs[0].token_ids for one in llm.generate(TEXTS[:4], params)]
        names = llm.enqueue(TEXTS[:4], params)
        found = llm.embed(TEXTS)
        beside = [one.outputs[0].token_ids for one in llm.wait_for_completion()]
        assert beside == alone and len(names) == 4
        for one, output in zip(TEXTS, found, strict=True):
            assert cosine(output.outputs.embedding, embedded(model, "mean", one)) >= 0.99999


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"pooling": None}, "no modules.json, and no pooler_config; expected how the model pools"),
        ({"pooling": "max"}, "the pooling_mode flags is 'max'"),
        ({"pooling": "weightedmean", "by_name": True}, "pooling_mode is 'weightedmean'"),
    ],
)
def test_pooling_that_is_not_said_or_not_known_is_refused(
    tmp_path: Path, change: dict[str, Any], why: str
) -> None:
    save_model(tmp_path, "bert", **change)
    with pytest.raises(pageant.CheckpointError, match=why):
        pageant.LLM(tmp_path, **SMALL)


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"pooling_type": "STEP"}, r"pooler_config.pooling_mode is 'step'"),
        ({"pooling_type": 3}, "pooler_config.pooling_type is 3"),
        ({"pooling": "CLS"}, "pooler_config.pooling is 'CLS'; expected pooling_type or normalize"),
    ],
)
def test_a_pooling_that_a_user_says_and_nobody_knows_is_refused(
    saved: Callable[..., Saved], config: dict[str, Any], why: str
) -> None:
    with pytest.raises(pageant.CheckpointError, match=why):
        pageant.LLM(saved("bert", "plain")[0], pooler_config=config, **SMALL)


def test_any_width_is_cut_of_a_model_that_says_no_list(saved: Callable[..., Saved]) -> None:
    model = saved("bert", "any_width", pooling="mean", config={"is_matryoshka": True})
    size = embedded(model, "mean", TEXTS[0]).shape[-1]
    with serving(model[0]) as llm:
        (whole,) = llm.embed(TEXTS[0], PoolingParams(normalize=False))
        for width in (1, 13, size):
            (cut,) = llm.embed(TEXTS[0], dimensions=width)
            first = torch.tensor(whole.outputs.embedding[:width])
            np.testing.assert_allclose(cut.outputs.embedding, F.normalize(first, dim=0), atol=1e-6)
        for width in (0, size + 1):
            with pytest.raises(pageant.BadRequest, match=f"dimensions is {width}"):
                llm.embed(TEXTS[0], dimensions=width)


def test_modules_before_the_pooling_are_refused(tmp_path: Path) -> None:
    save_model(tmp_path, "bert", pooling="mean", dense=24)
    listed = json.loads((tmp_path / "modules.json").read_text())
    (tmp_path / "modules.json").write_text(json.dumps([listed[0], *listed[:0:-1]]))
    with pytest.raises(
        pageant.CheckpointError, match="a Pooling module behind others; expected Pooling right"
    ):
        pageant.LLM(tmp_path, **SMALL)


def test_a_chat_template_that_is_given_puts_pairs_together(tmp_path: Path) -> None:
    save_model(tmp_path, "qwen3_pairs")
    template = tmp_path / "pairs.jinja"
    template.write_text(
        "{# query and document #}{% for one in messages %}{{ one.content }} {{ 'w9 ' * loop.first }}{% endfor %}"
    )
    with serving(tmp_path, chat_template=str(template)) as llm:
        (output,) = llm.score("w1", "w2")
        (expected,) = llm.encode("w1 w9 w2 ")
    assert [
        *output.prompt_token_ids,
        3,
    ] == expected.prompt_token_ids  # templates have their own special tokens


def test_label_counts_that_disagree_are_refused(saved: Callable[..., Saved], tmp_path: Path) -> None:
    save_model(tmp_path, "bert_labels")
    change_config(tmp_path, id2label={str(index): f"L{index}" for index in range(4)})
    with pytest.raises(
        pageant.CheckpointError, match=r"classifier.weight has shape \[3, 64\]; expected \[4, 64\]"
    ):
        pageant.LLM(tmp_path, **SMALL)


def test_a_generating_model_does_not_embed() -> None:
    demo = Path(pageant.__file__).parent / "models/demo"
    with (
        pageant.LLM(demo, placement="one", threads=1, progress=False, num_blocks=64) as llm,
        pytest.raises(pageant.BadRequest, match="this model generates text"),
    ):
        llm.embed("a")
    with pytest.raises(pageant.TopologyError, match="runner"):
        pageant.LLM(demo, runner="draft", progress=False)


def test_the_pooling_of_a_plain_folder_can_be_said(saved: Callable[..., Saved]) -> None:
    model = saved("bert", "plain")
    with serving(model[0], pooler_config={"pooling_type": "CLS", "normalize": False}) as llm:
        (output,) = llm.embed(TEXTS[1])
    assert dataclasses.is_dataclass(output)
    np.testing.assert_allclose(
        output.outputs.embedding, embedded(model, "cls", TEXTS[1], normal=False), atol=1e-4
    )
