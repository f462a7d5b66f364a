"""tokenizer.json, tokenizer_config.json and chat templates of a GGUF file. Knows no torch.

`gpt2` vocabularies are byte-level BPE with merges. `llama` ones are SentencePiece: merges follow from the tokens, in
the order of their scores. Texts are split first by the rule that the file names (`pre_tokenizers`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from pageant.models.gguf.metadata import Metadata
from pageant.models.gguf.pre_tokenizers import ADD_BOS, IGNORE_MERGES, RULES, normalizer_of
from pageant.models.gguf.vocabulary import TokenKind, Vocabulary

__all__ = ["chat_templates", "make_tokenizer", "make_tokenizer_config"]

_ELSEWHERE = "Name another folder's tokenizer by `tokenizer`, or set `skip_tokenizer_init: true`."
_TEMPLATE = "tokenizer.chat_template"
_SPACE = "▁"


def make_tokenizer(metadata: Metadata, vocabulary: Vocabulary | None) -> dict[str, Any]:
    """Return a tokenizer.json. Raises CheckpointError where the file has no tokenizer, or one that is not known."""
    if vocabulary is None:
        raise metadata.missing("tokenizer.ggml.tokens", "a tokenizer in the file", _ELSEWHERE)
    if vocabulary.model == "gpt2":
        parts = _byte_level(metadata, vocabulary)
    elif vocabulary.model == "llama":
        parts = _sentencepiece(metadata, vocabulary)
    else:
        raise metadata.wrong("tokenizer.ggml.model", repr(vocabulary.model), "gpt2 or llama", _ELSEWHERE)
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": list(_added_tokens(vocabulary)),
        **parts,
        "post_processor": _post_processor(vocabulary),
    }


def make_tokenizer_config(vocabulary: Vocabulary) -> dict[str, Any]:
    """Return a tokenizer_config.json: tokens with a role."""
    roles = {role: vocabulary.tokens[number] for role, number in vocabulary.roles.items()}
    return {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False, **roles}


def chat_templates(metadata: Metadata) -> dict[str, str]:
    """Return the file's chat templates by name; the main one is `default`."""
    found = {}
    for key in metadata.file.metadata:
        if key == _TEMPLATE:
            found["default"] = metadata.text(key)
        elif key.startswith(f"{_TEMPLATE}."):
            found[key.removeprefix(f"{_TEMPLATE}.")] = metadata.text(key)
    return found


def _byte_level(metadata: Metadata, vocabulary: Vocabulary) -> dict[str, Any]:
    if vocabulary.merges is None:
        raise metadata.missing("tokenizer.ggml.merges", "the merges of the tokenizer", _ELSEWHERE)
    pre = vocabulary.pre or "default"
    if pre not in RULES:
        known = f"one of {', '.join(RULES)}"
        raise metadata.wrong("tokenizer.ggml.pre", repr(pre), known, _ELSEWHERE)
    splits = [
        {"type": "Split", "pattern": {"Regex": rule}, "behavior": "Isolated", "invert": False}
        for rule in RULES[pre]
    ]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    return {
        "normalizer": normalizer_of(pre),
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*splits, byte_level]},
        "decoder": {**byte_level, "add_prefix_space": True, "use_regex": True},
        "model": _bpe(
            vocabulary,
            list(_known_merges(metadata, vocabulary, vocabulary.merges)),
            ignore_merges=pre in IGNORE_MERGES,
        ),
    }


def _known_merges(metadata: Metadata, vocabulary: Vocabulary, merges: list[str]) -> Iterator[tuple[str, str]]:
    known = set(vocabulary.tokens)
    for index, merge in enumerate(merges):
        # A space divides the two; neither begins with one, since bytes are spelt by letters.
        first, divided, second = merge.partition(" ")
        if not divided or not first or not second or first + second not in known:
            expected = "two tokens with a space between, which together are a token"
            raise metadata.wrong(f"tokenizer.ggml.merges[{index}]", repr(merge[:80]), expected, _ELSEWHERE)
        yield first, second


def _sentencepiece(metadata: Metadata, vocabulary: Vocabulary) -> dict[str, Any]:
    if vocabulary.scores is None and vocabulary.merges is None:
        raise metadata.missing("tokenizer.ggml.scores", "the scores of the tokens", _ELSEWHERE)
    spaces = {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE}
    steps: list[dict[str, Any]] = [{"type": "Prepend", "prepend": _SPACE}] if vocabulary.add_space else []
    strip = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if vocabulary.add_space else []
    decoders = [
        {"type": "Replace", "pattern": {"String": _SPACE}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
        *strip,
    ]
    if vocabulary.merges is not None:
        merges = list(_known_merges(metadata, vocabulary, vocabulary.merges))
    else:
        merges = _merges_by_score(vocabulary)
    unknown = np.flatnonzero(vocabulary.kinds == TokenKind.UNKNOWN)
    number = vocabulary.roles.get("unk_token", int(unknown[0]) if len(unknown) else None)
    return {
        "normalizer": {"type": "Sequence", "normalizers": [*steps, spaces]},
        "pre_tokenizer": None,
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": _bpe(
            vocabulary,
            merges,
            unk_token=None if number is None else vocabulary.tokens[number],
            byte_fallback=bool((vocabulary.kinds == TokenKind.BYTE).any()),
            fuse_unk=True,
        ),
    }


