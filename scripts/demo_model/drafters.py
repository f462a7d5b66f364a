"""Trains what drafts for the packaged demo model: a smaller model, an EAGLE head, and Medusa heads.

    python -m pageant.scripts.demo_model.drafters [--output FOLDER] [--threads N]

All three learn from the demo model at once: on the rows that it was trained on, each is to say what it would say, by
its probabilities, at some of the positions that it learnt itself. The smaller model begins as the first and the last of
its layers, and the EAGLE head (EAGLE-3's kind) as the last.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn import functional
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import (
    LlamaDecoderLayer,
    LlamaRMSNorm,
    LlamaRotaryEmbedding,
)

from pageant.scripts.demo_model.batches import IGNORED, ROW_TOKENS, conversation_rows, document_rows, stacked
from pageant.scripts.demo_model.checkpoint import SETTINGS
from pageant.scripts.engine_options import DEMO_MODEL

SEED = 21
STEPS = {"draft": 500, "eagle": 900, "medusa": 800}
BATCH_ROWS = 4
PLAIN_ROWS = 1  # of them, plain documentation
WARMUP_STEPS = 60
LEARNING_RATES = {"draft": 1e-3, "eagle": 1e-3, "medusa": 3e-3}
POSITIONS = 320  # of a batch, that a loss looks at
UNROLLED = 4  # how often the EAGLE head goes on from its own states
MEDUSA_HEADS = 3
MEDUSA_LAYERS = 3
DRAFT_LAYERS = (0, 4)  # of the target's
TAPS = (1, 3, 4)  # the target's layers whose inputs the EAGLE head reads


class EagleHead(nn.Module):
    """EAGLE-3's: a Llama layer whose attention reads embedding and state, both normed, and a head of its own."""

    def __init__(self, config: LlamaConfig, target: LlamaForCausalLM) -> None:
        super().__init__()
        width: int = SETTINGS["hidden_size"]
        size: int = SETTINGS["num_key_value_heads"] * SETTINGS["head_dim"]
        self.fc = nn.Linear(len(TAPS) * width, width, bias=False)
        self.layer = LlamaDecoderLayer(config, 0)
        self.layer.load_state_dict(target.model.layers[-1].state_dict())
        self.hidden_norm = LlamaRMSNorm(width, config.rms_norm_eps)
        self.norm = LlamaRMSNorm(width, config.rms_norm_eps)
        self.lm_head = nn.Linear(width, config.vocab_size, bias=False)
        self.rotary = LlamaRotaryEmbedding(config)
        with torch.no_grad():
            self.fc.weight.zero_()
            self.fc.weight[:, -width:] = torch.eye(width)
            self.hidden_norm.weight.copy_(self.layer.input_layernorm.weight)
            self.norm.weight.copy_(target.model.norm.weight)
            self.lm_head.weight.copy_(target.lm_head.weight)
        attention = self.layer.self_attn
        for name, rows in (("q_proj", width), ("k_proj", size), ("v_proj", size)):
            wide = nn.Linear(2 * width, rows, bias=False)
            with torch.no_grad():
                wide.weight[:, :width] *= 0.1
                wide.weight[:, width:] = getattr(attention, name).weight
            setattr(attention, name, wide)

    def forward(self, embedded: Tensor, state: Tensor) -> Tensor:
        """Return float32 [rows, tokens, width] for embeddings, and the states before them, of that shape."""
        tokens = embedded.shape[1]
        turned = self.rotary(state, torch.arange(tokens)[None])
        mask = torch.full((tokens, tokens), float("-inf")).triu(1)[None, None]
        read = torch.cat([self.layer.input_layernorm(embedded), self.hidden_norm(state)], dim=-1)
        attended, _ = self.layer.self_attn(
            hidden_states=read, attention_mask=mask.to(read.dtype), position_embeddings=turned
        )
        stream = state + attended
        return stream + self.layer.mlp(self.layer.post_attention_layernorm(stream))  # type: ignore[no-any-return]


class MedusaHead(nn.Module):
    """Residual blocks; the target's own head comes after them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        blocks = [nn.Linear(width, width) for _ in range(MEDUSA_LAYERS)]
        self.blocks = nn.ModuleList(blocks)
        for block in blocks:
            nn.init.normal_(block.weight, std=0.3 / width**0.5)
            nn.init.zeros_(block.bias)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return hidden states like those given, float32 [rows, tokens, width]."""
        for block in self.blocks:
            hidden = hidden + functional.silu(block(hidden))
        return hidden


