"""Families with recurrent layers: what each reads from its config.json, and what it refuses."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pageant.models import Checkpoint, CheckpointError, DecoderSpec
from pageant.models.recurrent_spec import MambaSpec
from tests.models.test_architectures import GONE, changed


@pytest.fixture
def spec(family: Callable[[str], Any], tmp_path: Path) -> Callable[..., DecoderSpec]:
    """Reads a family's configuration with some keys changed."""
    return lambda name, **changes: Checkpoint(changed(family(name).path, tmp_path, **changes)).spec()


@pytest.mark.parametrize(
    ("name", "changes", "found"),
    [
        ("lfm2", {"layer_types": ["conv"] * 3}, "a layer of full_attention among them"),
        ("lfm2", {"conv_L_cache": 1}, "conv_L_cache is 1; expected a whole number from 2 up"),
        ("lfm2_moe", {"use_expert_bias": False}, "use_expert_bias is False; expected True"),
        ("granite_hybrid", {"hidden_act": "gelu"}, "hidden_act is 'gelu'; expected one of silu"),
        ("granite_hybrid", {"position_embedding_type": "alibi"}, "is 'alibi'; expected nope or rope"),
        ("granite_hybrid", {"layer_types": ["mamba"] * 3}, "a layer of full_attention among them"),
        ("granite_hybrid", {"mamba_n_groups": 3}, "mamba_n_groups is 3; expected a divisor of the 8 heads"),
        ("granite_hybrid", {"mamba_d_head": 8}, "mamba_n_heads is 8; expected heads of 8 that are 128 wide"),
        ("granite_hybrid", {"time_step_limit": [1.0, 0.5]}, "time_step_limit is [1.0, 0.5]; expected two"),
        ("bamba", {"attn_layer_indices": [7]}, "attn_layer_indices is [7]; expected some of the 3 layers"),
        ("falcon_h1", {"attention_bias": True}, "attention_bias is True; expected false, as there are"),
        ("falcon_h1", {"mamba_proj_bias": True}, "mamba_proj_bias is True; expected false, as ssm_in"),
        ("falcon_h1", {"ssm_multipliers": [1.0]}, "ssm_multipliers is [1.0]; expected 5 positive numbers"),
        ("nemotron_h", {"mlp_hidden_act": "silu"}, "mlp_hidden_act is 'silu'; expected 'relu2'"),
        ("nemotron_h_moe", {"moe_latent_size": 16}, "moe_latent_size is 16; expected None"),
        ("nemotron_h_moe", {"mlp_bias": True}, "mlp_bias is True; expected False"),
    ],
    ids=str,
)
def test_a_value_that_is_not_supported_is_refused_by_key(
    spec: Callable[..., DecoderSpec], name: str, changes: dict[str, Any], found: str
) -> None:
    with pytest.raises(CheckpointError) as error:
        spec(name, **changes)
    assert found in str(error.value)


def test_time_steps_are_limited_as_the_family_says(spec: Callable[..., DecoderSpec]) -> None:
    for name, changes, limits in (
        ("granite_hybrid", {}, (0.0, math.inf)),
        ("granite_hybrid", {"time_step_limit": [0.1, 2.5]}, (0.1, 2.5)),
        ("granite_hybrid", {"time_step_limit": GONE}, (0.0, math.inf)),
        ("nemotron_h", {"time_step_min": 0.02}, (0.02, math.inf)),
    ):
        mamba = spec(name, **changes).layers[0].recurrent
        assert isinstance(mamba, MambaSpec) and mamba.time_step_limits == limits


def test_older_names_of_keys_and_layers_are_read(spec: Callable[..., DecoderSpec]) -> None:
    """Layers named as in checkpoints before transformers 5."""
    older = spec("granite_hybrid", layer_types=["mamba", "attention", "mamba"])
    assert older.layers == spec("granite_hybrid").layers
    older = spec("nemotron_h", layers_block_type=GONE, hybrid_override_pattern="M-*M")
    assert older.layers == spec("nemotron_h").layers
    older = spec("lfm2", layer_types=GONE, full_attn_idxs=[1], intermediate_size=GONE, block_ff_dim=80)
    assert older.layers == spec("lfm2").layers
