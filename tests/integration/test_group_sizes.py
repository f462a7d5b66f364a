"""Models whose sizes or kinds no group can share out: refused before anything loads, with what would do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import (
    AutoModelForCausalLM,
    Cohere2Config,
    LlamaConfig,
    Olmo2Config,
    PretrainedConfig,
    Qwen3MoeConfig,
)

from pageant.actors.client.resolved_models import resolve_topology
from pageant.actors.client.settings import topology_of
from pageant.protocol.errors import PageantError

SIZES: dict[str, Any] = {
    **{"hidden_size": 128, "intermediate_size": 128, "num_hidden_layers": 2, "vocab_size": 512},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32},
    **{"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0},
}
EXPERTS = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 128, "num_key_value_heads": 4}


def resolve(config: PretrainedConfig, folder: Path, **settings: Any) -> None:
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    resolve_topology(topology_of(str(folder), None, settings))


@pytest.mark.parametrize(
    ("config", "settings", "message"),
    [
        (
            LlamaConfig(**SIZES | {"hidden_size": 384, "num_attention_heads": 12, "num_key_value_heads": 6}),
            {"tensor_parallel": 4},
            "tensor_parallel: found 4: 6 key and value heads are neither a multiple nor a divisor of 4; "
            "expected 1, 2, 3 or 6",
        ),
        (
            LlamaConfig(**SIZES | {"intermediate_size": 96}),
            {"tensor_parallel": 2},
            "tensor_parallel: found 2: the MLPs' inner layers are 96 wide, which is no multiple of 32 x 2; expected 1",
        ),
        (
            Qwen3MoeConfig(**SIZES | EXPERTS),
            {"tensor_parallel": 4, "expert_parallel": True},
            "tensor_parallel: found 4: 6 experts do not divide by 4; expected 1, 2, 3 or 6",
        ),
        (
            Olmo2Config(**SIZES),
            {"tensor_parallel": 2},
            "tensor_parallel: found 2: the norm of queries and keys is over all heads at once; expected 1",
        ),
        *(
            (
                Cohere2Config(**SIZES),
                {name: 2},
                f"{name}: found 2: Cohere2ForCausalLM runs on transformers' own code, which is whole; expected 1",
            )
            for name in ("tensor_parallel", "pipeline_parallel")
        ),
    ],
)
def test_what_cannot_be_shared_out_is_refused_with_the_arithmetic_and_what_would(
    config: PretrainedConfig, settings: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(PageantError) as caught:
        resolve(config, tmp_path, **settings)
    assert message in str(caught.value)


def test_a_vocabulary_need_not_divide(tmp_path: Path) -> None:
    """Shares of it are padded."""
    resolve(LlamaConfig(**SIZES | {"vocab_size": 509}), tmp_path, tensor_parallel=2)
