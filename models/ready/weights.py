"""The quantised modules of a checkpoint, and the form in which each of its fused weights is kept here."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import numpy as np
import numpy.typing as npt

from pageant.models.errors import CheckpointError
from pageant.models.quantization import is_quantisable, takes_order
from pageant.models.ready.method import Method
from pageant.models.ready.module import GROUP, Fidelity, ReadyModule, wrong_part
from pageant.models.tensor_files import TensorInfo, read_values
from pageant.models.weights import Place, Places

__all__ = ["Form", "Key", "ReadyWeights", "forms_of_layers"]

Key = tuple[int | None, str]
"""A layer, or None outside of the layers, and a name of `weights`: a fused weight."""

_FLOATS = frozenset({"F32", "F16", "BF16"})
_KV_SCALES = (".k_scale", ".v_scale", ".q_scale", ".kv_scale", ".output_scale", ".prob_output_scale")
"""How names of scales of keys and values end: the KV cache makes its own, or needs none."""
_FIDELITIES: tuple[Fidelity, ...] = ("exact", "rounded", "requantised", "dequantised")
_BELONG = "Check that the configuration and the weights belong together."


@dataclass(frozen=True, eq=False)
class Form:
    """The form of a fused weight in memory."""

    bits: Literal[8, 5, 4] | None
    """None is the model's dtype."""
    fidelity: Fidelity
    numbers: int
    """Of the weight's quantised parts."""
    order: npt.NDArray[np.int64] | None = None
    """int64 [inputs]: the order in which its inputs lie, where that is not their own."""

    @property
    def bits_a_weight(self) -> float | None:
        """Bits in memory, those of scales included; None is the dtype's."""
        return None if self.bits is None else self.bits + 16 / GROUP


@dataclass(frozen=True, eq=False)
class ReadyWeights:
    """The quantised modules of a checkpoint. Finding them reads headers, and the orders of inputs."""

    method: Method
    modules: Mapping[str, ReadyModule]
    """By the name that a dense module's weight would have."""
    parts: frozenset[str]
    """Names of tensors that dense modules do not have: the modules' own, and those that change nothing here."""
    forms: Mapping[Key, Form]
    """Of the fused weights that have at least one quantised part."""
    dense: tuple[str, ...] = field(default=())
    """Modules that are not quantised, against the configuration."""

    @classmethod
    def find(cls, method: Method, places: Places, tensors: Mapping[str, TensorInfo]) -> ReadyWeights:
        """Find the modules among a checkpoint's tensors, by canonical names.

        Raises CheckpointError for parts that are missing, misshapen or against the configuration.
        """
        modules: dict[str, ReadyModule] = {}
        dense: list[str] = []
        for weight, place in places.items():
            if not weight.endswith(".weight") or len(place.shape) != 2:
                continue
            name = weight.removesuffix(".weight")
            found = _module(method, name, place, tensors)
            if found is not None:
                modules[weight] = found
                continue
            own = _saved_name(name, "weight", tensors[weight]) if weight in tensors else name
            if is_quantisable(place.name) and place.name != "embedding.weight" and method.expects(own):
                dense.append(own)
        if not modules:
            raise CheckpointError(
                method.config.path,
                f"a configuration of {method.title} for a checkpoint without one quantised module",
                "modules as the configuration says",
                _BELONG,
            )
        parts = {info.name for module in modules.values() for info in module.parts.values()}
        names = {name for name, info in tensors.items() if info.name in parts}
        names |= set(_superfluous(method, modules, places, tensors))
        forms = _dequantised_if_few(_forms(modules, places), method.dequantised_numbers_max)
        return cls(method, modules, frozenset(names), forms, tuple(dense))

    def check_values(self) -> None:
        """Raise CheckpointError for scales, zeros or orders that make no sense. Reads those parts whole."""
        for module in self.modules.values():
            module.check_values()

    @cached_property
    def description(self) -> str:
        """Say in one line what is kept exactly, what is not, and how many bits a weight takes."""
        kinds: defaultdict[tuple[int, int], int] = defaultdict(int)
        for form in self.forms.values():
            kinds[_FIDELITIES.index(form.fidelity), form.bits or 16] += 1
        said = []
        for (fidelity, bits), count in sorted(kinds.items()):
            size = "the model's dtype" if bits == 16 else f"{bits + 16 / GROUP:g} bits a weight"
            said.append(f"{count} matrices {_MEANS[_FIDELITIES[fidelity]]} in {size}")
        if self.dense:
            listed = ", ".join(self.dense[:2]) + (
                f" and {len(self.dense) - 2} more" if len(self.dense) > 2 else ""
            )
            said.append(f"dense against the configuration: {listed}")
        if self._has_kv_scales:
            said.append("scales of keys and values are ignored")
        return f"{self.method.title}: {'; '.join(said)}"

    @property
    def _has_kv_scales(self) -> bool:
        return any(name.endswith(_KV_SCALES) for name in self.parts)


