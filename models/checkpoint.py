"""A checkpoint on disk, as far as it can be known without loading it. Knows no torch."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from pageant.models import architectures
from pageant.models.config import Config, read_json
from pageant.models.errors import CheckpointError
from pageant.models.foreign import foreign_spec
from pageant.models.gguf.families import names_of
from pageant.models.gguf.folder import FILES, as_folder
from pageant.models.hub import resolve
from pageant.models.names import Names
from pageant.models.pooling import PoolingSpec, read_pooling, read_purpose
from pageant.models.quantization import OUTER
from pageant.models.ready import ReadyWeights, find_method
from pageant.models.spec import DecoderSpec, ModelSpec
from pageant.models.tensor_checks import DTYPES, HEAD, MISMATCH, check_tensors
from pageant.models.tensor_files import TensorInfo, parts_of, read_header
from pageant.models.weights import Place, Places

__all__ = ["Checkpoint", "CheckpointError", "has_chat_template", "resolve"]

log = logging.getLogger("pageant.models")

_WEIGHTS = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_EXPERTS_MAX = 1 << 14
"""Parts of a stack; a file that says more is not taken at its word."""
_PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt")
_ONLY_SAFETENSORS = "Convert other formats with transformers: `model.save_pretrained(folder)`."


class Checkpoint:
    """A folder with config.json and safetensors weights, in the layout of transformers, or a GGUF file (see `gguf`).

    Files are read when first asked for. Everything here raises CheckpointError.
    """

    def __init__(self, path: Path | str) -> None:
        """Refuses at once a folder that is missing or has no config.json, and code in a checkpoint."""
        self.path = as_folder(Path(path))
        if not self.path.is_dir():
            found = "a file" if self.path.exists() else "no such folder"
            raise CheckpointError(self.path, found, "a checkpoint's folder", "Check the path.")
        config_path = self.path / "config.json"
        if not config_path.is_file():
            raise CheckpointError(
                self.path, "no config.json", "the checkpoint's own", "Name the folder that holds it."
            )
        self._config = Config(read_json(config_path), config_path)
        _refuse_code(self._config)
        self.purpose = read_purpose(self._config, self.path)
        """Whether it generates, pools, or both."""
        self._method = find_method(self._config)
        if self._method is not None and self.architecture is None:
            raise CheckpointError(
                config_path,
                f"weights that {self._method.title} quantised, for a model that transformers runs",
                "unquantised weights",
                "Use the model's original checkpoint, or add a file to models/architectures.",
            )

    @property
    def config(self) -> Mapping[str, Any]:
        """config.json, as it is."""
        return self._config.values

    @cached_property
    def architecture(self) -> architectures.Architecture | None:
        """The file in `architectures` for it; None is a model that transformers' own code must run."""
        if not self.purpose.generates:
            return architectures.find_headless(self._config)
        return architectures.find(self._config)

    @property
    def is_gguf(self) -> bool:
        """True where its weights are in GGUF files."""
        return FILES in self.config

    @cached_property
    def names(self) -> Names | None:
        """The modules by the names of this checkpoint's tensors; None where there is no architecture."""
        if self.architecture is None:
            return None
        if not self.is_gguf:
            return self.architecture.names
        names = names_of(self.architecture.name)
        if names is None:
            raise self._config.wrong("architectures", self.architecture.name, "one that GGUF files can have")
        return names

    @property
    def drafting(self) -> list[str]:
        """Names of tensors of layers that only draft (MTP), behind those that the configuration counts."""
        if self.names is None or not self.names.ignores_later_layers:
            return []
        num_layers = self.decoder_spec().num_layers
        return [name for name in self.tensors if self.names.only_drafts(name, num_layers)]

    def spec(self) -> ModelSpec:
        """Return what config.json says: a `DecoderSpec` where there is an architecture."""
        if self.architecture is None:
            return foreign_spec(self._config)
        return self.architecture.spec(self._config)

    @cached_property
    def pooling(self) -> PoolingSpec | None:
        """Return how its hidden states are pooled; None where they are not. Reads headers."""
        if self.purpose.pools is None:
            return None
        if self.architecture is None:
            known = ", ".join((*architectures.ENCODERS, *architectures.ARCHITECTURES))
            raise self._config.wrong(
                "architectures",
                " ".join(self._config.texts("architectures")),
                f"one of {known}, whose hidden states can be pooled",
                "Use one of these, or add a file to models/architectures.",
            )
        size = self.decoder_spec().hidden_size
        return read_pooling(self._config, self.path, self.purpose.pools, size, self.saved_tensors)

    @property
    def longest_text(self) -> int:
        """Tokens of the longest text, output included: the model's positions, or what its pooling was made for."""
        longest, pooling = self.spec().max_model_len, self.pooling
        return longest if pooling is None else min(longest, pooling.max_length or longest)

    @property
    def embedding_size(self) -> int | None:
        """The width of embeddings that the model computes with in place of tokens; None where it cannot.

        Layers of some models read token ids besides, for which no embedding says anything.
        """
        values = self._config.values
        if values.get("hidden_size_per_layer_input"):
            return None
        named = (values.get(name) for name in ("hidden_size", "n_embd", "d_model"))
        size = getattr(self.spec(), "hidden_size", None) or next(filter(None, named), None)
        return size if isinstance(size, int) else None

    def decoder_spec(self) -> DecoderSpec:
        """Return the decoder that config.json describes. There must be an architecture."""
        assert self.architecture is not None, "a model without an architecture has no specification"
        return self.architecture.spec(self._config)

    def decoder(self) -> tuple[DecoderSpec, Places]:
        """Return the decoder that config.json describes, and where each tensor goes in it."""
        assert self.names is not None, "an architecture has names"
        spec = self.decoder_spec()
        places = self.names.places(spec)
        if spec.tie_word_embeddings:
            places = {self._name_of_tied(name, place): place for name, place in places.items()}
        return spec, places

    @cached_property
    def ready(self) -> ReadyWeights | None:
        """The quantised weights of a checkpoint that comes so; None where it does not. Reads headers."""
        if self._method is None:
            return None
        return ReadyWeights.find(self._method, self.decoder()[1], self.tensors)

    @property
    def quantization_method(self) -> str | None:
        """The method by which it was quantised, as its configuration calls it; None where it was not."""
        return None if self._method is None else str(self._method.config.values["quant_method"]).lower()

    @cached_property
    def generation_config(self) -> Mapping[str, Any]:
        """generation_config.json: the model's own sampling defaults; empty when there is none."""
        path = self.path / "generation_config.json"
        return read_json(path) if path.is_file() else {}

    @cached_property
    def eos_token_ids(self) -> tuple[int, ...]:
        """The tokens that end a text: generation_config.json's, else config.json's; maybe none."""
        for config in (self.generation_config, self.config, self._config.section("text_config").values):
            value = config.get("eos_token_id")
            if value is not None:
                return self._known(_token_ids(self.path, value))
        return ()

    def _known(self, token_ids: tuple[int, ...]) -> tuple[int, ...]:
        """Return those of some end tokens that the model can draw."""
        vocab_size = self.spec().vocab_size
        beyond = [token for token in token_ids if token >= vocab_size]
        if beyond:
            log.warning(
                "%s: eos_token_id %s is passed over, since the model has %d tokens",
                self.path,
                beyond,
                vocab_size,
            )
        return tuple(token for token in token_ids if token < vocab_size)

    @cached_property
    def weight_files(self) -> tuple[Path, ...]:
        """The files with weights, in the order of their names: one, or the shards of an index or of a GGUF file."""
        if self.is_gguf:
            return tuple((self.path / name).resolve() for name in self._config.texts(FILES))
        if (self.path / _WEIGHTS).is_file():
            return (self.path / _WEIGHTS,)
        index = self.path / _INDEX
        files = tuple(self.path / name for name in sorted({*self._shard_of.values()}))
        for file in files:
            if file.parent != self.path or not file.is_file():
                raise CheckpointError(
                    index, f"the shard {file.name} is not there", "all shards beside it", "Download it."
                )
        return files

    @cached_property
    def _shard_of(self) -> Mapping[str, str]:
        """The index's shard of each tensor; empty where all weights are in one file, and for GGUF files."""
        index = self.path / _INDEX
        if self.is_gguf or (self.path / _WEIGHTS).is_file():
            return {}
        if not index.is_file():
            raise self._no_weights()
        content = Config(read_json(index), index)
        shards = content.section("weight_map").values
        if not shards or not all(isinstance(shard, str) for shard in shards.values()):
            raise content.wrong("weight_map", content.values.get("weight_map"), "the shard of each tensor")
        return dict(shards)

    @cached_property
    def tensors(self) -> Mapping[str, TensorInfo]:
        """All tensors in the weight files, by the names that the architecture has for them.

        A tensor that several shards hold is read from the one that the index names. Reads headers, and no weight.
        """
        found: dict[str, TensorInfo] = {}
        for saved in self.saved_tensors.values():
            for known, info in self._named(saved):
                if known in found:
                    names = f"{found[known].name} and {info.name}"
                    raise CheckpointError(
                        info.file, f"{names}, which are one tensor", "each tensor under one name", MISMATCH
                    )
                found[known] = info
        return found

    def _named(self, info: TensorInfo) -> Iterator[tuple[str, TensorInfo]]:
        """Yield a saved tensor, or the parts of a stack of experts, by the names that the architecture has for them."""
        if self.names is None:
            yield info.name, info
            return
        known = self.names.canonical(info.name)
        part = self.names.part_of_stack(known)
        if part is None or not info.num_bytes or not 1 <= info.shape[0] <= _EXPERTS_MAX:
            yield known, info
            return
        for expert, one in enumerate(parts_of(info)):
            yield part.format(expert=expert), one

    @cached_property
    def saved_tensors(self) -> Mapping[str, TensorInfo]:
        """All tensors by the names that they are saved by, each in its own shard."""
        found: dict[str, TensorInfo] = {}
        for file in self.weight_files:
            for name, info in read_header(file).items():
                shard = self._shard_of.get(name)
                if shard is None and name in found:
                    raise CheckpointError(
                        self.path / _INDEX,
                        f"nothing about {name}, which {found[name].file.name} and {file.name} both hold",
                        "the shard of each tensor",
                        MISMATCH,
                    )
                if shard in (None, file.name):
                    found[name] = info
        for name, shard in self._shard_of.items():
            if name not in found:
                raise CheckpointError(
                    self.path / _INDEX,
                    f"{name} in {shard}, which does not hold it",
                    "the shard of each tensor",
                    MISMATCH,
                )
        return found

    @property
    def dtype(self) -> str:
        """Return the dtype of the weights: "float32", "float16" or "bfloat16", by config.json or else by them."""
        name = self.config.get("dtype") or self.config.get("torch_dtype")
        if name is None:
            saved = (DTYPES.get(info.dtype) for info in self.tensors.values())
            name = next((dtype for dtype in saved if dtype is not None), None)
        if name not in DTYPES.values():
            raise self._config.wrong("dtype", name, f"one of {', '.join(DTYPES.values())}")
        return str(name)

    @property
    def num_bytes(self) -> int:
        """Bytes of all tensors in the files."""
        return sum(info.num_bytes for info in self.saved_tensors.values())

    def check(self) -> None:
        """Find all that can be known to be wrong before anything loads, in milliseconds.

        Reads the JSON files and the headers of the weight files: configuration, shards, sizes, and the
        names, shapes and dtypes of all tensors. Of a model without an architecture, only that they are whole: what it
        needs is not known before it is loaded. Of quantised weights it also reads the scales and
        zeros, which are a hundredth of them.
        """
        _ = self.spec(), self.eos_token_ids, self.dtype, self.tensors
        _ = self.pooling
        if self.architecture is not None:
            spec, places = self.decoder()
            check_tensors(self, places, tied=spec.tie_word_embeddings)

    def refuse_quantization(self, quantization: str | None) -> None:
        """Raise CheckpointError where weights that come quantised are to be quantised once more."""
        if quantization is not None and self._method is not None:
            raise CheckpointError(
                self.path,
                f"quantization {quantization} for weights that {self._method.title} quantised",
                "no quantization",
                "Leave it out, or use the model's original checkpoint.",
            )

    def refuse_head_quantization(self, quantization: str | None) -> None:
        """Raise CheckpointError where a head or an embedding that comes quantised is to be quantised once more."""
        own = () if self.architecture is None or self.ready is None else self.ready.forms
        if quantization is not None and self._method is not None and any(name in OUTER for _, name in own):
            raise CheckpointError(
                self.path,
                f"head_quantization {quantization} for a head that {self._method.title} quantised",
                "no head_quantization",
                "Leave it out: the head is kept as it comes.",
            )

    def _name_of_tied(self, name: str, place: Place) -> str:
        """The name that a tensor is saved by: one matrix that is embedding and head may be saved as either."""
        saved_as_head = place.name == "embedding.weight" and name not in self.tensors and HEAD in self.tensors
        return HEAD if saved_as_head else name

    def _no_weights(self) -> CheckpointError:
        pickled = sorted(file.name for pattern in _PICKLED for file in self.path.glob(pattern))
        if not pickled:
            return CheckpointError(self.path, "no weights", f"{_WEIGHTS} or {_INDEX}", _ONLY_SAFETENSORS)
        return CheckpointError(
            self.path,
            f"only pickled weights ({pickled[0]})",
            f"{_WEIGHTS} or {_INDEX}",
            f"Pickles can run code and are never read. {_ONLY_SAFETENSORS}",
        )


