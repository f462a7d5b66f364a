"""The files of a tokenizer in a checkpoint's folder: configuration, declared tokens, chat templates."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer

from pageant.models.errors import CheckpointError

_NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_CONVERTIBLE = ("*.model", "vocab.json", "vocab.txt", "tekken.json")
_LFS_POINTER = b"version https://git-lfs"


class TokenizerError(CheckpointError):
    """A checkpoint's tokenizer cannot be read."""


def read_config(path: Path) -> dict[str, Any]:
    """Return tokenizer_config.json; in older checkpoints, with special_tokens_map.json over it."""
    config = _read_json(path / "tokenizer_config.json")
    if "added_tokens_decoder" in config:
        return config
    return config | _read_json(path / "special_tokens_map.json")


def read_tokenizer_config(path: Path) -> dict[str, Any]:
    """Return what a checkpoint's tokenizer_config.json says, with the chat template, which may be a file of its own.

    Raises:
        TokenizerError: a file cannot be read.
    """
    templates = read_chat_templates(path)
    named = [{"name": name, "template": template} for name, template in templates.items()]
    chat_template = templates["default"] if set(templates) == {"default"} else named
    return read_config(path) | ({"chat_template": chat_template} if templates else {})


def _read_json(path: Path) -> dict[str, Any]:
    """Return a JSON object; empty where there is no such file."""
    if not path.is_file():
        return {}
    try:
        value = json.loads(_read_text(path))
    except json.JSONDecodeError as error:
        raise TokenizerError(path, f"not valid JSON ({error})", "a JSON object", _remedy(path)) from error
    if not isinstance(value, dict):
        raise TokenizerError(path, f"a JSON {type(value).__name__}", "a JSON object", _remedy(path))
    return value


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise TokenizerError(path, f"not text ({error})", "UTF-8", _remedy(path)) from error


def read_backend(path: Path) -> Tokenizer:
    """Return the tokenizer of a `tokenizer.json`. Raises TokenizerError."""
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing narrower
        found = f"{path.stat().st_size} bytes that are not a tokenizer ({error})"
        expected = "a file written by the `tokenizers` library"
        raise TokenizerError(path, found, expected, _remedy(path)) from error


def _remedy(path: Path) -> str:
    with path.open("rb") as file:
        if file.read(len(_LFS_POINTER)) == _LFS_POINTER:
            return "This is a Git LFS pointer: run `git lfs pull` in the checkpoint's folder."
    return "Is the download complete? Fetch the file again."


def load_with_transformers(path: Path, chat_template: str | None = None) -> Any:
    """Return the tokenizer in a folder as transformers has it, for whoever works with that library.

    Args:
        chat_template: instead of the folder's own.

    Raises:
        TokenizerError: transformers cannot read it.
    """
    from transformers import AutoTokenizer  # takes seconds

    try:
        loaded = AutoTokenizer.from_pretrained(str(path), local_files_only=True, trust_remote_code=False)
    except Exception as error:  # a dozen converters, each with errors of its own
        raise TokenizerError(
            path, f"files that transformers cannot read ({error})", "a tokenizer", "Check the folder."
        ) from error
    if chat_template is not None:
        loaded.chat_template = chat_template
    return loaded


def convert_with_transformers(path: Path) -> tuple[Tokenizer, dict[str, str]]:
    """Return a tokenizer that transformers made of other files, with its special tokens. Raises TokenizerError."""
    if not any(True for pattern in _CONVERTIBLE for _ in path.glob(pattern)):
        raise TokenizerError(
            path,
            f"no tokenizer (but {_listing(path)})",
            "a tokenizer.json",
            "Copy the tokenizer's files from the model that this one was made from, name another folder's by "
            "`tokenizer`, or set `skip_tokenizer_init: true` to serve token ids alone.",
        )
    from transformers import AutoTokenizer  # takes seconds, and most checkpoints do not need it

    try:
        converted = AutoTokenizer.from_pretrained(str(path), local_files_only=True, trust_remote_code=False)
        return converted.backend_tokenizer, dict(converted.special_tokens_map)
    except Exception as error:  # a dozen converters, each with errors of its own
        raise TokenizerError(
            path,
            f"no tokenizer.json, but {_listing(path)}, which transformers could not convert ({error})",
            "a tokenizer.json",
            "Write one with `AutoTokenizer.from_pretrained(...).save_pretrained(...)` where the packages "
            "that it takes (sentencepiece, tiktoken) are installed.",
        ) from error


