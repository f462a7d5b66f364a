"""An adapter on disk, in PEFT's layout, as far as it can be known without loading it. Knows no torch.

After Hu et al., LoRA: Low-Rank Adaptation of Large Language Models (2021): a linear map W of the model becomes
W + scale * B @ A, with A [r, in] and B [out, r]. A folder has adapter_config.json and adapter_model.safetensors, in
which `base_model.model.<module>.lora_A.weight` belongs to the model's own `<module>.weight`: so the places of a
checkpoint's tensors (`weights`) say where each adapter's go, too.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from pageant.models.checkpoint import Checkpoint
from pageant.models.config import Config, read_json
from pageant.models.errors import CheckpointError
from pageant.models.tensor_files import TensorInfo, read_header
from pageant.models.weights import Place

__all__ = ["PREFIX", "RANK_MAX", "AdapterCheckpoint", "Target", "is_adaptable"]

PREFIX = "base_model.model."
"""Before a module's name in an adapter's file."""
RANK_MAX = 256

_CONFIG = "adapter_config.json"
_WEIGHTS = "adapter_model.safetensors"
_DTYPES = ("F32", "F16", "BF16")
_MODULES = frozenset(
    {
        *("qkv", "query_latent", "query", "latent", "o"),
        *("gate_up", "up", "down", "shared_gate_up", "shared_up", "shared_down"),
    }
)
"""Of `weights`, those that adapters may add to."""
_MERGE = "Merge the adapter into the model with PEFT (`merge_and_unload`) and serve the result."
_MISMATCH = "Check that the adapter was made for this model."
_OTHER_KINDS = (
    *("use_dora", "use_qalora", "lora_bias", "modules_to_save", "target_parameters", "layer_replication"),
    *("trainable_token_indices", "alora_invocation_tokens", "megatron_config"),
)
"""Keys of the configuration that change what is computed, and that are absent, null, false or empty here."""
_CHANGE_THE_MODEL = ("pissa", "olora", "corda", "loftq", "lora_ga")
"""Ways to begin an adapter that change the model's weights besides."""


@dataclass(frozen=True, slots=True)
class Target:
    """One linear map that an adapter adds to: the names of its two tensors, and where they belong."""

    module: str
    place: Place
    """Of the weight that it adds to."""
    down: str
    up: str
    rank: int
    scale: float

    @property
    def inputs(self) -> int:
        """Return how many inputs the linear map has."""
        return self.place.inputs

    @property
    def outputs(self) -> int:
        """Return how many outputs the linear map has."""
        return self.place.outputs


