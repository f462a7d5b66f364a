"""Tiny random models that see, saved by transformers, and what transformers itself makes of a prompt with images."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import transformers
from PIL import Image
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil
from transformers.models.pixtral.image_processing_pil_pixtral import PixtralImageProcessorPil
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

IMAGE, VIDEO, BEGIN, END, ROW_END = 250, 251, 252, 253, 249
TEXT: dict[str, Any] = {
    "vocab_size": 256,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.15,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_TOWER = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 2}
_PIXTRAL = {**_TOWER, "image_size": 64, "patch_size": 16}
_QWEN_TOWER = {
    "depth": 2,
    "num_heads": 2,
    "patch_size": 14,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
}
_QWEN_IDS = {
    "image_token_id": IMAGE,
    "video_token_id": VIDEO,
    "vision_start_token_id": BEGIN,
    "vision_end_token_id": END,
}
_SECTIONS = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]}
_MARKS = {"image_break_token_id": ROW_END, "image_end_token_id": END}
_QWEN_SIZE = {"shortest_edge": 56 * 56, "longest_edge": 28 * 28 * 12}


class Family(NamedTuple):
    """A family of models that see."""

    model: Any
    config: Any
    processor: Any


def _llava() -> Any:
    return transformers.LlavaConfig(
        vision_config=transformers.CLIPVisionConfig(**_TOWER, image_size=56, patch_size=14),
        text_config=transformers.LlamaConfig(**TEXT),
        image_token_index=IMAGE,
        image_seq_length=16,
    )


def _pixtral() -> Any:
    return transformers.LlavaConfig(
        vision_config=transformers.PixtralVisionConfig(**_PIXTRAL),
        text_config=transformers.MistralConfig(**TEXT),
        image_token_index=IMAGE,
        vision_feature_layer=-1,
        vision_feature_select_strategy="full",
        **_MARKS,
    )


def _mistral3() -> Any:
    return transformers.Mistral3Config(
        vision_config=transformers.PixtralVisionConfig(**_PIXTRAL).to_dict(),
        text_config=transformers.MistralConfig(**TEXT).to_dict(),
        image_token_index=IMAGE,
        spatial_merge_size=2,
        **_MARKS,
    )


def _gemma3(window: int = 24) -> Any:
    kinds = ["sliding_attention", "sliding_attention", "full_attention"]
    return transformers.Gemma3Config(
        text_config=transformers.Gemma3TextConfig(
            **TEXT, head_dim=16, sliding_window=window, layer_types=kinds
        ),
        vision_config=transformers.SiglipVisionConfig(**_TOWER, image_size=56, patch_size=14),
        mm_tokens_per_image=4,
        image_token_index=IMAGE,
        boi_token_index=BEGIN,
        eoi_token_index=END,
    )


def _qwen2(config: Any, tower: dict[str, Any]) -> Any:
    return config(
        text_config={**TEXT, "rope_parameters": _SECTIONS},
        vision_config={**_QWEN_TOWER, **tower},
        **_QWEN_IDS,
    )


def _qwen3() -> Any:
    tower = {"hidden_size": 32, "intermediate_size": 48, "patch_size": 16, "out_hidden_size": 64}
    return transformers.Qwen3VLConfig(
        text_config={**TEXT, "head_dim": 16, "rope_parameters": {**_SECTIONS, "mrope_interleaved": True}},
        vision_config={
            **_QWEN_TOWER,
            **tower,
            "deepstack_visual_indexes": [0, 1],
            "num_position_embeddings": 64,
        },
        **_QWEN_IDS,
    )


def _qwen3_5(config: Any = transformers.Qwen3_5Config, **more: Any) -> Any:
    """Return a model three of whose four layers are recurrent."""
    tower = {"hidden_size": 32, "intermediate_size": 48, "patch_size": 16, "out_hidden_size": 64}
    recurrent = {
        "num_hidden_layers": 4,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 8,
    }
    rope = {**_SECTIONS, "mrope_interleaved": True, "partial_rotary_factor": 0.5}
    return config(
        text_config={**TEXT, **recurrent, "head_dim": 32, "rope_parameters": rope, **more},
        vision_config={**_QWEN_TOWER, **tower, "num_position_embeddings": 64},
        **_QWEN_IDS,
    )


_QWEN3_PROCESSOR = Qwen2VLImageProcessorPil(
    size=_QWEN_SIZE, patch_size=16, image_mean=[0.5] * 3, image_std=[0.5] * 3
)
FAMILIES = {
    "llava": Family(
        transformers.LlavaForConditionalGeneration,
        _llava,
        CLIPImageProcessorPil(size={"shortest_edge": 56}, crop_size={"height": 56, "width": 56}),
    ),
    "qwen2_vl": Family(
        transformers.Qwen2VLForConditionalGeneration,
        lambda: _qwen2(transformers.Qwen2VLConfig, {"embed_dim": 32, "hidden_size": 64, "mlp_ratio": 2}),
        Qwen2VLImageProcessorPil(size=_QWEN_SIZE),
    ),
    "qwen2_5_vl": Family(
        transformers.Qwen2_5_VLForConditionalGeneration,
        lambda: _qwen2(
            transformers.Qwen2_5_VLConfig,
            {
                "hidden_size": 32,
                "intermediate_size": 48,
                "out_hidden_size": 64,
                "fullatt_block_indexes": [1],
                "window_size": 56,
            },
        ),
        Qwen2VLImageProcessorPil(size=_QWEN_SIZE),
    ),
    "qwen3_vl": Family(
        transformers.Qwen3VLForConditionalGeneration,
        _qwen3,
        _QWEN3_PROCESSOR,
    ),
    "gemma3": Family(
        transformers.Gemma3ForConditionalGeneration,
        _gemma3,
        Gemma3ImageProcessorPil(size={"height": 56, "width": 56}),
    ),
    "gemma3_narrow": Family(  # its windows are shorter than an image, which sees itself all the same
        transformers.Gemma3ForConditionalGeneration,
        lambda: _gemma3(window=3),
        Gemma3ImageProcessorPil(size={"height": 56, "width": 56}),
    ),
    "pixtral": Family(
        transformers.LlavaForConditionalGeneration,
        _pixtral,
        PixtralImageProcessorPil(size={"longest_edge": 96}, patch_size={"height": 16, "width": 16}),
    ),
    "mistral3": Family(
        transformers.Mistral3ForConditionalGeneration,
        _mistral3,
        PixtralImageProcessorPil(size={"longest_edge": 96}, patch_size={"height": 32, "width": 32}),
    ),
}
RECURRENT = {
    "qwen3_5": Family(transformers.Qwen3_5ForConditionalGeneration, _qwen3_5, _QWEN3_PROCESSOR),
    "qwen3_5_moe": Family(
        transformers.Qwen3_5MoeForConditionalGeneration,
        lambda: _qwen3_5(
            transformers.Qwen3_5MoeConfig,
            num_experts=4,
            num_experts_per_tok=2,
            moe_intermediate_size=32,
            shared_expert_intermediate_size=32,
        ),
        _QWEN3_PROCESSOR,
    ),
}
"""Families whose states parts of an engine cannot be given by hand: see test_recurrent_images.py."""

SIZES = ((61, 97), (130, 45), (33, 34))
"""Width and height of images, none of which a tower takes as it is."""


def images(seed: int = 0) -> list[Image.Image]:
    """Return images of noise that is smooth enough to be told apart after it was resized."""
    generator = np.random.default_rng(seed)
    coarse = [generator.integers(0, 255, (5, 5, 3), dtype=np.uint8) for _ in SIZES]
    return [
        Image.fromarray(one).resize(size, Image.Resampling.BICUBIC)
        for one, size in zip(coarse, SIZES, strict=True)
    ]


def png(picture: Image.Image) -> bytes:
    """Return an image as a file, without loss."""
    file = io.BytesIO()
    picture.save(file, "PNG")
    return file.getvalue()


class Seeing:
    """A model of a family, in memory and in a folder."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.path, self.family = name, folder / name, (FAMILIES | RECURRENT)[name]
        torch.manual_seed(len(name))
        self.model = self.family.model(self.family.config()).eval().float()
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.add_(0.05 * torch.randn_like(parameter))
        self.model.save_pretrained(self.path)
        written = self.family.processor.to_dict()
        (self.path / "preprocessor_config.json").write_text(json.dumps(written, default=str))

    @property
    def placeholder(self) -> int:
        """The token that stands for an image in a prompt."""
        return BEGIN if self.name.startswith("gemma3") else IMAGE

    def prompt(self, tokens: Sequence[int | str]) -> list[int]:
        """Return the tokens of a prompt in which "image" stands for an image, as the family's templates have it."""
        marked = (BEGIN, IMAGE, END) if self.name.startswith("qwen") else (self.placeholder,)
        return [token for one in tokens for token in (marked if isinstance(one, str) else (one,))]

    def inputs(self, token_ids: Sequence[int], pictures: Sequence[Image.Image]) -> dict[str, Any]:
        """Return transformers' inputs of a prompt in which placeholders stand for images."""
        if not pictures:
            return {"input_ids": torch.tensor([token_ids])}
        found = dict(self.family.processor(images=list(pictures), return_tensors="pt"))
        found.pop("num_crops", None)
        left = iter(range(len(pictures)))
        ids: list[int] = []
        for token in token_ids:
            ids += self._tokens(found, next(left)) if token == self.placeholder else [token]
        given = {**found, "input_ids": torch.tensor([ids])}
        seen = (given["input_ids"] == IMAGE).long()
        if self.name.startswith("qwen"):
            given["mm_token_type_ids"] = seen.int()
        if self.name.startswith("gemma3"):
            given["token_type_ids"] = seen
        return given

    def _tokens(self, found: dict[str, Any], index: int) -> list[int]:
        """Return the tokens of an image, by what transformers' processor says of it."""
        if self.name == "llava":
            return [IMAGE] * 16
        if self.name.startswith("gemma3"):
            return [BEGIN, *[IMAGE] * 4, END]
        if self.name.startswith("qwen"):
            return [IMAGE] * (int(found["image_grid_thw"][index].prod()) // 4)
        edge = 32 if self.name == "mistral3" else 16
        height, width = (int(one) // edge for one in found["image_sizes"][index])
        return [*([*[IMAGE] * width, ROW_END] * height)[:-1], END]

    @torch.inference_mode()
    def logits(self, token_ids: Sequence[int], pictures: Sequence[Image.Image]) -> torch.Tensor:
        """Return logits, float32 [tokens, vocab_size], of a prompt."""
        logits: torch.Tensor = self.model(**self.inputs(token_ids, pictures)).logits[0]
        return logits

    @torch.inference_mode()
    def greedy(self, token_ids: Sequence[int], pictures: Sequence[Image.Image], count: int) -> list[int]:
        """Return so many tokens that follow a prompt."""
        given = self.inputs(token_ids, pictures)
        found = self.model.generate(**given, max_new_tokens=count, min_new_tokens=count, do_sample=False)
        tokens: list[int] = found[0, given["input_ids"].shape[1] :].tolist()
        return tokens
