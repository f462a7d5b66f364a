"""The model runner: one step on the device. The seam that the simulator replaces.

Everything above it is numpy and messages; torch begins here.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from pageant import kernels
from pageant.actors.executor.batch import SamplingColumns, StepInputs
from pageant.actors.executor.host_memory import HostMemory
from pageant.actors.executor.memory import available_bytes, choose_num_blocks, total_bytes
from pageant.actors.executor.moving import Move
from pageant.actors.executor.processors import process_logits
from pageant.actors.executor.programs import StepPrograms
from pageant.actors.executor.scoring import Scores, Scoring, score_prompts
from pageant.actors.executor.shaping import shape_logits
from pageant.kernels.base import AttentionBatch, SamplingTensors
from pageant.kernels.cpu import CpuKernels
from pageant.models.checkpoint import Checkpoint
from pageant.models.decoder import Decoder
from pageant.models.loading import load_decoder
from pageant.models.quantization import Quantization
from pageant.protocol.logprobs import Logprobs

log = logging.getLogger("pageant.executor")


class Drawn(Protocol):
    """The tokens of a step, perhaps still on their way."""

    ready: bool
    """Whether they can be had without waiting."""

    failed: dict[int, str]
    """Why some drawing rows have no right token, by their places."""

    def token_ids(self) -> npt.NDArray[np.int64]:
        """One for each of the step's drawing rows. Waits for the device."""

    def logprobs(self) -> tuple[Logprobs | None, Logprobs | None]:
        """Of the tokens drawn and of the prompts' tokens, where asked for; once the tokens are there."""


class Host(Protocol):
    """Blocks in the host's memory."""

    block_bytes: int

    def move(self, move: Move) -> None:
        """Makes one move; returns when it has been made. Never called twice at once, but beside `launch`."""


class ModelRunner(Protocol):
    """Computes steps."""

    num_blocks: int
    dtype: str
    window: int | None
    """How many tokens any layer attends over at most; None is all."""

    @property
    def memory_bytes(self) -> dict[str, int]:
        """What weights and KV cache take, and of the device's memory all that is free and all that there is."""

    @property
    def host(self) -> Host:
        """Where blocks go that there is no room for."""

    def launch(self, inputs: StepInputs) -> Drawn:
        """Begins a step. The next may be launched before this one's tokens are there; it finds those that it
        computes (`StepInputs.unknown`) on the device."""


class DrawnHere:
    """Tokens that are there, as those of a CPU always are."""

    ready = True

    def __init__(
        self,
        token_ids: npt.NDArray[np.int64],
        drawn: Scoring | None = None,
        prompts: Scoring | None = None,
        failed: dict[int, str] | None = None,
    ) -> None:
        self._token_ids = token_ids
        self.failed = failed or {}
        self._scorings = drawn, prompts

    def logprobs(self) -> tuple[Logprobs | None, Logprobs | None]:
        """See `Drawn`."""
        drawn, prompts = (scoring.columns() if scoring is not None else None for scoring in self._scorings)
        return drawn, prompts

    def token_ids(self) -> npt.NDArray[np.int64]:
        """See `Drawn`."""
        return self._token_ids


