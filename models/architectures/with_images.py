"""Decoders of models that see: each is a family of texts, described by a section of the configuration.

Their vision towers are not loaded with them: `pageant.models.vision` has these.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from pageant.models.architectures import gemma3, llama, mistral, qwen2, qwen3, qwen3_5
from pageant.models.architectures.common import Architecture
from pageant.models.architectures.rope import rope_parameters
from pageant.models.config import Config
from pageant.models.names import Names
from pageant.models.spec import DecoderSpec

__all__ = ["ARCHITECTURES", "text_config"]

_LLAMA: dict[str, Any] = {
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
    "vocab_size": 32000,
}
_MISTRAL = {
    **_LLAMA,
    "intermediate_size": 14336,
    "num_key_value_heads": 8,
    "max_position_embeddings": 4096 * 32,
}
_GEMMA3: dict[str, Any] = {
    "vocab_size": 262_208,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 131_072,
    "rms_norm_eps": 1e-6,
    "query_pre_attn_scalar": 256,
    "tie_word_embeddings": True,
}
_FAMILIES: dict[str, tuple[Architecture, dict[str, Any]]] = {
    "llama": (llama.ARCHITECTURE, _LLAMA),
    "mistral": (mistral.ARCHITECTURE, _MISTRAL),
    "qwen2": (qwen2.ARCHITECTURE, {}),
    "qwen3": (qwen3.ARCHITECTURE, {}),
    "gemma3_text": (gemma3.ARCHITECTURE, _GEMMA3),
    "qwen3_5_text": (qwen3_5.ARCHITECTURE, {}),
    "qwen3_5_moe_text": (qwen3_5.MIXTURE, {}),
}
"""Families of texts by their `model_type`, with values that older configurations leave to transformers."""


def text_config(config: Config) -> Config:
    """Return the section about texts; the whole configuration where it has none, as of older Qwen2-VLs."""
    section = config.section("text_config")
    if not section.values:
        return config
    whole = config.values
    tied = {"tie_word_embeddings": whole["tie_word_embeddings"]} if "tie_word_embeddings" in config else {}
    default = _FAMILIES.get(section.text("model_type", "llama"), (None, {}))[1]
    return Config({**default, **section.values, **tied}, config.path, section.prefix)


def _by_model_type(config: Config) -> DecoderSpec:
    text = text_config(config)
    kind = text.text("model_type", "llama")
    if kind not in _FAMILIES:
        raise text.wrong("model_type", kind, f"one of {', '.join(_FAMILIES)}")
    return _FAMILIES[kind][0].spec(text)


def _gemma3(config: Config) -> DecoderSpec:
    return replace(_by_model_type(config), sees_whole_images=True)


def _with_sections(
    family: Architecture, *, interleaved: bool = False, default: tuple[int, int, int] | None = None
) -> Callable[[Config], DecoderSpec]:
    """Return the reader of a family whose rotations are by time, height and width (M-RoPE).

    Args:
        interleaved: frequencies take turns, where the configuration does not say.
        default: the frequencies of each, where the configuration does not say.
    """

    def read(config: Config) -> DecoderSpec:
        text = text_config(config)
        key = "rope_parameters" if "rope_parameters" in text else "rope_scaling"
        section = rope_parameters(text) if key == "rope_parameters" else text.section(key)
        sections = section.counts("mrope_section") or (default or ())
        plain = {**section.values, **_PLAIN} if _is_mrope(section.values) else dict(section.values)
        spec = family.spec(Config({**text.values, key: plain}, text.path, text.prefix))
        vision = config.section("vision_config")
        if (added := len(vision.counts("deepstack_visual_indexes"))) >= spec.num_layers:
            raise vision.wrong("deepstack_visual_indexes", added, f"fewer than the {spec.num_layers} layers")
        rope = next((layer.rope for layer in spec.layers if layer.rope is not None), None)
        if rope is None or len(sections) != 3 or sum(sections) != rope.rotary_dim // 2:
            half = None if rope is None else rope.rotary_dim // 2
            raise section.wrong("mrope_section", list(sections), f"three whole numbers of the sum {half}")
        rope = replace(
            rope,
            sections=(sections[0], sections[1], sections[2]),
            interleaved=section.flag("mrope_interleaved", interleaved),
        )
        layers = (layer if layer.rope is None else replace(layer, rope=rope) for layer in spec.layers)
        return replace(spec, layers=tuple(layers))

    return read


_PLAIN = {"rope_type": "default", "type": "default"}


def _is_mrope(section: Mapping[str, Any]) -> bool:
    """Tell whether rotations are scaled by nothing, whichever name that has."""
    return section.get("rope_type", section.get("type", "mrope")) in ("mrope", "default")


_TOWERS = ("vision_tower.", "multi_modal_projector.", "visual.")


def _names(names: Names) -> Names:
    """Return the names of a family within a model that sees, of which there are three kinds."""
    return replace(
        names,
        prefixes={
            "language_model.model.": "model.",
            "language_model.lm_head.": "lm_head.",
            "model.language_model.": "model.",
            **names.prefixes,
        },
        ignored_modules=(*names.ignored_modules, *_TOWERS, *(f"model.{name}" for name in _TOWERS)),
    )


def _architecture(
    name: str, family: Architecture, spec: Callable[[Config], DecoderSpec] = _by_model_type
) -> Architecture:
    return Architecture(name, spec, _names(family.names), family.mtp)


ARCHITECTURES: dict[str, Architecture] = {
    one.name: one
    for one in (
        _architecture("LlavaForConditionalGeneration", llama.ARCHITECTURE),
        _architecture("Mistral3ForConditionalGeneration", mistral.ARCHITECTURE),
        _architecture("Gemma3ForConditionalGeneration", gemma3.ARCHITECTURE, _gemma3),
        _architecture(
            "Qwen2VLForConditionalGeneration", qwen2.ARCHITECTURE, _with_sections(qwen2.ARCHITECTURE)
        ),
        _architecture(
            "Qwen2_5_VLForConditionalGeneration", qwen2.ARCHITECTURE, _with_sections(qwen2.ARCHITECTURE)
        ),
        _architecture(
            "Qwen3VLForConditionalGeneration",
            qwen3.ARCHITECTURE,
            _with_sections(qwen3.ARCHITECTURE, interleaved=True),
        ),
        *(
            _architecture(
                f"{name}ForConditionalGeneration",
                family,
                _with_sections(family, interleaved=True, default=(11, 11, 10)),
            )
            for name, family in (("Qwen3_5", qwen3_5.ARCHITECTURE), ("Qwen3_5Moe", qwen3_5.MIXTURE))
        ),
    )
}