class Lesson:
    """Lesson of a batch: what the target makes of it, and some positions at which it is asked."""

    def __init__(self, target: LlamaForCausalLM, token_ids: Tensor, labels: Tensor) -> None:
        with torch.no_grad():
            found = target.model(input_ids=token_ids, output_hidden_states=True)
        self.token_ids, self.hidden = token_ids, found.last_hidden_state
        self.tapped = torch.cat([found.hidden_states[layer] for layer in TAPS], dim=-1)
        self.head = target.lm_head.weight
        # Positions whose next token the target has learnt.
        learnt = functional.pad(labels[:, 1:] != IGNORED, (0, 1)).flatten().nonzero()[:, 0]
        self._chosen = learnt[torch.randperm(len(learnt))[:POSITIONS]]

    def loss(self, hidden: Tensor, ahead: int, head: Tensor | None = None) -> Tensor:
        """Return the cross entropy of what hidden states lead to, against what the target says `ahead` positions later.

        hidden: float32 [rows, tokens, width]. head: float32 [vocab_size, width], by default the target's.
        Returns a float32 scalar of shape [].
        """
        tokens = self.token_ids.shape[1]
        chosen = self._chosen[self._chosen % tokens < tokens - ahead]
        with torch.no_grad():
            said = functional.linear(self.hidden.flatten(0, 1)[chosen + ahead], self.head).float().softmax(-1)
        logits = functional.linear(hidden.flatten(0, 1)[chosen], self.head if head is None else head)
        return -(said * logits.float().log_softmax(-1)).sum(-1).mean()


def draft_loss(draft: LlamaForCausalLM, target: LlamaForCausalLM, lesson: Lesson) -> Tensor:
    """Return the loss of a smaller model that says what the target says: float32, of shape []."""
    hidden = draft.model(input_ids=lesson.token_ids).last_hidden_state
    return lesson.loss(hidden, 0, draft.lm_head.weight)


def eagle_loss(eagle: EagleHead, target: LlamaForCausalLM, lesson: Lesson) -> Tensor:
    """Return the loss of a head that goes on from the target's states, and then from its own: float32, of shape []."""
    embedded = target.model.embed_tokens(lesson.token_ids).detach()
    state, losses = eagle.fc(lesson.tapped), []
    for ahead in range(1, UNROLLED + 1):
        # At each position: the token that is so far ahead, and the state before it.
        following = embedded[:, ahead:]
        state = eagle(following, state[:, : following.shape[1]])
        padded = functional.pad(eagle.norm(state), (0, 0, 0, ahead))
        losses.append(0.8**ahead * lesson.loss(padded, ahead, eagle.lm_head.weight))
    return torch.stack(losses).sum()


def medusa_loss(heads: nn.ModuleList, target: LlamaForCausalLM, lesson: Lesson) -> Tensor:
    """Return the loss of heads that each look one position further than the one before: float32, of shape []."""
    losses = [lesson.loss(head(lesson.hidden), 1 + place) for place, head in enumerate(heads)]
    return torch.stack([0.8**place * loss for place, loss in enumerate(losses)]).sum()


LOSSES: dict[str, Callable[..., Tensor]] = {"draft": draft_loss, "eagle": eagle_loss, "medusa": medusa_loss}


def batches(tokenizer: Tokenizer) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield token ids and labels, int64 [BATCH_ROWS, ROW_TOKENS], without end."""
    plain, chats = document_rows(tokenizer), conversation_rows(tokenizer)
    while True:
        yield stacked([*islice(plain, PLAIN_ROWS), *islice(chats, BATCH_ROWS - PLAIN_ROWS)])


def smaller(target: LlamaForCausalLM) -> LlamaForCausalLM:
    """Some of the target's layers, with its embedding."""
    config = LlamaConfig(**{**SETTINGS, "num_hidden_layers": len(DRAFT_LAYERS), "torch_dtype": "float32"})
    draft = LlamaForCausalLM(config)
    weights = target.state_dict()
    kept = {name: weight for name, weight in weights.items() if ".layers." not in name}
    for place, layer in enumerate(DRAFT_LAYERS):
        prefix = f"model.layers.{layer}."
        kept |= {
            f"model.layers.{place}." + name.removeprefix(prefix): weight
            for name, weight in weights.items()
            if name.startswith(prefix)
        }
    draft.load_state_dict(kept)
    return draft


