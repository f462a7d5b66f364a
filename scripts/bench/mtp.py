"""`pageant bench mtp`: how many tokens a verification brings where a checkpoint's own layer drafts.

A model of GLM-4.5's kind learns Python's help texts together with such a layer, from random weights. Then it answers
questions, greedily, with so many drafts in a step, and every answer is compared with the one without drafts.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from pydoc_data.topics import topics
from random import Random
from typing import Annotated, Any

import torch
import typer
from tokenizers import Tokenizer
from torch import Tensor
from transformers import Glm4MoeConfig, Glm4MoeForCausalLM

from pageant.actors.client.llm import LLM
from pageant.protocol.sampling import SamplingParams
from pageant.scripts.engine_options import DEMO_MODEL
from pageant.scripts.report import Json, publish
from pageant.scripts.samples.mtp_model import MTPModel, train
from pageant.scripts.samples.questions import QUESTIONS

WIDTH, LAYERS, BATCH_ROWS, ROW_TOKENS = 128, 2, 4, 256
LEARNING_RATE = 3e-3
SEED = 21


def bench(
    steps: Annotated[int, typer.Option(help="Batches that the model learns from.")] = 600,
    tokens: Annotated[
        int, typer.Option(help="The most drafts in a step; each number up to it is tried.")
    ] = 4,
    output: Annotated[int, typer.Option(help="Tokens of an answer.")] = 80,
    threads: Annotated[int, typer.Option(help="Threads that compute.")] = 2,
    json: Json = None,
) -> None:
    """Drafts of a checkpoint's own layer (MTP): tokens for each verification, of a model that is trained for it."""
    torch.set_num_threads(threads)
    with tempfile.TemporaryDirectory() as folder:
        trained = _trained(Path(folder), steps)
        figures = {"trained": trained, **_measured(Path(folder), tokens, output, threads)}
    publish(figures, _lines(figures), json)


def small_model(tokenizer: Tokenizer) -> MTPModel:
    """Return a model of GLM-4.5's kind with random weights, one dense layer and one of experts, and its layer."""
    config = Glm4MoeConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=WIDTH,
        intermediate_size=3 * WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        n_routed_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=WIDTH,
        first_k_dense_replace=1,
        n_group=1,
        topk_group=1,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        pad_token_id=0,
        eos_token_id=None,
        bos_token_id=None,
    )
    return MTPModel(Glm4MoeForCausalLM(config))


def _batches(tokenizer: Tokenizer) -> Iterator[Tensor]:
    """Yield int64 [BATCH_ROWS, ROW_TOKENS] without end."""
    token_ids = tokenizer.encode("\n".join(topics.values())).ids
    chance = Random(SEED)
    while True:
        starts = [chance.randrange(len(token_ids) - ROW_TOKENS) for _ in range(BATCH_ROWS)]
        yield torch.tensor([token_ids[start : start + ROW_TOKENS] for start in starts])


def _trained(folder: Path, steps: int) -> dict[str, Any]:
    """Train a model, and write its checkpoint with the demo model's tokenizer."""
    torch.manual_seed(SEED)
    tokenizer = Tokenizer.from_file(str(DEMO_MODEL / "tokenizer.json"))
    mtp = small_model(tokenizer)
    began = time.perf_counter()
    losses = train(mtp, _batches(tokenizer), steps=steps, rate=LEARNING_RATE)
    seconds = time.perf_counter() - began
    mtp.save(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(DEMO_MODEL / name, folder)
    return {
        "steps": steps,
        "seconds": round(seconds, 1),
        "parameters": sum(weight.numel() for weight in mtp.parameters()),
        "losses": [round(loss, 3) for loss in losses],
    }


def _measured(folder: Path, tokens: int, output: int, threads: int) -> dict[str, Any]:
    """Return what each number of drafts brings, and whether its answers are those without."""
    params = SamplingParams(temperature=0, max_tokens=output)
    messages = [[{"role": "user", "content": question.text}] for question in QUESTIONS]
    answers, found = [], {}
    for count in range(tokens + 1):
        speculation = {"method": "mtp", "tokens": count, "adaptive": False} if count else None
        with LLM(folder, progress=False, num_blocks=1024, threads=threads, speculation=speculation) as llm:
            answers.append([one.outputs[0].token_ids for one in llm.chat(messages, params)])
            counters = llm.scheduler_statistics().counters
        if count:
            accepted, verifications = counters["drafts_accepted"], counters["verifications"]
            found[str(count)] = {
                "verifications": verifications,
                "drafts_proposed": counters["drafts_proposed"],
                "drafts_accepted": accepted,
                "tokens_per_verification": round(1 + accepted / max(1, verifications), 3),
                "same_answers": answers[-1] == answers[0],
            }
    return {"questions": len(messages), "tokens": sum(map(len, answers[0])), "drafts": found}


def _lines(figures: dict[str, Any]) -> list[str]:
    trained = figures["trained"]
    return [
        f"{trained['parameters']:,} parameters, {trained['steps']} steps in {trained['seconds']} s",
        *(
            f"{count} drafts: {row['tokens_per_verification']:.2f} tokens for each verification, "
            f"answers {'as without' if row['same_answers'] else 'that differ from those without'}"
            for count, row in figures["drafts"].items()
        ),
    ]
