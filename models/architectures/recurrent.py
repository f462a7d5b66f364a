"""Reading recurrent layers from config.json, and the names of their modules."""

from __future__ import annotations

from collections.abc import Sequence

from pageant.models.config import Config
from pageant.models.spec import DeltaNetSpec, LayerSpec, MLPSpec, MoESpec, RopeSpec

__all__ = ["DELTA_NET", "DELTA_NET_ENDINGS", "mixed_layers", "read_delta_net"]

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

_KINDS = ("linear_attention", "full_attention")


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
        else LayerSpec(mlp=mlp, rope=None, delta_net=delta_net)
        for mlp, kind in zip(mlps, kinds, strict=True)
    )