def has_chat_template(folder: Path) -> bool:
    """Return whether a tokenizer's folder says how a conversation is rendered (see `tokenization`).

    Raises:
        CheckpointError: tokenizer_config.json is no JSON object.
    """
    if any((folder / name).is_file() for name in ("chat_template.jinja", "chat_template.json")):
        return True
    config = folder / "tokenizer_config.json"
    named = any((folder / "chat_templates").glob("*.jinja"))
    return named or (config.is_file() and bool(read_json(config).get("chat_template")))


def _refuse_code(config: Config) -> None:
    if "auto_map" in config and not _is_superseded(config):
        raise CheckpointError(
            config.path,
            "auto_map asks for the checkpoint's own code",
            "a known architecture",
            "Code from a checkpoint is never run: use one without, or add a file to models/architectures.",
        )


def _is_superseded(config: Config) -> bool:
    """Tell whether a checkpoint's own code is of a class that is known here by now (Phi-3's, say).

    It is passed over, as transformers does with code that it is not told to trust.
    """
    named = str(config.section("auto_map").values.get("AutoModelForCausalLM", "")).rpartition(".")[2]
    return architectures.known(named) is not None and config.texts("architectures")[:1] == (named,)


def _token_ids(path: Path, value: object) -> tuple[int, ...]:
    ids = value if isinstance(value, list) else [value]
    if not all(isinstance(token, int) and not isinstance(token, bool) and token >= 0 for token in ids):
        raise CheckpointError(path, f"eos_token_id is {value!r}", "a token id or a list", "Correct it.")
    return tuple(ids)
