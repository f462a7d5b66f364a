"""The runner of a GPU: inputs in one asynchronous copy, decodes as graphs, tokens back when they are asked for.

Nothing on a step's way waits for the device but `token_ids`, which returns its tokens.
"""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pageant.actors.executor.batch.inputs import SamplingColumns, StepInputs
from pageant.actors.executor.batch.shaping import NOTHING
from pageant.actors.executor.guided.pending_sample import PendingSample
from pageant.actors.executor.runners.config import RunnerConfig
from pageant.actors.executor.runners.graphs import Capture, CudaCapture, StepGraphs
from pageant.actors.executor.runners.memory import device_budget
from pageant.actors.executor.runners.model_runner import StepTokens
from pageant.actors.executor.runners.passes import decodes
from pageant.actors.executor.runners.runner import TorchRunner
from pageant.actors.executor.runners.sampled_tokens import SampledTokens, sampled_tokens
from pageant.actors.executor.runners.staging import Staging
from pageant.actors.executor.tiers.host_memory import DeviceHostMemory
from pageant.kernels.base import AttentionBatch, SamplingTensors, StateRows, TokenMasks
from pageant.kernels.preparing import PreparedKernels

__all__ = ["CudaRunner"]


_SHORT_PROMPT = 16  # tokens: more than attention's kernel for decodes takes of a sequence
LOGPROBS_PREPARED = (1, 2, 4, 8, 16, 20)
"""Numbers of likeliest tokens that kernels are compiled for at the start, one for each variant of the kernel."""