class AdapterCheckpoint:
    """A folder with adapter_config.json and adapter_model.safetensors. Everything here raises CheckpointError."""

    def __init__(self, path: Path | str) -> None:
        """Refuses at once a folder that is missing or has no adapter_config.json."""
        self.path = Path(path)
        if not self.path.is_dir():
            found = "a file" if self.path.exists() else "no such folder"
            raise CheckpointError(self.path, found, "an adapter's folder", "Check the path.")
        config_path = self.path / _CONFIG
        if not config_path.is_file():
            raise CheckpointError(self.path, f"no {_CONFIG}", "PEFT's", "Save it with `save_pretrained`.")
        self._config = Config(read_json(config_path), config_path)

    @property
    def weights(self) -> Path:
        """The file with its tensors."""
        path = self.path / _WEIGHTS
        if path.is_file():
            return path
        pickled = next((file.name for file in sorted(self.path.glob("adapter_model.*"))), None)
        found = "no weights" if pickled is None else f"only {pickled}"
        remedy = "Pickles can run code and are never read: save it with `safe_serialization=True`."
        raise CheckpointError(self.path, found, _WEIGHTS, remedy)

    @cached_property
    def tensors(self) -> Mapping[str, TensorInfo]:
        """Return its tensors by name. Reads the file's header, and no weight."""
        return read_header(self.weights)

    def targets(self, base: Checkpoint, rank_max: int = RANK_MAX) -> tuple[Target, ...]:
        """Return what it adds to which of a model's linear maps, in the order of the file; checked whole.

        Args:
            rank_max: refuses larger ones.
        """
        self._refuse_other_kinds(base)
        assert base.architecture is not None, "others have just been refused"
        places = base.architecture.places(base.decoder_spec())
        canonical = base.architecture.names.canonical
        found: dict[str, Target] = {}
        for name in self.tensors:
            module, _, part = name.removeprefix(PREFIX).rpartition(".lora_")
            if not name.startswith(PREFIX) or part not in ("A.weight", "B.weight"):
                raise self._wrong(f"the tensor {name}", f"{PREFIX}MODULE.lora_A.weight and lora_B.weight")
            if module not in found:
                place = places.get(canonical(f"{module}.weight"))
                found[module] = self._target(module, self._adaptable(module, place), rank_max)
        if not found:
            raise self._wrong("no tensors", "an adapter's", "Save the adapter again.")
        self._check_complete([*found], [name for name, place in places.items() if is_adaptable(place)])
        return tuple(found.values())

    def _refuse_other_kinds(self, base: Checkpoint) -> None:
        config = self._config
        if base.architecture is None:
            name = base.config["architectures"][0]
            raise self._wrong(f"an adapter for {name}, which transformers runs", "a native one", _MERGE)
        if config.text("peft_type") != "LORA":
            raise config.wrong("peft_type", config.text("peft_type"), "LORA", _MERGE)
        config.refuse("bias", "none", _MERGE)
        for key in _OTHER_KINDS:
            if value := config.values.get(key):
                raise config.wrong(key, value, "none", _MERGE)
        begun = config.values.get("init_lora_weights")
        if isinstance(begun, str) and begun.startswith(_CHANGE_THE_MODEL):
            remedy = "Convert it while saving: `path_initial_model_for_weight_conversion`."
            raise config.wrong("init_lora_weights", begun, "one that leaves the model as it is", remedy)

    def _adaptable(self, module: str, place: Place | None) -> Place:
        if place is None:
            raise self._wrong(f"tensors for {module}", "modules of this model", _MISMATCH)
        if place.name == "heads.weight":
            raise self._wrong(
                f"tensors for {module}", "none for what makes keys and values of latents", _MERGE
            )
        if not is_adaptable(place):
            raise self._wrong(f"tensors for {module}", "linear maps of attention and of MLPs only", _MERGE)
        return place

    def _target(self, module: str, place: Place, rank_max: int) -> Target:
        down, up = (f"{PREFIX}{module}.lora_{part}.weight" for part in "AB")
        rank = self._by_pattern("rank_pattern", module, self._config.count("r"))
        if type(rank) is not int or rank < 1:
            raise self._config.wrong("rank_pattern", rank, "a whole number from 1 up", _MISMATCH)
        if rank > rank_max:
            raise self._wrong(
                f"rank {rank} at {module}", f"at most {rank_max} (max_lora_rank)", "Raise max_lora_rank."
            )
        alpha = self._by_pattern("alpha_pattern", module, self._config.number("lora_alpha", 8))
        if isinstance(alpha, bool) or not isinstance(alpha, int | float) or not math.isfinite(alpha):
            raise self._config.wrong("alpha_pattern", alpha, "a number", _MISMATCH)
        scale = alpha / (math.sqrt(rank) if self._config.flag("use_rslora") else rank)
        target = Target(module, place, down, up, rank, scale)
        self._check_tensor(down, (rank, target.inputs))
        self._check_tensor(up, (target.outputs, rank))
        return target

    def _by_pattern(self, key: str, module: str, default: float) -> object:
        """The value for the first of the patterns that ends the module's name, as PEFT finds it."""
        for pattern, value in self._config.section(key).values.items():
            try:
                if re.match(rf"(.*\.)?({pattern})$", module):
                    return value
            except re.error as error:
                raise self._config.wrong(key, pattern, f"a regular expression ({error})") from None
        return default

    def _check_tensor(self, name: str, shape: tuple[int, int]) -> None:
        info = self.tensors.get(name)
        if info is None:
            raise self._wrong(f"no tensor {name}", f"one of shape {list(shape)}", "Save the adapter again.")
        if info.shape != shape:
            raise self._wrong(f"{name} has shape {list(info.shape)}", f"shape {list(shape)}", _MISMATCH)
        if info.dtype not in _DTYPES:
            raise self._wrong(f"{name} has dtype {info.dtype}", f"one of {', '.join(_DTYPES)}", _MERGE)

    def _check_complete(self, found: Sequence[str], adaptable: Sequence[str]) -> None:
        """Check that what `target_modules` lists is there; not where it is a pattern, or but for some."""
        config = self._config
        if isinstance(config.values.get("target_modules"), str) or "exclude_modules" in config:
            return
        if "layers_to_transform" in config:
            return
        ends = tuple(f".{listed}.weight" for listed in config.texts("target_modules"))
        there = tuple(f".{module}.weight" for module in found)
        missing = [name for name in adaptable if name.endswith(ends) and not f".{name}".endswith(there)]
        if missing:
            name = missing[0].removesuffix(".weight")
            raise self._wrong(f"no tensors for {name}", "all of target_modules", "Save the adapter again.")

    def _wrong(self, found: str, expected: str, remedy: str = _MERGE) -> CheckpointError:
        return CheckpointError(self.path, found, expected, remedy)


def is_adaptable(place: Place) -> bool:
    """Tell whether adapters may add to what is there: a linear map of attention or of an MLP, experts' apart."""
    module, _, kind = place.name.rpartition(".")
    return kind == "weight" and place.layer is not None and place.expert is None and module in _MODULES
