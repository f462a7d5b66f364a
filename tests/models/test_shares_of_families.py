"""Shares of every architecture: ranks together compute what one does, and which bits of it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from pageant import kernels
from pageant.kernels.base import AttentionBatch
from pageant.kernels.collectives.local import local_group
from pageant.kernels.collectives.stage_links import StageLinks
from pageant.models.adapters.loading import Adapters
from pageant.models.checkpoint import Checkpoint
from pageant.models.errors import CheckpointError
from pageant.models.loading import load_decoder
from pageant.models.native import NativeDecoder
from pageant.models.sharding import ExpertSharing, Shard
from pageant.models.share_checks import why_not_shared, why_not_staged
from pageant.models.stages import Stage
from tests.kernels.collectives.groups import in_threads
from tests.models.families import FAMILIES
from tests.models.family_sizes import COMMON
from tests.random_adapters import save_adapter

TOKENS = 21
SIZES = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "num_hidden_layers": 3,
}
GPT2 = {"n_embd": 128, "n_head": 4, "n_layer": 2, "n_inner": 256}
EXPERTS = {"moe_intermediate_size": 128, "shared_expert_intermediate_size": 128}
ONE_OF_EACH = (
    *("llama_biased", "mistral_window", "qwen2", "qwen3_window", "mixtral", "qwen2_moe_window", "qwen3_moe"),
    *("gemma", "gemma2", "gemma3", "phi3", "granite_biased", "smollm3", "gpt2", "gpt_neox", "gpt_oss"),
    *("glm4_moe", "starcoder2", "deepseek_v2", "deepseek_v3_grouped"),
)
"""A family of every architecture whose layers can be cut."""


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Returns a family's checkpoint in sizes that divide, made once."""
    made: dict[str, Path] = {}

    def make(name: str) -> Path:
        if name not in made:
            model_class, config_class, options = FAMILIES[name]
            sizes = GPT2 if name.startswith("gpt2") else SIZES
            options = {key: value for key, value in options.items() if key not in SIZES} | sizes
            if "moe" in name or "deepseek" in name:
                options |= EXPERTS
            if "deepseek" in name:
                options["v_head_dim"] = 32
            if name in ("mixtral", "gpt_oss"):
                options["num_local_experts"] = 4
            if name == "gpt_neox":
                del options["num_key_value_heads"]
            torch.manual_seed(len(name))
            model = model_class(config_class(**copy.deepcopy(COMMON | options))).eval()
            for parameter_name, parameter in model.named_parameters():
                if parameter_name.endswith("bias"):  # they are zeros
                    parameter.data.normal_(std=0.3)
            made[name] = tmp_path_factory.mktemp(name)
            model.save_pretrained(made[name])
        return made[name]

    return make