_MEANS: dict[Fidelity, str] = {
    "exact": "exact",
    "rounded": "with exact codes and scales rounded to bfloat16",
    "requantised": "requantised",
    "dequantised": "dequantised",
}


def _module(method: Method, name: str, place: Place, tensors: Mapping[str, TensorInfo]) -> ReadyModule | None:
    """A quantised module; None is a dense one."""
    parts = {
        suffix: tensors[f"{name}.{suffix}"] for suffix in method.suffixes if f"{name}.{suffix}" in tensors
    }
    plain = tensors.get(f"{name}.weight")
    if plain is not None and plain.dtype not in _FLOATS:
        parts["weight"] = plain
    elif not parts.keys() - {"weight"}:
        return None
    elif plain is not None:
        some = next(iter(info for role, info in parts.items() if role != "weight"))
        raise wrong_part(plain, f"dtype {plain.dtype}", f"a quantised weight, since {some.name} is there")
    role, some = next(iter(parts.items()))
    name = _saved_name(name, role, some)
    if method.excludes(name):
        raise wrong_part(
            some, f"{some.dtype} numbers", f"a dense {name}, which {method.config.path.name} excludes"
        )
    return method.module(name, place.outputs, place.inputs, parts)


def _saved_name(name: str, role: str, part: TensorInfo) -> str:
    """Return a module's name as it is saved, and as the configuration calls it; `name` where it is one of a stack."""
    return name if part.stack is not None else part.name.removesuffix(f".{role}")


def _superfluous(
    method: Method,
    modules: Mapping[str, ReadyModule],
    places: Places,
    tensors: Mapping[str, TensorInfo],
) -> Iterator[str]:
    """Names of tensors that change nothing: scales of activations and of the KV cache, and biases of zeros."""
    for name, info in tensors.items():
        if name.endswith((*_KV_SCALES, *method.ignored)):
            yield name
        module = modules.get(f"{name.removesuffix('.bias')}.weight") if name.endswith(".bias") else None
        # AutoGPTQ wrote a bias for every module, also where the model has none.
        if (
            module is not None
            and name not in places
            and info.dtype in _FLOATS
            and not read_values(info).any()
        ):
            yield name


def _forms(modules: Mapping[str, ReadyModule], places: Places) -> dict[Key, Form]:
    members: defaultdict[Key, list[ReadyModule | None]] = defaultdict(list)
    for weight, place in places.items():
        members[place.layer, place.name].append(modules.get(weight))
    return {
        key: _form(key[1], some)
        for key, some in members.items()
        if any(module is not None for module in some)
    }


def _dequantised_if_few(forms: dict[Key, Form], numbers_max: int) -> dict[Key, Form]:
    """Return the forms, with those that requantise replaced where they are of no more numbers than that in all."""
    requantised = [form for form in forms.values() if form.fidelity == "requantised"]
    if sum(form.numbers for form in requantised) > numbers_max:
        return forms
    return {
        key: Form(None, "dequantised", form.numbers) if form.fidelity == "requantised" else form
        for key, form in forms.items()
    }


def _form(name: str, members: Sequence[ReadyModule | None]) -> Form:
    """The form of a weight that is put together from these modules; None is a dense one.

    It has the fewest bits that hold all of them. Where one is dense, or the layer decides for all the model, they are
    dequantised; where one does not fit, or their inputs are sorted differently, they are kept in 8 bits.
    """
    modules = [module for module in members if module is not None]
    numbers = sum(module.outputs * module.inputs for module in modules)
    if len(modules) < len(members) or not is_quantisable(name):
        return Form(None, "dequantised", numbers)
    order = modules[0].order
    alike = all(_equal(order, module.order) for module in modules)
    sortable = order is None or takes_order(name)
    bits = [module.bits for module in modules if module.fits]
    if len(bits) < len(modules) or not alike or not sortable:
        return Form(8, "requantised", numbers)
    fidelity = max((module.fidelity for module in modules), key=_FIDELITIES.index)
    widest = max(one for one in bits if one is not None)
    return Form(widest, fidelity, numbers, order)


def _equal(first: npt.NDArray[np.int64] | None, second: npt.NDArray[np.int64] | None) -> bool:
    if first is None or second is None:
        return first is second
    return np.array_equal(first, second)


def forms_of_layers(forms: Mapping[Key, Form], layers: range) -> dict[Key, Form]:
    """Return the forms of some of the layers, which are numbered anew, and of what is outside of layers."""
    return {
        (None if layer is None else layer - layers.start, name): form
        for (layer, name), form in forms.items()
        if layer is None or layer in layers
    }