def _merges_by_score(vocabulary: Vocabulary) -> list[tuple[str, str]]:
    """Return all pairs of tokens that make a token, those with the highest score first.

    Gemma's scores do not follow the order in which its merges were learned, but the tokens' own order does.
    """
    assert vocabulary.scores is not None, "they have been asked for"
    scores = vocabulary.scores.tolist()
    if vocabulary.architecture.startswith("gemma"):
        scores = [-float(index) for index in range(len(vocabulary.tokens))]
    merged = {TokenKind.NORMAL, TokenKind.USER_DEFINED}
    ids = {
        _spelt(token): index
        for index, (token, kind) in enumerate(zip(vocabulary.tokens, vocabulary.kinds.tolist(), strict=True))
        if kind in merged
    }
    found = []
    for token, index in ids.items():
        for cut in range(1, len(token)):
            first, second = token[:cut], token[cut:]
            if first in ids and second in ids:
                found.append((-scores[index], -len(first), ids[first], ids[second], first, second))
    found.sort()
    return [(first, second) for *_, first, second in found]


def _spelt(token: str) -> str:
    """A token as the model spells it, with its spaces replaced: files have runs of them as they are."""
    return token.replace(" ", _SPACE)


def _bpe(vocabulary: Vocabulary, merges: list[tuple[str, str]], **options: Any) -> dict[str, Any]:
    spell = _spelt if vocabulary.model == "llama" else str
    plain = {
        **{"dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None},
        **{"fuse_unk": False, "byte_fallback": False, "ignore_merges": False},
    }
    vocab = {spell(token): index for index, token in enumerate(vocabulary.tokens)}
    return {"type": "BPE", **plain, **options, "vocab": vocab, "merges": [list(pair) for pair in merges]}


def _added_tokens(vocabulary: Vocabulary) -> Iterator[dict[str, Any]]:
    """Tokens that are found whole in a text: control tokens, which are special, and those that users defined."""
    marked = (TokenKind.UNKNOWN, TokenKind.CONTROL, TokenKind.USER_DEFINED)
    strips = vocabulary.architecture == "phi3" and vocabulary.model == "llama"
    for index, kind in enumerate(vocabulary.kinds.tolist()):
        if kind not in marked:
            continue
        content = vocabulary.tokens[index]
        special = kind != TokenKind.USER_DEFINED
        yield {
            **{"id": index, "content": content, "single_word": False, "lstrip": False, "normalized": False},
            # Phi-3's markers take the blanks behind them along.
            "rstrip": strips and special and content not in ("<unk>", "<s>", "<|endoftext|>"),
            "special": special,
        }


def _post_processor(vocabulary: Vocabulary) -> dict[str, Any] | None:
    """The tokens before and after each text, by the file or by what its kind of tokenizer does anyway."""
    by_default = vocabulary.model == "llama" or vocabulary.pre in ADD_BOS
    add_bos = by_default if vocabulary.add_bos is None else vocabulary.add_bos
    wanted = {"bos_token": add_bos, "eos_token": bool(vocabulary.add_eos)}
    ids = {role: vocabulary.roles[role] for role, add in wanted.items() if add and role in vocabulary.roles}
    if not ids:
        return None
    special = {role: {"SpecialToken": {"id": vocabulary.tokens[ids[role]], "type_id": 0}} for role in ids}
    pieces: list[dict[str, Any]] = [special["bos_token"]] if "bos_token" in special else []
    pieces.append({"Sequence": {"id": "A", "type_id": 0}})
    if "eos_token" in special:
        pieces.append(special["eos_token"])
    second = [{"Sequence": {"id": "B", "type_id": 1}} if "Sequence" in piece else piece for piece in pieces]
    tokens = {
        vocabulary.tokens[number]: {
            "id": vocabulary.tokens[number],
            "ids": [number],
            "tokens": [vocabulary.tokens[number]],
        }
        for number in ids.values()
    }
    return {
        "type": "TemplateProcessing",
        "single": pieces,
        "pair": [*pieces, *second],
        "special_tokens": tokens,
    }