@torch.inference_mode()
def run(decoder: NativeDecoder, chunks: Sequence[int] = (TOKENS,)) -> torch.Tensor:
    """Return the logits, float32 [TOKENS, V], after each of some tokens, which come in chunks."""
    caches = decoder.allocate_kv_caches(3, 16)
    found, start = [], 0
    for count in chunks:
        positions = torch.arange(start, start + count)
        start += count
        batch = AttentionBatch(
            query_starts=torch.tensor([0, count], dtype=torch.int32),
            context_lengths=torch.tensor([start], dtype=torch.int32),
            block_tables=torch.tensor([[2, 1]], dtype=torch.int32),
            slots=(2 - positions // 16) * 16 + positions % 16,
            positions=positions,
            max_query_length=count,
            max_context_length=start,
        )
        hidden = decoder.forward(7 + 3 * positions, positions, batch, caches)
        found.append(decoder.logits(hidden).clone())
    return torch.cat(found)


def loaded(path: Path, shard: Shard | None = None, backend: str = "cpu", **settings: Any) -> NativeDecoder:
    decoder = load_decoder(Checkpoint(path), kernels=kernels.load(backend), shard=shard, **settings)
    assert isinstance(decoder, NativeDecoder)
    return decoder


def ranks_of(
    path: Path, ranks: int, segments: int | None = None, experts: ExpertSharing = "cut", **settings: Any
) -> list[NativeDecoder]:
    """Return the decoders of all ranks of a group."""
    decoders = [loaded(path, Shard(rank, ranks, segments, experts), **settings) for rank in range(ranks)]
    for decoder, collectives in zip(decoders, local_group(ranks), strict=True):
        decoder.join(collectives)
    return decoders


def in_stages(
    path: Path,
    stages: int,
    ranks: int = 1,
    layers: tuple[int, ...] | None = None,
    segments: int | None = None,
    experts: ExpertSharing = "cut",
    **settings: Any,
) -> list[NativeDecoder]:
    """Return the decoders of a group in stages of so many ranks, in the order of their ranks: the last stage first."""
    found = []
    for stage in reversed(range(stages)):
        together = local_group(ranks)
        for rank in range(ranks):
            shard = Shard(rank, ranks, segments, experts, Stage(stage, stages, layers))
            decoder = loaded(path, shard, **settings)
            found.append((decoder, together[rank]))
    for (decoder, of_stage), everyone in zip(found, local_group(ranks * stages), strict=True):
        decoder.join(of_stage, StageLinks(everyone, ranks))
    return [decoder for decoder, _ in found]


def run_all(decoders: Sequence[NativeDecoder], chunks: Sequence[int] = (TOKENS,)) -> torch.Tensor:
    """Return the first rank's logits, float32 [TOKENS, V]."""
    found = in_threads([lambda one=one: run(one, chunks) for one in decoders])
    for one in found:
        if isinstance(one, BaseException):
            raise one
    assert isinstance(found[0], torch.Tensor)
    return found[0]


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_the_ranks_of_every_architecture_compute_what_one_does(
    saved: Callable[[str], Path], name: str
) -> None:
    """Four ranks have two key heads: each of these is on two ranks."""
    alone = loaded(saved(name), dtype="float32")
    expected = run(alone)
    for ranks in (2, 4):
        decoders = ranks_of(saved(name), ranks, dtype="float32")
        torch.testing.assert_close(run_all(decoders), expected, rtol=1e-4, atol=1e-4)
        replicated = sum(one.nbytes for key, one in named(alone) if is_replicated(key, alone, ranks))
        most = (alone.num_bytes - replicated) / ranks + replicated + 16 * ranks * 128 * 4
        assert max(decoder.num_bytes for decoder in decoders) <= most


def named(decoder: NativeDecoder) -> list[tuple[str, Any]]:
    layers = [pair for layer in decoder._layer_weights for pair in layer.items()]
    return [*decoder._weights.items(), *layers]


def is_replicated(name: str, decoder: NativeDecoder, ranks: int) -> bool:
    """Tell whether a tensor may be whole on each rank, or partly so (heads that two ranks have)."""
    some_heads = name.startswith("qkv") and decoder.spec.attention.num_kv_heads < ranks
    parts = ("norm", "router", "switch", "position", "o.bias", "down.bias", "latent")
    return some_heads or any(part in name for part in parts)


STAGED = (
    *("llama_biased", "qwen3_window", "qwen2_moe_window", "gemma2", "gemma3", "gpt2", "gpt_neox", "smollm3"),
    *("phi3", "granite_biased", "gpt_oss", "deepseek_v2_lite"),
)
"""Families that differ in what is outside of layers, in the arrangement of norms, and from layer to layer."""


@pytest.mark.parametrize("name", STAGED)
def test_stages_compute_the_bits_of_one_decoder(saved: Callable[[str], Path], name: str) -> None:
    """Hidden states cross as they are, and each stage keeps what its layers wrote."""
    alone = loaded(saved(name), dtype="bfloat16")
    decoders = in_stages(saved(name), 2, dtype="bfloat16")
    for chunks in ((TOKENS,), (1, 12, 8)):
        assert torch.equal(run_all(decoders, chunks), run(alone, chunks))
    tied = alone.spec.tie_word_embeddings * alone.embedding.nbytes
    assert sum(decoder.num_bytes for decoder in decoders) == alone.num_bytes + tied
    assert all(decoder.kv_bytes_per_block(16) < alone.kv_bytes_per_block(16) for decoder in decoders)


def test_ranks_in_stages_compute_the_bits_of_ranks_in_one(saved: Callable[[str], Path]) -> None:
    path = saved("qwen2_moe_window")
    expected = run_all(ranks_of(path, 2, dtype="float32"))
    for layers in (None, (1, 2)):
        assert torch.equal(run_all(in_stages(path, 2, ranks=2, layers=layers, dtype="float32")), expected)
    assert torch.equal(run_all(in_stages(path, 3, ranks=2, dtype="float32")), expected)


@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_stages_of_quantised_weights_compute_the_bits_of_one(
    saved: Callable[[str], Path], quantization: str
) -> None:
    settings: dict[str, Any] = {"dtype": "bfloat16", "quantization": quantization}
    for name in ("gemma2", "llama_biased"):  # whose head is the embedding, and is not
        expected = run(loaded(saved(name), **settings))
        assert torch.equal(run_all(in_stages(saved(name), 3, **settings)), expected)


BITS = [
    ("llama_biased", {"dtype": "float32"}),
    ("llama_biased", {"dtype": "bfloat16"}),
    ("qwen2_moe_window", {"dtype": "bfloat16"}),
    ("gemma2", {"dtype": "bfloat16"}),
    ("qwen3_window", {"dtype": "bfloat16", "quantization": "int8"}),
    ("qwen3_window", {"dtype": "bfloat16", "quantization": "int4"}),
    ("qwen2_moe_window", {"dtype": "float32", "quantization": "int8"}),
]


@pytest.mark.parametrize(("name", "settings"), BITS, ids=str)
def test_one_two_and_four_ranks_with_as_many_segments_have_the_same_bits(
    saved: Callable[[str], Path], name: str, settings: dict[str, Any]
) -> None:
    expected = None
    for ranks in (1, 2, 4):
        decoders = ranks_of(saved(name), ranks, segments=4, **settings)
        for chunks in ((TOKENS,), (1, 12, 1, 7)):
            found = run_all(decoders, chunks)
            expected = found if expected is None else expected
            assert torch.equal(found, expected), f"{ranks} ranks, {chunks}"
    assert expected is not None
    alone = run(loaded(saved(name), **settings))
    assert (expected - alone).square().mean().sqrt() < 0.03 * alone.std()


MIXTURES = ("mixtral", "qwen3_moe", "qwen2_moe_window", "gpt_oss")


@pytest.mark.parametrize("name", MIXTURES)
def test_ranks_with_whole_experts_compute_what_one_does(saved: Callable[[str], Path], name: str) -> None:
    alone = loaded(saved(name), dtype="float32")
    decoders = ranks_of(saved(name), 2, experts="whole", dtype="float32")
    torch.testing.assert_close(run_all(decoders), run(alone), rtol=1e-4, atol=1e-4)
    stacks = [one._layer_weights[0]["expert_down.weight"].nbytes for one in (alone, *decoders)]
    assert stacks[0] == stacks[1] + stacks[2], "each has half of them"


EXACT = [
    ("mixtral", {"dtype": "float32"}),
    ("qwen2_moe_window", {"dtype": "bfloat16"}),
    ("qwen3_moe", {"dtype": "float32", "quantization": "int8"}),
    ("gpt_oss", {"dtype": "bfloat16"}),
]


@pytest.mark.parametrize(("name", "settings"), EXACT, ids=str)
def test_exact_sums_over_whole_experts_are_the_bits_of_one_rank(
    saved: Callable[[str], Path], name: str, settings: dict[str, Any]
) -> None:
    """Attention is cut as ever, in segments of its sums that one rank has too."""
    expected = run_all(ranks_of(saved(name), 1, 2, experts="exact", **settings))
    for chunks in ((TOKENS,), (1, 12, 8)):
        assert torch.equal(
            run_all(ranks_of(saved(name), 2, 2, experts="exact", **settings), chunks), expected
        )
    staged = in_stages(saved(name), 2, ranks=2, segments=2, experts="exact", **settings)
    assert torch.equal(run_all(staged), expected)


ADAPTED = {
    "llama_biased": ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"),
    "phi3": ("qkv_proj", "o_proj", "gate_up_proj", "down_proj"),
    "gpt_neox": ("query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h"),
}


@pytest.mark.parametrize("name", ADAPTED)
def test_ranks_have_their_share_of_an_adapter(
    saved: Callable[[str], Path], tmp_path: Path, name: str
) -> None:
    """Parts cut by rows and by inputs, and rows that a checkpoint has fused."""
    path = saved(name)
    save_adapter(tmp_path, FAMILIES[name][0].from_pretrained(path), ADAPTED[name])
    folders = {"a": str(tmp_path)}
    alone = loaded(path, dtype="float32")
    with Adapters(folders, Checkpoint(path), alone).applied([("a", None)]):
        expected = run(alone)
    assert not torch.allclose(expected, run(alone), atol=1e-2)
    decoders = ranks_of(path, 2, dtype="float32")
    adapters = [Adapters(folders, Checkpoint(path), one) for one in decoders]
    with adapters[0].applied([("a", None)]), adapters[1].applied([("a", None)]):
        found = run_all(decoders)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert adapters[0].num_bytes < Adapters(folders, Checkpoint(path), alone).num_bytes


@pytest.mark.parametrize(
    ("name", "ranks", "segments", "message"),
    [
        ("llama_biased", 3, None, "4 attention heads do not divide by 3; expected 1, 2 or 4"),
        ("llama_biased", 2, 16, "all heads together are 128 wide, which is no multiple of 32 x 16 segments"),
        ("qwen2_moe_window", 2, 8, "expected tensor_segments 2 or 4"),
    ],
)
def test_sizes_that_do_not_divide_are_refused_with_the_arithmetic_and_what_would(
    saved: Callable[[str], Path], name: str, ranks: int, segments: int | None, message: str
) -> None:
    assert message in why_not_shared(Checkpoint(saved(name)), ranks, segments)
    with pytest.raises(CheckpointError, match=f"tensor_parallel {ranks}"):
        loaded(saved(name), Shard(0, ranks, segments))


@pytest.mark.parametrize(
    ("stages", "layers", "message"),
    [
        (4, None, "3 layers are fewer than 4 stages; expected 1 to 3"),
        (2, (1, 1), "1 + 1 are 2 layers; expected 3 together, which the model has"),
    ],
)
def test_layers_that_do_not_divide_are_refused_with_the_arithmetic_and_what_would(
    saved: Callable[[str], Path], stages: int, layers: tuple[int, ...] | None, message: str
) -> None:
    assert message in why_not_staged(Checkpoint(saved("mixtral")), stages, layers)
    with pytest.raises(CheckpointError, match=f"pipeline_parallel {stages}"):
        loaded(saved("mixtral"), Shard(0, 1, stage=Stage(0, stages, layers)))


def test_experts_that_do_not_divide_are_refused_with_the_arithmetic_and_what_would(
    saved: Callable[[str], Path],
) -> None:
    checkpoint = Checkpoint(saved("qwen3_moe"))
    message = "6 experts do not divide by 4; expected 1, 2, 3 or 6"
    assert message in why_not_shared(checkpoint, 4, experts="whole")
    assert not why_not_shared(checkpoint, 4), "each is cut"


@pytest.mark.parametrize("name", ["olmo2", "olmo3"])
def test_a_norm_over_all_heads_at_once_is_refused_with_its_reason(
    saved: Callable[[str], Path], name: str
) -> None:
    with pytest.raises(CheckpointError, match="the norm of queries and keys is over all heads at once"):
        loaded(saved(name), Shard(0, 2))
