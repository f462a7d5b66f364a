"""`pageant bench images`: what a model that takes images costs texts, and answers to images beside transformers.

A small LLaVA shape with random weights, and a text model of the same decoder. In turn, both engines answer texts, and
Pageant and transformers answer questions about images that nobody has seen before.
"""

from __future__ import annotations

import json as json_module
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from pageant.actors.client.llm import LLM
from pageant.protocol.sampling import SamplingParams
from pageant.scripts.bench.models import add_tokenizer
from pageant.scripts.bench.progress import rounds
from pageant.scripts.bench.workloads import random_ids
from pageant.scripts.report import Json, in_turns, publish

IMAGE = 4_100  # behind the ids of the demo's tokenizer
TEXT_SHAPE: dict[str, Any] = {
    "vocab_size": 4_160,
    "hidden_size": 512,
    "intermediate_size": 1536,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 4096,
}
TOWER_SHAPE: dict[str, Any] = {
    "hidden_size": 256,
    "intermediate_size": 1024,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "image_size": 224,
    "patch_size": 14,
}
TEXTS, TEXT_TOKENS = 16, 128
"""Prompts of a batch of texts, and tokens of each."""
MODELS = ("text model", "image model")

Pixels = Any
"""An image: uint8 [height, width, 3]."""


def bench(
    output: Annotated[int, typer.Option(help="Tokens of each answer.")] = 64,
    rounds_: Annotated[int, typer.Option("--rounds", help="The median of them counts.")] = 5,
    dtype: Annotated[str, typer.Option(help="Of the weights.")] = "bfloat16",
    threads: Annotated[int | None, typer.Option(help="That compute.")] = None,
    json: Json = None,
) -> None:
    """Texts on a model that takes images, beside the text model; an image's answer beside transformers."""
    chance, pixels = random.Random(0), np.random.default_rng(0)
    took: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory(prefix="pageant-bench-") as folder:
        text_model, image_model = save_llava(Path(folder), dtype)
        settings: dict[str, Any] = {
            **{"progress": False, "threads": threads, "enable_prefix_caching": False},
            **{"max_model_len": 1024, "kv_cache_memory": "256MiB"},
        }
        with LLM(text_model, **settings) as text, LLM(image_model, **settings) as seeing:
            beside = _Transformers(image_model, threads)
            _seconds(text, _texts(chance), 4)
            for turn in rounds("all", rounds_ + 1):
                texts = _texts(chance)
                picture, question = _picture(pixels), random_ids(chance, 16)
                runs: dict[str, Callable[[], float]] = {
                    MODELS[0]: partial(_seconds, text, texts, output),
                    MODELS[1]: partial(_seconds, seeing, texts, output),
                    "image": partial(_seconds, seeing, [_about(picture, question)], output),
                    "transformers": partial(beside.seconds, picture, question, output),
                }
                for name, run in in_turns(list(runs.items()), turn):
                    seconds = run()
                    if turn:  # the first round warms up
                        took.setdefault(name, []).append(seconds)
    publish(*_report(took, output, dtype), json)


class _Transformers:
    """transformers' own model and image processor."""

    def __init__(self, path: Path, threads: int | None) -> None:
        import torch
        from transformers import LlavaForConditionalGeneration
        from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

        if threads is not None:
            torch.set_num_threads(threads)
        self._model: Any = LlavaForConditionalGeneration.from_pretrained(path, dtype="auto")
        self._processor: Any = CLIPImageProcessorPil.from_pretrained(path)

    def seconds(self, picture: Pixels, question: list[int], output: int) -> float:
        """Return how long an answer of so many tokens about an image takes, its processing included."""
        import torch

        began = time.perf_counter()
        with torch.inference_mode():
            found = self._processor(images=[picture], return_tensors="pt")["pixel_values"]
            ids = torch.tensor([[IMAGE] * num_image_tokens() + question])
            self._model.generate(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                pixel_values=found.to(self._model.dtype),
                **{"max_new_tokens": output, "min_new_tokens": output, "do_sample": False},
            )
        return time.perf_counter() - began


def num_image_tokens() -> int:
    """Return how many tokens an image has."""
    return int((TOWER_SHAPE["image_size"] // TOWER_SHAPE["patch_size"]) ** 2)


def _texts(chance: random.Random) -> list[Any]:
    return [random_ids(chance, TEXT_TOKENS) for _ in range(TEXTS)]


def _picture(pixels: np.random.Generator) -> Pixels:
    return pixels.integers(0, 256, (240, 320, 3), dtype=np.uint8)


def _about(picture: Pixels, question: list[int]) -> dict[str, Any]:
    """Return the prompt of a question behind an image."""
    return {"prompt_token_ids": [IMAGE, *question], "multi_modal_data": {"image": picture}}


def _seconds(llm: LLM, prompts: list[Any], output: int) -> float:
    """Return how long answers of so many tokens each take, all prompts at once."""
    params = SamplingParams(temperature=0, max_tokens=output, ignore_eos=True, detokenize=False)
    began = time.perf_counter()
    llm.generate(prompts, params, progress=False)
    return time.perf_counter() - began


def _report(took: dict[str, list[float]], output: int, dtype: str) -> tuple[dict[str, Any], list[str]]:
    def ratio(above: str, below: str) -> float:
        each = [a / b for a, b in zip(took[above], took[below], strict=True)]
        return round(statistics.median(each), 3)

    median = {name: round(statistics.median(each), 4) for name, each in took.items()}
    figures: dict[str, Any] = {
        "shape": {"text": TEXT_SHAPE, "tower": TOWER_SHAPE, "dtype": dtype},
        "work": {
            "texts": TEXTS,
            "text_tokens": TEXT_TOKENS,
            "image_tokens": num_image_tokens(),
            "output": output,
        },
        "seconds": median,
        "rounds": {name: [round(one, 4) for one in each] for name, each in took.items()},
        "texts_image_model_over_text_model": ratio(MODELS[1], MODELS[0]),
        "transformers_over_pageant": ratio("transformers", "image"),
    }
    return figures, [
        f"{TEXTS} texts: {median[MODELS[1]]:.3f} s on the model that takes images, "
        f"{figures['texts_image_model_over_text_model']} of the text model's time",
        f"an image, new: {median['image']:.3f} s, {figures['transformers_over_pageant']} times as fast as "
        "transformers",
    ]


def save_llava(folder: Path, dtype: str) -> tuple[Path, Path]:
    """Save a text model and a LLaVA of the same decoder, of random weights and with the demo's tokenizer."""
    import torch
    import transformers
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
    from transformers.utils import logging

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    torch.manual_seed(0)
    kind, text = getattr(torch, dtype), transformers.LlamaConfig(**TEXT_SHAPE)
    config = transformers.LlavaConfig(
        vision_config=transformers.CLIPVisionConfig(**TOWER_SHAPE),
        text_config=text,
        image_token_index=IMAGE,
        image_seq_length=num_image_tokens(),
    )
    paths = folder / "text", folder / "llava"
    classes: tuple[Any, Any] = transformers.LlamaForCausalLM, transformers.LlavaForConditionalGeneration
    for path, made, given in zip(paths, classes, (text, config), strict=True):
        made(given).to(kind).save_pretrained(path)
        add_tokenizer(path)
    edge = TOWER_SHAPE["image_size"]
    processor: Any = CLIPImageProcessorPil(
        size={"shortest_edge": edge}, crop_size={"height": edge, "width": edge}
    )
    written = json_module.dumps(processor.to_dict(), default=str)
    (paths[1] / "preprocessor_config.json").write_text(written)
    return paths
