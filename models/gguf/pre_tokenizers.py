r"""Rules by which byte-level tokenizers split a text before merges, by llama.cpp's names for them.

A rule is a sequence of regular expressions: each splits further what the one before has left. They are those of the
models' own tokenizers. Facts are from llama.cpp's `llama-vocab.cpp`, whose expressions stand for the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["ADD_BOS", "IGNORE_MERGES", "RULES", "normalizer_of"]

_ENDINGS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_BLANKS = r"\s+(?!\S)|\s+"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_SIGNS = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
_GPT2 = rf"'(?:[sdmt]|ll|ve|re)| ?\p{{L}}+| ?\p{{N}}+| ?[^\s\p{{L}}\p{{N}}]+|{_BLANKS}"
_LLAMA3 = rf"{_ENDINGS}|{_WORD}|\p{{N}}{{1,3}}|{_SIGNS}|{_BLANKS}"
_QWEN2 = rf"{_ENDINGS}|{_WORD}|\p{{N}}|{_SIGNS}|{_BLANKS}"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED = (rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+", rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*")
_CASED_SIGNS = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+"
_TEKKEN = rf"{_CASED[0]}|{_CASED[1]}|\p{{N}}|{_CASED_SIGNS}|{_BLANKS}"
_GPT4O = rf"{_CASED[0]}{_ENDINGS}?|{_CASED[1]}{_ENDINGS}?|\p{{N}}{{1,3}}|{_CASED_SIGNS}|{_BLANKS}"
_FALCON_SIGNS = r"[\p{P}\$\+<=>\^~\|`]+"
_DEEPSEEK3 = (
    r"\p{N}{1,3}",
    r"[一-龥぀-ゟ゠-ヿ]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|\s*[\r\n]+|{_BLANKS}",
)
_DEEPSEEK_CODER = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", r"[一-龥ࠀ-一가-퟿]+", r"\p{N}")

_BY_RULE: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = (
    (
        (_GPT2,),
        ("gpt-2", "default", "phi-2", "mpt", "olmo", "jais", "granite-docling", "trillion", "roberta-bpe"),
    ),
    ((r"\p{N}", _GPT2), ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b")),
    (
        (_LLAMA3,),
        (
            *("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"),
            *("dbrx", "smaug-bpe", "chatglm-bpe", "glm4"),
        ),
    ),
    (
        (_QWEN2,),
        ("qwen2", "deepseek-r1-qwen", "stablelm2", "hunyuan", "megrez", "kormo", "grok-2", "solar-open"),
    ),
    ((_TEKKEN,), ("tekken",)),
    ((_GPT4O,), ("gpt-4o", "llama4", "kanana2", "minimax-m2")),
    (_DEEPSEEK3, ("deepseek-v3", "hunyuan-dense", "joyai-llm")),
    (_DEEPSEEK_CODER, ("deepseek-coder",)),
    ((_FALCON_SIGNS, _GPT2, r"[0-9][0-9][0-9]"), ("falcon",)),
)
RULES: Mapping[str, tuple[str, ...]] = {name: rule for rule, names in _BY_RULE for name in names}
"""Regular expressions by the name in `tokenizer.ggml.pre`."""
_LLAMA3_NAMES = frozenset(
    {"llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"}
)
IGNORE_MERGES = _LLAMA3_NAMES | {"tekken"}
"""Rules of models that take a whole word for a token where it is one, whatever merges say."""
ADD_BOS = _LLAMA3_NAMES | {"tekken", "deepseek-v3", "deepseek-coder"}
"""Rules of models that begin each text with a token, where a file does not say."""


def normalizer_of(pre: str) -> dict[str, Any] | None:
    """Return what a text goes through before it is split; nothing for most."""
    return {"type": "NFC"} if pre in ("qwen2", "stablelm2") else None