class TorchRunner:
    """Runs a decoder on one device, with its paged KV cache.

    Args:
        budget_bytes: for the KV cache; None leaves it to `choose_num_blocks`.
        num_blocks: exactly so many blocks, whatever the memory.
    """

    spare_blocks = 0  # of the KV cache, behind those that sequences get
    host_class: type[HostMemory] = HostMemory

    def __init__(
        self,
        model: Path,
        *,
        dtype: str,
        quantization: Quantization | None = None,
        device: str,
        backend: str,
        block_size: int,
        max_model_len: int,
        max_num_seqs: int,
        budget_bytes: int | None,
        num_blocks: int | None,
        threads: int | None,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        if device == "cpu":
            torch.set_num_threads(threads or len(os.sched_getaffinity(0)))
        self.device = torch.device(device)
        self._kernels = kernels.load(backend, device)
        self._decoder: Decoder = load_decoder(
            Checkpoint(model),
            dtype,
            self.device,
            kernels=self._kernels,
            max_model_len=max_model_len,
            quantization=quantization,
            progress=progress,
        )
        block_bytes = self._decoder.kv_bytes_per_block(block_size)
        if budget_bytes is None and num_blocks is None:
            budget_bytes = self._kv_budget(block_size, max_num_seqs)
        self.num_blocks = num_blocks or choose_num_blocks(
            block_bytes=block_bytes,
            block_size=block_size,
            max_model_len=max_model_len,
            max_num_seqs=max_num_seqs,
            budget_bytes=budget_bytes,
        )
        window = self._decoder.spec.window
        self.window = window if window is not None and window < max_model_len else None
        self.dtype = str(self._decoder.dtype).removeprefix("torch.")
        blocks = self.num_blocks + self.spare_blocks
        self._kv_caches = self._decoder.allocate_kv_caches(blocks, block_size)
        self.host = self.host_class(self._kv_caches)
        self._kv_bytes = blocks * block_bytes
        self._last_drawn = torch.zeros(max_num_seqs, dtype=torch.int64, device=self.device)  # by row
        self._programs: StepPrograms | None = None
        if isinstance(self._kernels, CpuKernels):
            self._programs = StepPrograms(
                self._forward,
                self._kernels.capture,
                max_num_seqs=max_num_seqs,
                max_model_len=max_model_len,
                block_size=block_size,
            )
        log.info(
            "%s in %s%s on %s with %s kernels: %.0f MiB of weights, %d KV blocks of %d tokens (%.0f MiB)",
            *(
                model.name,
                self.dtype,
                f" with {quantization} weights" if quantization else "",
                device,
                self._kernels.name,
                self._decoder.num_bytes / 2**20,
            ),
            *(self.num_blocks, block_size, self.num_blocks * block_bytes / 2**20),
        )

    @property
    def memory_bytes(self) -> dict[str, int]:
        """See `ModelRunner`."""
        free, total = self._memory()
        return {"weights": self._decoder.num_bytes, "kv_cache": self._kv_bytes, "free": free, "total": total}

    def _memory(self) -> tuple[int, int]:
        """Of the device, free and total."""
        return available_bytes(), total_bytes()

    @torch.inference_mode()
    def launch(self, inputs: StepInputs) -> Drawn:
        """See `ModelRunner`."""
        self._copy_blocks(inputs)
        hidden = self._programs.run(inputs, self._last_drawn) if self._programs is not None else None
        if hidden is None:
            hidden = self._forward(
                self._token_ids(inputs), self._tensor(inputs.positions), self._attention(inputs)
            )
        prompts = self._score_prompts(hidden, inputs.scores)
        if not len(inputs.rows):
            return DrawnHere(np.empty(0, np.int64), None, prompts)
        logits = self._decoder.logits(hidden[self._tensor(inputs.last_tokens)])
        raw = self._unshaped(logits, inputs.scores)
        shape_logits(logits, inputs.sampling.shaping)
        failed = process_logits(logits, inputs.processing)
        tokens = self._draw(logits, inputs.sampling)
        self._last_drawn[self._tensor(inputs.rows)] = tokens
        return DrawnHere(tokens.cpu().numpy(), self._score(raw, tokens, inputs.scores), prompts, failed)

    def _forward(
        self, token_ids: torch.Tensor, positions: torch.Tensor, batch: AttentionBatch
    ) -> torch.Tensor:
        return self._decoder.forward(token_ids, positions, batch, self._kv_caches)

    def _score_prompts(self, hidden: torch.Tensor, scores: Scores | None) -> Scoring | None:
        if scores is None or scores.prompt is None:
            return None
        return score_prompts(scores.prompt, self._kernels, self._decoder.logits, hidden)

    def _unshaped(self, logits: torch.Tensor, scores: Scores | None) -> torch.Tensor | None:
        """A copy of the logits of the rows whose log-probabilities are asked for."""
        if scores is None or scores.drawn is None:
            return None
        return logits[self._tensor(scores.drawn.places)]

    def _score(self, raw: torch.Tensor | None, tokens: torch.Tensor, scores: Scores | None) -> Scoring | None:
        if raw is None or scores is None or scores.drawn is None:
            return None
        scoring = Scoring(scores.drawn)
        scoring.add(self._kernels, raw, tokens[self._tensor(scores.drawn.places)])
        return scoring

    def _kv_budget(self, block_size: int, max_num_seqs: int) -> int | None:
        """Bytes for the KV cache where nobody said how many; None is a share of the host's memory."""
        return None

    def _copy_blocks(self, inputs: StepInputs) -> None:
        """What the step's new sequences share with others in part becomes their own."""
        if len(inputs.copy_sources):
            sources, destinations = (
                self._tensor(blocks.astype(np.int64))
                for blocks in (inputs.copy_sources, inputs.copy_destinations)
            )
            self._kernels.move_kv(self._kv_caches, sources, destinations)

    def _token_ids(self, inputs: StepInputs) -> torch.Tensor:
        token_ids = self._tensor(inputs.token_ids)
        if len(inputs.unknown):
            token_ids[self._tensor(inputs.unknown)] = self._last_drawn[self._tensor(inputs.unknown_rows)]
        return token_ids

    def _draw(self, logits: torch.Tensor, sampling: SamplingColumns) -> torch.Tensor:
        tensors = SamplingTensors(
            temperature=self._tensor(sampling.temperature),
            top_k=self._tensor(sampling.top_k),
            top_p=self._tensor(sampling.top_p),
            min_p=self._tensor(sampling.min_p),
            seed=self._tensor(sampling.seed),
            sample=self._tensor(sampling.sample),
            position=self._tensor(sampling.position),
        )
        return self._kernels.sample(logits, tensors)

    def _attention(self, inputs: StepInputs) -> AttentionBatch:
        return AttentionBatch(
            query_starts=self._tensor(inputs.query_starts),
            context_lengths=self._tensor(inputs.context_lengths),
            block_tables=self._tensor(inputs.block_tables),
            slots=self._tensor(inputs.slots),
            positions=self._tensor(inputs.positions),
            max_query_length=inputs.max_query_length,
            max_context_length=inputs.max_context_length,
        )

    def _tensor(self, array: npt.NDArray[np.generic]) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self.device, non_blocking=True)
