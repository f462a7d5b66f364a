"""Trains the packaged demo model from what the running CPython carries.

    python -m pageant.scripts.demo_model.train [--output FOLDER] [--threads N]

The same Python, torch and number of threads give the same data in the same order, and so nearly the same
model; sums in floating point keep it from being the same to the last bit on another processor.
"""

import argparse
import math
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch.nn import functional
from transformers import LlamaForCausalLM

from pageant.scripts.demo_model.batches import (
    IGNORED,
    ROW_TOKENS,
    Row,
    conversation_rows,
    document_rows,
    documents,
    rows_per_epoch,
    stacked,
)
from pageant.scripts.demo_model.check import check, transformers_answer
from pageant.scripts.demo_model.checkpoint import Outcome, new_model, save_card, save_checkpoint
from pageant.scripts.demo_model.dialogues import EPOCHS_MAX, conversations
from pageant.scripts.demo_model.tokenizer import save_tokenizer, train_tokenizer
from pageant.scripts.engine_options import DEMO_MODEL

SEED = 20
STEPS = 5200
BATCH_ROWS = 8
WARMUP_STEPS = 100
LEARNING_RATE = 2e-3
LEARNING_RATE_END = 2e-5
WEIGHT_DECAY = 0.05
CLIP_NORM = 1.0


def document_share(step: int) -> float:
    """The part of a batch that is plain documentation: language first, then mostly answers."""
    progress = step / STEPS
    return 0.75 if progress < 0.1 else 0.25 if progress < 0.5 else 0.125


def learning_rate(step: int) -> float:
    """Linear warm-up, then a cosine down to the end."""
    if step < WARMUP_STEPS:
        return LEARNING_RATE * (step + 1) / WARMUP_STEPS
    progress = (step - WARMUP_STEPS) / (STEPS - WARMUP_STEPS)
    return LEARNING_RATE_END + (LEARNING_RATE - LEARNING_RATE_END) * 0.5 * (1 + math.cos(math.pi * progress))


def batches(tokenizer: Tokenizer) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield token ids and labels, int64 [BATCH_ROWS, ROW_TOKENS], for each step, mixed as it asks."""
    plain, chats = document_rows(tokenizer), conversation_rows(tokenizer)
    for step in range(STEPS):
        num_plain = round(BATCH_ROWS * document_share(step))
        rows: list[Row] = [*islice(plain, num_plain), *islice(chats, BATCH_ROWS - num_plain)]
        yield stacked(rows)


def optimizer_of(model: LlamaForCausalLM) -> torch.optim.AdamW:
    """AdamW; norms do not decay."""
    matrices = [weight for weight in model.parameters() if weight.dim() > 1]
    vectors = [weight for weight in model.parameters() if weight.dim() == 1]
    groups = [{"params": matrices, "weight_decay": WEIGHT_DECAY}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=LEARNING_RATE, betas=(0.9, 0.95), fused=True)


def loss_of(model: LlamaForCausalLM, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the mean cross entropy of the labelled tokens, whose logits alone are computed.

    ids, labels: int64 [rows, tokens]. Returns a float32 scalar of shape [].
    """
    hidden = model.model(input_ids=ids).last_hidden_state[:, :-1]  # [rows, tokens - 1, width]
    following = labels[:, 1:]
    learnt = following != IGNORED
    return functional.cross_entropy(model.lm_head(hidden[learnt]).float(), following[learnt])


def train(model: LlamaForCausalLM, tokenizer: Tokenizer) -> float:
    """Trains in place; returns the mean loss of the last 100 steps."""
    optimizer = optimizer_of(model)
    losses: list[float] = []
    started = time.perf_counter()
    for step, (ids, labels) in enumerate(batches(tokenizer)):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = loss_of(model, ids, labels)
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP_NORM)
        optimizer.step()
        optimizer.zero_grad()
        losses = [*losses[-99:], loss.item()]
        if step % 100 == 99:
            elapsed = time.perf_counter() - started
            print(
                f"step {step + 1}/{STEPS} loss {sum(losses) / len(losses):.3f} after {elapsed:.0f} s",
                flush=True,
            )
    return sum(losses) / len(losses)


def epochs_of(tokenizer: Tokenizer) -> int:
    """Return how many epochs of conversations the training reaches into."""
    rows = sum(BATCH_ROWS - round(BATCH_ROWS * document_share(step)) for step in range(STEPS))
    epochs = -(-rows // rows_per_epoch(tokenizer))
    assert epochs < EPOCHS_MAX, "the tests look at the questions of EPOCHS_MAX epochs"
    return epochs


def vocabulary_texts() -> list[str]:
    """Return the texts that the tokenizer learns from: the documents, and one epoch's questions and answers."""
    turns = [turn for conversation in conversations(0) for turn in conversation.turns]
    return [*documents(), *(turn.question for turn in turns), *(turn.answer for turn in turns)]


def main() -> None:
    """Trains tokenizer and model, checks the answers, and writes all of it with the model card."""
    parser = argparse.ArgumentParser(description="Train the packaged demo model.")
    parser.add_argument("--output", type=Path, default=DEMO_MODEL)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(SEED)
    options.output.mkdir(parents=True, exist_ok=True)

    started = time.perf_counter()
    tokenizer = train_tokenizer(vocabulary_texts())
    save_tokenizer(tokenizer, options.output)
    document_tokens = sum(len(encoding.ids) for encoding in tokenizer.encode_batch(documents()))
    epochs = epochs_of(tokenizer)
    model = new_model()
    parameters = sum(weight.numel() for weight in model.parameters())
    tokens = STEPS * BATCH_ROWS * ROW_TOKENS
    print(f"{parameters:,} parameters; {document_tokens:,} tokens of text, {epochs} epochs of conversations")
    print(f"{STEPS} steps, {tokens:,} tokens", flush=True)

    loss = train(model, tokenizer)
    seconds = time.perf_counter() - started
    save_checkpoint(model, options.output)
    verdicts = check(transformers_answer(options.output))
    outcome = Outcome(
        document_tokens=document_tokens,
        steps=STEPS,
        tokens=tokens,
        row_tokens=ROW_TOKENS,
        epochs=epochs,
        seconds=seconds,
        threads=options.threads,
        loss=loss,
        on_topic=sum(verdict.on_topic for verdict in verdicts),
        asked=len(verdicts),
    )
    save_card(options.output, outcome, parameters)
    print(
        f"final loss {loss:.3f} after {seconds:.0f} s; {outcome.on_topic} of {outcome.asked} answers on topic"
    )


if __name__ == "__main__":
    main()