class CudaRunner(TorchRunner):
    """A `TorchRunner` for a GPU. (On a CPU it does the same without graphs, for the tests.)

    The configuration's `gpu_memory_utilization` is the share of the device's memory for all of it: weights, KV cache,
    and what a step of `max_num_batched_tokens` tokens needs, which is tried out.

    Args:
        capture: how steps become graphs.
        others: see `TorchRunner`.
    """

    spare_blocks = 1  # for the rows that pad a batch

    def __init__(self, config: RunnerConfig, *, capture: Capture | None = None, **others: Any) -> None:
        if config.device != "cpu":
            self.host_class = DeviceHostMemory
        super().__init__(config, **others)
        self._staging = Staging(self.device)
        self._graphs: StepGraphs | None = None
        # The reference kernels look at what is on the device, which a graph cannot.
        if capture is None and self.device.type == "cuda" and self._kernels.name == "triton":
            capture = CudaCapture()
        if capture is not None and not self._decoder.taps and decodes(self._decoder):
            self._graphs = StepGraphs(
                self._passes.forward,
                capture,
                self._staging,
                last_drawn=self._last_drawn,
                max_num_seqs=config.max_num_seqs,
                max_model_len=self.max_model_len,
                block_size=config.block_size,
                spare_block=self.num_blocks,
                num_groups=len(self.windows),
                tokens_max=config.max_num_batched_tokens,
            )

    @property
    def preparations(self) -> dict[str, int]:
        """See `ModelRunner`."""
        captured = self._graphs.num_captured if self._graphs is not None else 0
        loaded = self._kernels.num_loaded() if isinstance(self._kernels, PreparedKernels) else 0
        return {"kernels_loaded": loaded, "graphs_captured": captured}

    @property
    def is_preparing(self) -> bool:
        """See `ModelRunner`."""
        return isinstance(self._kernels, PreparedKernels) and self._kernels.is_loading()

    @torch.inference_mode()
    def prepare(self) -> None:
        """Compile kernels and capture graphs for all steps that need no drafts, so that none has to wait for that.

        Kernels are compiled by processes of their own, side by side, where that has not been done before.
        """
        with self._on_device():
            if isinstance(self._kernels, PreparedKernels):
                self._kernels.precompile(self._compute_all_kinds, self.device)
            self._compute_all_kinds(captures=True)
            if self.device.type == "cuda":
                torch.cuda.synchronize(self.device)
            if isinstance(self._kernels, PreparedKernels):
                self._kernels.warn_of_loads()

    def _compute_all_kinds(self, *, captures: bool = False) -> None:
        """Compute what steps launch, in the spare block, so that nothing is changed that is read.

        Args:
            captures: capture the graphs of plain steps too.
        """
        if self._graphs is not None:
            for shape in self._graphs.shapes():
                hidden = self._graphs.compute(shape, captures=captures)
                self._draw_all_ways(self._decoder.logits(hidden[: shape.sequences]))
        # Steps without a graph have contexts of their own, by which attention's kernel for decodes divides its work.
        self._compute(self._prompts([min(_SHORT_PROMPT, self.max_model_len), 1]))
        tokens = min(self.config.max_num_batched_tokens, self.max_model_len)
        hidden = self._compute(self._prompts([tokens]))
        if self._decoder.spec.has_head:
            self._draw_all_ways(self._decoder.logits(hidden[:1]))

    def _draw_all_ways(self, logits: Tensor) -> None:
        rows, vocabulary = logits.shape
        every = torch.arange(rows, device=self.device)
        floats, ints = torch.ones(rows, device=self.device), torch.zeros_like(every, dtype=torch.int32)
        bits = torch.full((rows, -(-vocabulary // 32)), -1, dtype=torch.int32, device=self.device)
        for filters, masks in ((True, TokenMasks(every, bits)), (False, None)):
            params = SamplingTensors(
                temperature=floats,
                top_k=ints,
                top_p=floats,
                min_p=floats,
                seed=every,
                sample=ints,
                position=every,
                filters=filters,
            )
            self._kernels.sample(logits, params, masks)
        for count in LOGPROBS_PREPARED:
            if count <= vocabulary:
                self._kernels.top_logprobs(logits, every % vocabulary, count)

    def _prompts(self, lengths: list[int]) -> StepInputs:
        """Return the step of prompts of these numbers of tokens, all in the spare block."""
        counts = np.array(lengths, np.int32)
        tokens, longest = int(counts.sum()), int(counts.max())
        nothing, ints = np.zeros(tokens, np.int64), np.zeros(0, np.int32)
        groups, width = len(self.windows), -(-longest // self.config.block_size)
        return StepInputs(
            token_ids=nothing,
            unknown=nothing[:0],
            unknown_rows=nothing[:0],
            positions=np.concatenate([np.arange(count) for count in lengths]),
            slots=np.full((groups, tokens), self.num_blocks * self.config.block_size),
            query_starts=np.concatenate(([0], counts.cumsum())).astype(np.int32),
            context_lengths=counts,
            block_tables=np.full((groups, len(lengths), width), self.num_blocks, np.int32),
            max_query_length=longest,
            max_context_length=longest,
            last_tokens=nothing[:0],
            rows=ints,
            tenures=nothing[:0],
            sampling=SamplingColumns(
                *(np.zeros(0, np.float32), ints, np.zeros(0, np.float32), np.zeros(0, np.float32)),
                *(nothing[:0], ints, nothing[:0], NOTHING),
            ),
            scores=None,
            copy_sources=ints,
            copy_destinations=ints,
        )

    @torch.inference_mode()
    def launch(self, inputs: StepInputs) -> StepTokens | PendingSample:
        """See `ModelRunner`."""
        with self._on_device():
            self._copy_blocks(inputs)
            if inputs.pooled is not None:
                return self._launch_pooled(inputs, inputs.pooled)
            if self._graphs is not None and self._graphs.takes(inputs):
                hidden = self._graphs.run(inputs)
            else:
                hidden = self._compute(inputs)
            prompts = self._score_prompts(hidden, inputs.scores)
            if not len(inputs.rows):
                nothing = torch.empty(0, dtype=torch.int64, device=self.device)
                drawn = SampledTokens(np.empty(0, np.int64))
                if prompts is not None:
                    drawn = sampled_tokens(nothing, None, prompts, {})
                return self._with_drafts(drawn, inputs, hidden)
            columns = inputs.sampling
            last, rows, seed, position, temperature, top_p, min_p, top_k, sample = self._staging.send(
                [
                    *(inputs.last_tokens, inputs.rows.astype(np.int64), columns.seed, columns.position),
                    *(columns.temperature, columns.top_p, columns.min_p, columns.top_k),
                    columns.sample,
                ]
            )
            params = SamplingTensors(
                temperature=temperature,
                top_k=top_k,
                top_p=top_p,
                min_p=min_p,
                seed=seed,
                sample=sample,
                position=position,
                filters=columns.has_filters,
            )
            return self._sampler.draw_or_wait(
                self._decoder.logits(hidden[last]), rows, params, inputs, prompts, hidden
            )

    def draw(self, pending: PendingSample) -> StepTokens:
        """See `ModelRunner`."""
        with self._on_device():
            return super().draw(pending)

    def _on_device(self) -> contextlib.AbstractContextManager[Any]:
        """Kernels run on a thread's current device, and steps come from several threads."""
        return torch.cuda.device(self.device) if self.device.type == "cuda" else contextlib.nullcontext()

    def _compute(self, inputs: StepInputs) -> Tensor:
        # Each group's arrays by themselves, so that all begin where kernels are compiled for.
        token_ids, positions, unknown, unknown_rows, starts, lengths, *grouped = self._staging.send(
            [
                *(inputs.token_ids, inputs.positions, inputs.unknown, inputs.unknown_rows),
                *(inputs.query_starts, inputs.context_lengths, *inputs.block_tables, *inputs.slots),
            ]
        )
        tables, slots = grouped[: len(self.windows)], grouped[len(self.windows) :]
        if len(inputs.unknown):
            token_ids[unknown] = self._last_drawn[unknown_rows]
        batch = AttentionBatch.of_groups(
            tables,
            slots,
            query_starts=starts,
            context_lengths=lengths,
            positions=positions,
            max_query_length=inputs.max_query_length,
            max_context_length=inputs.max_context_length,
            ancestors=None if inputs.ancestors is None else self._tensor(inputs.ancestors),
            states=None if inputs.states is None else StateRows(*inputs.states),
        )
        types = None
        if inputs.pooled is not None and inputs.pooled.token_types is not None:
            types = self._tensor(inputs.pooled.token_types)
        with (
            self._passes.adapting(inputs.adapted, len(inputs.positions)),
            self._passes.attending(inputs.encoded, batch),
        ):
            given = self._passes.embedded(inputs)
            positions = positions if inputs.rotary is None else self._tensor(inputs.rotary)
            return self._passes.forward(token_ids, positions, batch, embedded=given, token_types=types)

    def _hidden(self, inputs: StepInputs, wanted: npt.NDArray[np.int64] | None) -> Tensor:
        hidden = self._compute(inputs)
        return hidden if wanted is None else hidden[self._tensor(wanted)]

    def _memory(self) -> tuple[int, int]:
        if self.device.type != "cuda":
            return super()._memory()
        free, total = torch.cuda.mem_get_info(self.device)
        return free, total

    @torch.inference_mode()
    def _kv_budget(self, block_size: int, max_num_seqs: int) -> int | None:
        """Return what is left of the share after the largest step was computed once with hardly any KV cache."""
        if self.device.type != "cuda":
            return None
        with self._on_device():
            torch.cuda.reset_peak_memory_stats(self.device)
            weights = torch.cuda.memory_allocated(self.device)
            self._try_largest_step(block_size, max_num_seqs)
            torch.cuda.synchronize(self.device)
            needed = torch.cuda.max_memory_allocated(self.device) - weights
            torch.cuda.empty_cache()
            free, total = torch.cuda.mem_get_info(self.device)
        return device_budget(free=free, total=total, share=self.config.gpu_memory_utilization, step=needed)

    def _try_largest_step(self, block_size: int, max_num_seqs: int) -> None:
        """Compute all tokens in one sequence, each in the slot of the first."""
        tokens = self.config.max_num_batched_tokens
        caches = self._decoder.allocate_kv_caches(1, block_size)
        nothing = torch.zeros(tokens, dtype=torch.int64, device=self.device)
        few = torch.zeros(1, dtype=torch.int32, device=self.device)
        num_groups = len(self.windows)
        batch = AttentionBatch.of_groups(
            # Recurrent layers look for each token's block.
            few.expand(num_groups, 1, -(-tokens // block_size)).contiguous(),
            nothing.expand(num_groups, tokens),
            query_starts=torch.tensor([0, tokens], dtype=torch.int32, device=self.device),
            context_lengths=few + tokens,
            positions=nothing,
            max_query_length=tokens,
            max_context_length=tokens,
        )
        hidden = self._decoder.forward(nothing, nothing, batch, caches)
        if self._decoder.spec.has_head:
            self._decoder.logits(hidden[:1].expand(max_num_seqs, -1).contiguous())
