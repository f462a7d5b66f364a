"""Reading recurrent layers from config.json, and the names of their modules."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from pageant.models.config import Config
from pageant.models.recurrent_spec import DeltaNetSpec, MambaSpec
from pageant.models.spec import LayerSpec, MLPSpec, MoESpec, RopeSpec

__all__ = [
    "DELTA_NET",
    "DELTA_NET_ENDINGS",
    "MAMBA",
    "MAMBA_ENDINGS",
    "mixed_layers",
    "read_delta_net",
    "read_kinds",
    "read_mamba",
    "read_multipliers",
]

DELTA_NET = {
    "linear_attn.conv1d": "delta_conv",
    "linear_attn.A_log": "delta_decay",
    "linear_attn.dt_bias": "delta_time_bias",
    "linear_attn.norm": "delta_scale",
    "linear_attn.out_proj": "delta_o",
}
"""Modules of a gated DeltaNet that all families name alike."""
DELTA_NET_ENDINGS = {
    ".linear_attn.A_log": ".linear_attn.A_log.weight",
    ".linear_attn.dt_bias": ".linear_attn.dt_bias.weight",
}

MAMBA = {
    "mamba.in_proj": "mamba_in",
    "mamba.conv1d": "mamba_conv",
    "mamba.A_log": "mamba_decay",
    "mamba.dt_bias": "mamba_time_bias",
    "mamba.D": "mamba_skip",
    "mamba.norm": "mamba_scale",
    "mamba.out_proj": "mamba_o",
}
"""Modules of a Mamba-2 layer that most families name alike."""
MAMBA_ENDINGS = {f".mamba.{name}": f".mamba.{name}.weight" for name in ("A_log", "dt_bias", "D")}

_KINDS = ("linear_attention", "full_attention")
_OLDER_KINDS = {"mamba": "linear_attention", "attention": "full_attention"}


def read_delta_net(config: Config, *, by_head: bool) -> DeltaNetSpec:
    """Read the sizes of gated DeltaNets.

    Raises CheckpointError naming the key that is absurd or not supported.
    """
    config.refuse("hidden_act", "silu", "The convolution's activation is SiLU in all that are implemented.")
    num_key_heads = config.count("linear_num_key_heads", 16)
    num_value_heads = config.count("linear_num_value_heads", 32)
    if num_value_heads % num_key_heads:
        raise config.wrong(
            "linear_num_value_heads", num_value_heads, f"a multiple of the {num_key_heads} key heads"
        )
    return DeltaNetSpec(
        num_key_heads=num_key_heads,
        num_value_heads=num_value_heads,
        key_dim=config.count("linear_key_head_dim", 128),
        value_dim=config.count("linear_value_head_dim", 128),
        kernel=config.count("linear_conv_kernel_dim", 4, minimum=2),
        by_head=by_head,
    )


def mixed_layers(
    config: Config, mlps: Sequence[MLPSpec | MoESpec], rope: RopeSpec, delta_net: DeltaNetSpec
) -> tuple[LayerSpec, ...]:
    """Return the layers with these MLPs: recurrent ones, but for those of attention (`layer_types`).

    Without the key, every fourth layer has attention, or as `full_attention_interval` says.

    Raises CheckpointError naming the key that is absurd or not supported.
    """
    count = len(mlps)
    interval = config.count("full_attention_interval", 4)
    kinds = config.texts("layer_types") or tuple(
        _KINDS[(number + 1) % interval == 0] for number in range(count)
    )
    if len(kinds) != count or set(kinds) - set(_KINDS):
        raise config.wrong("layer_types", list(kinds), f"{count} times {' or '.join(_KINDS)}")
    if _KINDS[1] not in kinds:
        raise config.wrong("layer_types", list(kinds), "a layer of full_attention among them")
    return tuple(
        LayerSpec(mlp=mlp, rope=rope)
        if kind == _KINDS[1]
        else LayerSpec(mlp=mlp, rope=None, attends=False, recurrent=delta_net)
        for mlp, kind in zip(mlps, kinds, strict=True)
    )


def read_kinds(config: Config, known: Sequence[str], count: int) -> tuple[str, ...]:
    """Return what each of so many layers is (`layer_types`), each one of the `known`, some of them recurrent.

    Raises CheckpointError where that is absurd, or none is recurrent, the first of the known, or none attends.
    """
    kinds = tuple(_OLDER_KINDS.get(kind, kind) for kind in config.texts("layer_types"))
    if len(kinds) != count or set(kinds) - set(known):
        raise config.wrong(
            "layer_types", list(kinds), f"{count} times {', '.join(known[:-1])} or {known[-1]}"
        )
    for needed in (known[0], _KINDS[1]):
        if needed not in kinds:
            raise config.wrong("layer_types", list(kinds), f"a layer of {needed} among them")
    return kinds


def read_mamba(config: Config, *, values_size: int | None = None, **options: Any) -> MambaSpec:
    """Read the sizes of Mamba-2 layers; `options` are further fields of the specification.

    Args:
        values_size: width of all heads together; None is as the key `mamba_expand` says.

    Raises CheckpointError naming the key that is absurd or not supported.
    """
    num_heads = config.count("mamba_n_heads", 128)
    num_groups = config.count("mamba_n_groups", 1)
    if num_heads % num_groups:
        raise config.wrong("mamba_n_groups", num_groups, f"a divisor of the {num_heads} heads")
    size = values_size or config.count("mamba_expand", 2) * config.count("hidden_size")
    is_said = "mamba_d_head" in config and config.values.get("mamba_d_head") != "auto"
    head_dim = config.count("mamba_d_head") if is_said else size // num_heads
    if num_heads * head_dim != size:
        raise config.wrong("mamba_n_heads", num_heads, f"heads of {head_dim} that are {size} wide together")
    return MambaSpec(
        num_heads=num_heads,
        head_dim=head_dim,
        num_groups=num_groups,
        state_dim=config.count("mamba_d_state", 256),
        kernel=config.count("mamba_d_conv", 4, minimum=2),
        conv_bias=config.flag("mamba_conv_bias", True),
        **({"time_step_limits": _time_step_limits(config)} | options),
    )


def _time_step_limits(config: Config) -> tuple[float, float]:
    key = "time_step_limit"
    if key not in config:
        return 0.0, math.inf
    said = config.values[key]
    limits = [_number(one) for one in said] if isinstance(said, list) else []
    match limits:
        case [float() as least, float() as most] if 0 <= least < most:
            return least, most
    raise config.wrong(key, said, "two numbers from 0 up, the second one greater")


def _number(value: object) -> float | None:
    """Return a number of a JSON file; transformers writes infinity as an object."""
    if value == {"__float__": "Infinity"}:
        return math.inf
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def read_multipliers(config: Config, key: str, count: int) -> tuple[float, ...]:
    """Return so many positive numbers; ones where the key is absent."""
    numbers = config.numbers(key) or (1.0,) * count
    if len(numbers) != count:
        raise config.wrong(key, list(numbers), f"{count} positive numbers")
    return numbers