def train(
    target: LlamaForCausalLM,
    parts: dict[str, nn.Module],
    tokenizer: Tokenizer,
    steps: dict[str, int],
    save_all: Callable[[], None],
) -> dict[str, float]:
    """Trains in place, each for its number of steps; returns the mean losses of the last 100 of them."""
    optimizers = {
        name: torch.optim.AdamW(
            part.parameters(), lr=LEARNING_RATES[name], betas=(0.9, 0.95), weight_decay=0.01
        )
        for name, part in parts.items()
    }
    losses: dict[str, list[float]] = {name: [] for name in parts}
    started = time.perf_counter()
    for step, (token_ids, labels) in enumerate(islice(batches(tokenizer), max(steps.values()))):
        lesson = Lesson(target, token_ids, labels)
        for name, part in parts.items():
            if step >= steps[name]:
                continue
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = LOSSES[name](part, target, lesson)
            torch.autograd.backward(loss)
            torch.nn.utils.clip_grad_norm_(part.parameters(), 1.0)
            for group in optimizers[name].param_groups:
                group["lr"] = LEARNING_RATES[name] * learning_share(step, steps[name])
            optimizers[name].step()
            optimizers[name].zero_grad()
            losses[name] = [*losses[name][-99:], loss.item()]
        if step % 100 == 99:
            means = ", ".join(f"{name} {sum(values) / len(values):.3f}" for name, values in losses.items())
            print(f"step {step + 1} {means} after {time.perf_counter() - started:.0f} s", flush=True)
            save_all()
    return {name: sum(values) / len(values) for name, values in losses.items()}


def learning_share(step: int, steps: int) -> float:
    """Return the share of the learning rate: linear warm-up, then a cosine down to a fiftieth."""
    warm = min(1.0, (step + 1) / WARMUP_STEPS)
    return warm * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * step / steps)))


def _save(folder: Path, tensors: dict[str, Tensor], config: dict[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "model.safetensors"
    save_file(
        {name: tensor.detach().to(torch.bfloat16).contiguous() for name, tensor in tensors.items()}, path
    )
    path.chmod(0o644)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def save(output: Path, draft: LlamaForCausalLM, eagle: EagleHead, heads: nn.ModuleList) -> None:
    """Writes the three checkpoints, as the formats' authors lay them out."""
    tied = {name: tensor for name, tensor in draft.state_dict().items() if name != "lm_head.weight"}
    _save(output / "draft", tied, SETTINGS | {"num_hidden_layers": len(DRAFT_LAYERS)})
    layer = {f"midlayer.{name}": tensor for name, tensor in eagle.layer.state_dict().items()}
    tensors = {
        **layer,
        "midlayer.hidden_norm.weight": eagle.hidden_norm.weight,
        "fc.weight": eagle.fc.weight,
        "norm.weight": eagle.norm.weight,
        "lm_head.weight": eagle.lm_head.weight,
    }
    taps = {"eagle_config": {"eagle_aux_hidden_state_layer_ids": list(TAPS)}}
    eagle3 = {"architectures": ["LlamaForCausalLMEagle3"], "num_hidden_layers": 1, **taps}
    _save(output / "eagle", tensors, SETTINGS | eagle3)
    blocks = {
        f"{place}.{layer}.linear.{name}": tensor
        for place, head in enumerate(heads)
        for layer, block in enumerate(head.blocks)  # type: ignore[arg-type]
        for name, tensor in block.state_dict().items()
    }
    sizes = {"medusa_num_heads": MEDUSA_HEADS, "medusa_num_layers": MEDUSA_LAYERS}
    _save(
        output / "medusa", blocks, {"model_type": "medusa", **sizes, "hidden_size": SETTINGS["hidden_size"]}
    )


def main() -> None:
    """Trains all three, and writes them."""
    parser = argparse.ArgumentParser(description="Train what drafts for the packaged demo model.")
    parser.add_argument("--output", type=Path, default=DEMO_MODEL)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(SEED)
    tokenizer = Tokenizer.from_file(str(DEMO_MODEL / "tokenizer.json"))
    target = LlamaForCausalLM.from_pretrained(DEMO_MODEL, dtype=torch.float32).requires_grad_(False)
    config = LlamaConfig(**{**SETTINGS, "num_hidden_layers": 1, "torch_dtype": "float32"})
    config._attn_implementation = "eager"
    draft, eagle = smaller(target), EagleHead(config, target)
    heads = nn.ModuleList(MedusaHead(SETTINGS["hidden_size"]) for _ in range(MEDUSA_HEADS))
    parts: dict[str, nn.Module] = {"draft": draft, "eagle": eagle, "medusa": heads}
    for name, part in parts.items():
        print(f"{name}: {sum(weight.numel() for weight in part.parameters()):,} parameters")
    print(f"steps of {BATCH_ROWS * ROW_TOKENS} tokens: {STEPS}", flush=True)
    losses = train(target, parts, tokenizer, STEPS, lambda: save(options.output, draft, eagle, heads))
    print(", ".join(f"{name} {loss:.3f}" for name, loss in losses.items()))


if __name__ == "__main__":
    main()
