"""EAGLE heads beside their formula, written out over a whole text at once."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

from pageant.kernels.base import AttentionBatch
from pageant.models.errors import CheckpointError
from pageant.models.heads.eagle import EagleHead
from tests.models.heads.conftest import (
    CONFIG,
    HEADS,
    KV_HEADS,
    LAYERS,
    SIZE,
    VOCAB,
    WIDTH,
    layer_tensors,
    save_head,
)

DRAFT_VOCAB = 16


def _norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * weight


def _attend(read: torch.Tensor, tensors: dict[str, torch.Tensor], prefix: str) -> torch.Tensor:
    length = len(read)
    query, key, value = (
        functional.linear(read, tensors[f"{prefix}self_attn.{name}_proj.weight"])
        .view(1, length, -1, SIZE)
        .transpose(1, 2)
        for name in "qkv"
    )
    turn = LlamaRotaryEmbedding(LlamaConfig(**CONFIG))(read[None], torch.arange(length)[None])
    query, key = apply_rotary_pos_emb(query, key, *turn)
    key, value = (part.repeat_interleave(HEADS // KV_HEADS, dim=1) for part in (key, value))
    attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
    attended = attended.transpose(1, 2).reshape(length, -1)
    return functional.linear(attended, tensors[f"{prefix}self_attn.o_proj.weight"])


def _mlp(normed: torch.Tensor, tensors: dict[str, torch.Tensor], prefix: str) -> torch.Tensor:
    gate, up = (
        functional.linear(normed, tensors[f"{prefix}mlp.{name}_proj.weight"]) for name in ("gate", "up")
    )
    return functional.linear(functional.silu(gate) * up, tensors[f"{prefix}mlp.down_proj.weight"])


def _run(head: EagleHead, token_ids: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
    """Two passes: all but the last two tokens, and those two."""
    caches = head.allocate_kv_caches(4, 4)
    found, length = [], len(token_ids)
    for start, end in ((0, length - 2), (length - 2, length)):
        positions = torch.arange(start, end)
        batch = AttentionBatch(
            query_starts=torch.tensor([0, end - start], dtype=torch.int32),
            context_lengths=torch.tensor([end], dtype=torch.int32),
            block_tables=torch.tensor([[2, 0, 3]], dtype=torch.int32),
            slots=torch.tensor([2, 0, 3])[positions // 4] * 4 + positions % 4,
            positions=positions,
            max_query_length=end - start,
            max_context_length=end,
        )
        found.append(head.advance(token_ids[start:end], hidden[start:end], positions, batch, caches[0]))
    return torch.cat(found)


def test_eagle_1_goes_on_from_the_last_hidden_states(target, tmp_path):
    torch.manual_seed(0)
    tensors = {"fc.weight": 0.2 * torch.randn(WIDTH, 2 * WIDTH), **layer_tensors("layers.0.", WIDTH)}
    head = EagleHead(save_head(tmp_path / "eagle", tensors), target, LAYERS, 64)
    assert head.taps == ()
    token_ids, hidden = torch.randint(0, VOCAB, (9,)), torch.randn(9, WIDTH)
    embedded = functional.embedding(token_ids, target.embedding)
    stream = functional.linear(torch.cat([embedded, hidden], -1), tensors["fc.weight"])
    stream = stream + _attend(stream, tensors, "layers.0.")
    normed = _norm(stream, tensors["layers.0.post_attention_layernorm.weight"])
    expected = stream + _mlp(normed, tensors, "layers.0.")
    found = _run(head, token_ids, head.first_hidden(hidden, None))
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    assert torch.equal(head.logits(found), target.logits(found)), "the head is the target's"


@pytest.mark.parametrize("own_embedding", [False, True])
def test_eagle_3_reads_three_layers_and_has_a_head_of_its_own(target, tmp_path, own_embedding):
    torch.manual_seed(1)
    tensors = {
        **layer_tensors("midlayer.", 2 * WIDTH),
        "midlayer.input_layernorm.weight": 1 + 0.1 * torch.randn(WIDTH),
        "midlayer.hidden_norm.weight": 1 + 0.1 * torch.randn(WIDTH),
        "fc.weight": 0.2 * torch.randn(WIDTH, 3 * WIDTH),
        "norm.weight": 1 + 0.1 * torch.randn(WIDTH),
        "lm_head.weight": torch.randn(DRAFT_VOCAB, WIDTH),
        "d2t": torch.arange(DRAFT_VOCAB),  # token i of the head is token 2 i
        "t2d": torch.zeros(VOCAB, dtype=torch.bool),
    }
    if own_embedding:
        tensors["embed_tokens.weight"] = torch.randn(VOCAB, WIDTH)
    path = save_head(tmp_path / "eagle3", tensors, draft_vocab_size=DRAFT_VOCAB)
    head = EagleHead(path, target, LAYERS, 64)
    assert head.taps == (2, LAYERS // 2, LAYERS - 3)
    token_ids, tapped = torch.randint(0, VOCAB, (9,)), torch.randn(9, 3 * WIDTH)
    state = functional.linear(tapped, tensors["fc.weight"])
    embedding = tensors["embed_tokens.weight"] if own_embedding else target.embedding
    embedded = functional.embedding(token_ids, embedding)
    read = torch.cat(
        [
            _norm(embedded, tensors["midlayer.input_layernorm.weight"]),
            _norm(state, tensors["midlayer.hidden_norm.weight"]),
        ],
        -1,
    )
    stream = state + _attend(read, tensors, "midlayer.")
    normed = _norm(stream, tensors["midlayer.post_attention_layernorm.weight"])
    expected = stream + _mlp(normed, tensors, "midlayer.")
    found = _run(head, token_ids, head.first_hidden(torch.zeros(9, WIDTH), tapped))
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    logits = head.logits(found)
    own = functional.linear(_norm(expected, tensors["norm.weight"]), tensors["lm_head.weight"])
    torch.testing.assert_close(logits[:, ::2][:, :DRAFT_VOCAB], own, atol=1e-4, rtol=1e-4)
    assert bool((logits[:, 1::2] == float("-inf")).all())


def test_the_target_shows_the_inputs_of_its_layers(target, target_folder):
    """Compare with transformers' hidden states, whose i-th is the input of layer i."""
    target.taps = (0, 3, 3, 5)
    positions = torch.arange(5)
    batch = AttentionBatch(
        query_starts=torch.tensor([0, 5], dtype=torch.int32),
        context_lengths=torch.tensor([5], dtype=torch.int32),
        block_tables=torch.tensor([[0, 1]], dtype=torch.int32),
        slots=positions,
        positions=positions,
        max_query_length=5,
        max_context_length=5,
    )
    token_ids = torch.tensor([3, 1, 4, 1, 5])
    target.forward(token_ids, positions, batch, target.allocate_kv_caches(2, 4))
    tapped, target.taps = target.tapped, ()
    assert tapped.shape == (5, 4 * WIDTH)
    with torch.inference_mode():
        model = LlamaForCausalLM.from_pretrained(target_folder, dtype=torch.float32)
        states = model(token_ids[None], output_hidden_states=True).hidden_states
    for found, layer in zip(tapped.split(WIDTH, dim=1), (0, 3, 3, 5), strict=True):
        torch.testing.assert_close(found, states[layer][0], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"fc.weight": None}, "no tensor fc.weight; expected one of shape [32, 64]"),
        ({"fc.weight": torch.zeros(32, 65)}, "fc.weight has shape [32, 65]; expected shape [32, 64]"),
        ({"more": torch.zeros(1)}, "unknown tensors: more"),
    ],
)
def test_a_head_that_is_not_whole_is_refused(target, tmp_path, change, message):
    tensors = {"fc.weight": torch.zeros(WIDTH, 2 * WIDTH), **layer_tensors("layers.0.", WIDTH), **change}
    tensors = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    with pytest.raises(CheckpointError) as error:
        EagleHead(save_head(tmp_path / "eagle", tensors), target, LAYERS, 64)
    assert message in str(error.value)


def test_a_head_for_another_model_is_refused(target, tmp_path):
    with pytest.raises(CheckpointError, match="vocab_size is 41; expected 40"):
        EagleHead(
            save_head(tmp_path / "eagle", {"fc.weight": torch.zeros(1)}, vocab_size=41),
            target,
            target.spec.num_layers,
            64,
        )