def _listing(path: Path) -> str:
    names = sorted(entry.name for entry in path.iterdir())
    return ", ".join(names[:12]) + (", ..." if len(names) > 12 else "") if names else "an empty folder"


def named_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """`bos_token` and its like, the standard names first, then the model's own (`image_token`)."""
    extra = config.get("extra_special_tokens")
    declared = {**config, **(extra if isinstance(extra, dict) else {})}
    own = [name for name in declared if name.endswith("_token") and name not in _NAMED_TOKENS]
    own += [name for name in (extra if isinstance(extra, dict) else ()) if name not in own]
    tokens = {name: _content(declared.get(name)) for name in (*_NAMED_TOKENS, *own)}
    return {name: content for name, content in tokens.items() if content is not None}


def _content(token: object) -> str | None:
    """A token is written as its text, or as an object with its flags. `add_bos_token: true` is neither."""
    content = token.get("content") if isinstance(token, dict) else token
    return content if isinstance(content, str) else None


def add_declared_tokens(
    backend: Tokenizer, config: Mapping[str, Any], named: Mapping[str, str], path: Path
) -> None:
    """Add the tokens that the configuration declares and tokenizer.json lacks, in transformers' order."""
    backend.encode_special_tokens = bool(config.get("split_special_tokens", False))
    declared = config.get("added_tokens_decoder", {})
    try:
        tokens = [_added_token(declared[key]) for key in sorted(declared, key=int)]
        extra = config.get("extra_special_tokens") or config.get("additional_special_tokens") or ()
        special = [*named.values(), *filter(None, map(_content, extra if isinstance(extra, list) else ()))]
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise TokenizerError(
            path / "tokenizer_config.json",
            f"a malformed added_tokens_decoder ({error!r})",
            "an object of token ids, each with its token's content and flags",
            "Save the tokenizer again with transformers.",
        ) from error
    known = {token.content for token in (*backend.get_added_tokens_decoder().values(), *tokens)}
    missing = [content for content in dict.fromkeys(special) if content not in known]
    backend.add_tokens(tokens + [AddedToken(content, special=True) for content in missing])


def renders_pairs(path: Path, template: str | None = None) -> bool:
    """Tell whether a chat template renders pairs of a query and a document; None is the default one of a folder."""
    if template is None:
        template = read_chat_templates(path).get("default", "")
    return "document" in template and "query" in template


def _added_token(flags: Mapping[str, Any]) -> AddedToken:
    names = ("single_word", "lstrip", "rstrip", "normalized", "special")
    return AddedToken(flags["content"], **{name: bool(flags[name]) for name in names if name in flags})


def read_chat_templates(path: Path) -> dict[str, str]:
    """Return a checkpoint's chat templates by name. As in transformers, files of their own come first."""
    files = {"default": path / "chat_template.jinja"}
    files |= {file.stem: file for file in sorted((path / "chat_templates").glob("*.jinja"))}
    templates = {name: _read_text(file) for name, file in files.items() if file.is_file()}
    if templates:
        return templates
    # The last resort is the file that processors of multimodal checkpoints used to write.
    declared = read_config(path).get("chat_template") or _read_json(path / "chat_template.json").get(
        "chat_template"
    )
    if isinstance(declared, str):
        return {"default": declared}
    entries = declared if isinstance(declared, list) else ()
    return {
        entry["name"]: entry["template"]
        for entry in entries
        if isinstance(entry, dict) and {"name", "template"} <= entry.keys()
    }
