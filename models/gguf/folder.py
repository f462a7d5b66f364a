"""A GGUF file as a folder: config.json, tokenizer.json and the like, made from its metadata, and a link to the file.

Whatever reads a checkpoint reads such a folder. It lies in the user's cache folder, in one that is named after the
file's path, size and time, and takes a few megabytes. Knows no torch.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pageant.models.cache import cache_folder, make_folder
from pageant.models.config import read_json
from pageant.models.errors import CheckpointError
from pageant.models.gguf.config import find_family, make_config, make_generation_config
from pageant.models.gguf.container import read_gguf
from pageant.models.gguf.metadata import Metadata
from pageant.models.gguf.tensors import read_tensors
from pageant.models.gguf.tokenizer import chat_templates, make_tokenizer, make_tokenizer_config
from pageant.models.gguf.vocabulary import Vocabulary, read_vocabulary
from pageant.models.tensor_files import TensorInfo

__all__ = ["FILES", "SUFFIX", "as_folder", "is_gguf", "refuse_without_tokenizer"]

SUFFIX = ".gguf"
FILES = "gguf_files"
"""The key of config.json with the names of the files that a folder was made from."""
_LAYOUT = "1"
"""Changes when what is made from a file changes, so that older folders are not read."""
_SHARD = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf")
_UNREADABLE = re.compile(r"[^\w.-]")


def is_gguf(path: Path) -> bool:
    """Tell whether a path is a GGUF file, or a folder that has its weights in such files alone."""
    if path.is_dir():
        others = any(path.glob("*.safetensors")) or not any(path.glob(f"*{SUFFIX}"))
        return not others and not is_made(path)
    return path.suffix == SUFFIX and path.is_file()


def is_made(folder: Path) -> bool:
    """Tell whether a folder was made from GGUF files."""
    config = folder / "config.json"
    return config.is_file() and FILES in read_json(config)


def as_folder(path: Path, cache: Path | None = None) -> Path:
    """Return the folder of a model: `path` itself, or one made from the GGUF file that it is or holds.

    Args:
        cache: where the folder is made; the user's cache folder where None.

    Raises:
        CheckpointError: the file is not whole, or its model is not known here; or a folder has several of them.
    """
    if not is_gguf(path):
        return path
    shards = _shards(_only(path) if path.is_dir() else path.absolute())
    made = (cache or cache_folder("gguf")) / _digest(shards) / _UNREADABLE.sub("_", _stem(shards[0]))
    if not made.is_dir():
        make_folder(made, _files(shards), {shard.name: shard for shard in shards})
    return made


def refuse_without_tokenizer(folder: Path) -> None:
    """Raise CheckpointError where a folder was made from a GGUF file without a tokenizer; says what it lacks."""
    if (folder / "tokenizer.json").is_file() or not is_made(folder):
        return
    name = read_json(folder / "config.json")[FILES][0]
    metadata = Metadata(read_gguf((folder / name).resolve()))
    make_tokenizer(metadata, read_vocabulary(metadata))


def _only(folder: Path) -> Path:
    """The one model in a folder."""
    files = sorted(folder.absolute().glob(f"*{SUFFIX}"))
    firsts = [file for file in files if (shard := _SHARD.fullmatch(file.name)) is None or shard[2] == "00001"]
    if len(firsts) != 1:
        listed = ", ".join(file.name for file in files[:4]) + (", ..." if len(files) > 4 else "")
        raise CheckpointError(folder, f"{len(firsts)} models ({listed})", "one", "Name the file itself.")
    return firsts[0]


def _shards(path: Path) -> list[Path]:
    """Return all files of a model, the one with its metadata first."""
    shard = _SHARD.fullmatch(path.name)
    if shard is None:
        return [path]
    stem, number, count = shard.groups()
    if number != "00001":
        first = f"{stem}-00001-of-{count}{SUFFIX}"
        raise CheckpointError(path, f"shard {int(number)} of {int(count)}", "the first one", f"Name {first}.")
    shards = [path.with_name(f"{stem}-{index:05d}-of-{count}{SUFFIX}") for index in range(1, int(count) + 1)]
    missing = next((file for file in shards if not file.is_file()), None)
    if missing is not None:
        raise CheckpointError(missing, "no such file", f"all {int(count)} shards beside it", "Download it.")
    return shards


def _stem(path: Path) -> str:
    shard = _SHARD.fullmatch(path.name)
    return path.name.removesuffix(SUFFIX) if shard is None else shard[1]


def _digest(shards: list[Path]) -> str:
    named = [_LAYOUT]
    for shard in shards:
        known = shard.stat()
        named += [str(shard), str(known.st_size), str(known.st_mtime_ns)]
    return hashlib.blake2b("\0".join(named).encode(), digest_size=12).hexdigest()


def _files(shards: list[Path]) -> dict[str, str]:
    """The texts of the files that a folder has."""
    metadata, tensors = Metadata(read_gguf(shards[0])), _tensors(shards)
    _check_count(metadata, len(shards))
    family = find_family(metadata)
    vocabulary = read_vocabulary(metadata)
    config = make_config(metadata, tensors, family) | {FILES: [shard.name for shard in shards]}
    files = {
        "config.json": _json(config),
        "generation_config.json": _json(make_generation_config(metadata, vocabulary)),
    }
    return files | _tokenizer_files(metadata, vocabulary)


def _tokenizer_files(metadata: Metadata, vocabulary: Vocabulary | None) -> dict[str, str]:
    """Files of the tokenizer; none where it is not known, which matters only to who needs it."""
    try:
        tokenizer = make_tokenizer(metadata, vocabulary)
    except CheckpointError:
        return {}
    assert vocabulary is not None, "a tokenizer has been made of it"
    files = {
        "tokenizer.json": json.dumps(tokenizer, ensure_ascii=False),
        "tokenizer_config.json": _json(make_tokenizer_config(vocabulary)),
    }
    for name, template in chat_templates(metadata).items():
        plain = name == "default"
        files["chat_template.jinja" if plain else f"chat_templates/{_UNREADABLE.sub('_', name)}.jinja"] = (
            template
        )
    return files


def _tensors(shards: list[Path]) -> Mapping[str, TensorInfo]:
    tensors: dict[str, TensorInfo] = {}
    for shard in shards:
        for name, info in read_tensors(shard).items():
            if name in tensors:
                found = f"{name}, which {tensors[name].file.name} has too"
                raise CheckpointError(shard, found, "each tensor in one shard", "Download the files again.")
            tensors[name] = info
    return tensors


def _check_count(metadata: Metadata, count: int) -> None:
    expected = metadata.count("split.count", count, minimum=0) or count
    if expected != count:
        raise metadata.wrong("split.count", str(expected), f"{count}, as many files as there are")


def _json(content: Mapping[str, Any]) -> str:
    return json.dumps(content, indent=1, ensure_ascii=False)
