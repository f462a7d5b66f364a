"""The model runner of a decoder: one step on the device. Torch begins here."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch

from pageant.actors.executor.batch.inputs import StepInputs
from pageant.actors.executor.batch.pooled import PooledStep
from pageant.actors.executor.batch.scoring import Scores, Scoring, score_prompts
from pageant.actors.executor.guided.pending_sample import PendingSample
from pageant.actors.executor.on_device import to_device
from pageant.actors.executor.runners.aligning import Aligning
from pageant.actors.executor.runners.arranging import arrange_layers, told_windows
from pageant.actors.executor.runners.config import RunnerConfig
from pageant.actors.executor.runners.loaded_model import LoadedModel, ModelKey
from pageant.actors.executor.runners.memory import (
    PoolSize,
    TooLittleMemory,
    available_bytes,
    choose_pool_size,
    total_bytes,
)
from pageant.actors.executor.runners.model_runner import StepTokens
from pageant.actors.executor.runners.passes import Passes
from pageant.actors.executor.runners.pooling import Pooling
from pageant.actors.executor.runners.programs import Awaiting
from pageant.actors.executor.runners.proposers.base import BatchSizes, History, Verified
from pageant.actors.executor.runners.proposers.loading import load_proposer
from pageant.actors.executor.runners.sampled_tokens import SampledTokens
from pageant.actors.executor.runners.sampler import Sampler, sampling_tensors
from pageant.actors.executor.runners.step_logits import PendingLogits
from pageant.actors.executor.runners.stored import stored_memory
from pageant.actors.executor.tiers.host_memory import HostMemory
from pageant.actors.executor.tiers.stored_memory import StoredMemory
from pageant.actors.runtime.disk_file import DiskFile
from pageant.kernels.collectives.group_operations import GroupOperations
from pageant.kernels.quantized_kv import kv_dtype
from pageant.models.hearing_decoder import HearingDecoder
from pageant.protocol.errors import ConfigurationError
from pageant.protocol.verification import MISSING

Int64 = npt.NDArray[np.int64]

log = logging.getLogger("pageant.executor")


class TorchRunner:
    """Runs a decoder on one device, with its paged KV cache.

    Args:
        clock: seconds, to tell how long drafts take to be made, and recorded steps.
        progress: see `load_decoder`.
        disk: the file of blocks that are on a disk.
        loaded: the weights, if they are there already. Those of another model, or for another device, are passed over.
        operations: this rank's side of the group that computes the model together; None where it is alone.
        num_near: how many ranks of the group share this host's memory, this one included.
    """

    spare_blocks = 0
    """Blocks of the KV cache behind those that sequences get."""
    host_class: type[HostMemory] = HostMemory

    def __init__(
        self,
        config: RunnerConfig,
        *,
        clock: Callable[[], float] | None = None,
        progress: Callable[[int, int], None] | None = None,
        disk: DiskFile | None = None,
        loaded: LoadedModel | None = None,
        operations: GroupOperations | None = None,
        num_near: int = 1,
    ) -> None:
        if config.device == "cpu":
            torch.set_num_threads(config.threads or max(1, len(os.sched_getaffinity(0)) // num_near))
        self.config = config
        self.device = torch.device(config.device)
        self._clock = clock or (lambda: 0.0)
        self._operations = operations
        self._take_model(loaded, progress)
        encoder_bytes = self._take_encoder_memory()
        block_bytes = self._arrange_blocks()
        self.num_blocks, self.max_model_len = self._agreed(self._pool_size(block_bytes, num_near))
        sizes = BatchSizes(
            *(self.num_blocks + self.spare_blocks, config.block_size, config.max_num_seqs),
            self.max_model_len,
        )
        self._kv_bytes = sizes.num_blocks * block_bytes + encoder_bytes
        self._last_drawn = torch.zeros(config.max_num_seqs, dtype=torch.int64, device=self.device)  # by row
        self._allocate(sizes, disk)
        self._history = History(sizes)
        self._sampler = Sampler(self._kernels, self._last_drawn, self._with_drafts)
        self._log(block_bytes)

    def _take_model(self, loaded: LoadedModel | None, progress: Callable[[int, int], None] | None) -> None:
        """Take over weights that are loaded already, or load them, with what makes drafts."""
        config, operations = self.config, self._operations
        key = ModelKey.of(config)
        if loaded is None or loaded.key != key:
            loaded = LoadedModel(key, config.adapters, progress)
        else:
            loaded.unpark()
            loaded.have_adapters(config.adapters)
        self._loaded = loaded
        self._kernels, self._decoder, self._adapters = loaded.kernels, loaded.decoder, loaded.adapters
        self._pooling: Pooling | Aligning | None = None
        if loaded.pooler is not None:
            self._pooling = Pooling(loaded.pooler)
        elif isinstance(loaded.decoder, HearingDecoder):
            self._pooling = Aligning(loaded.decoder)
        if loaded.pooler is not None and key.shard is not None:
            raise ConfigurationError(
                "a model that is pooled is computed by one executor; expected tensor_parallel 1"
            )
        self.whole_prompts = not self._decoder.spec.is_causal
        if operations is not None:
            self._decoder.join(operations.stage, operations.links)
        self.kernels = self._kernels.name
        self.dtype = str(self._decoder.dtype).removeprefix("torch.")
        self._decoder.kv_dtype = kv_dtype(config.kv_cache_dtype, self._decoder.dtype)
        self._proposer = load_proposer(config, self._decoder) if self._leads else None

    @property
    def _leads(self) -> bool:
        """Tell whether this runner draws tokens: alone, or as the leader of a group."""
        return self._operations is None or self._operations.rank == 0

    def _take_encoder_memory(self) -> int:
        """Take memory for what encoders make, for each row of the batch. Return its bytes.

        Raises:
            TooLittleMemory: it would be more than half of what is free.
        """
        decoder, rows = self._decoder, self.config.max_num_seqs
        if not isinstance(decoder, HearingDecoder):
            return 0
        wanted, (free, _) = decoder.encoder_bytes(rows), self._memory()
        if wanted > free // 2:
            fitting = rows * (free // 2) // wanted
            raise TooLittleMemory(
                f"max_num_seqs is {rows}: encoders' keys and values take {wanted / 2**20:,.0f} MiB for so many "
                f"requests, and {free / 2**20:,.0f} MiB are free, of which they may take half; expected at most "
                f"{fitting}"
            )
        decoder.allocate_encoder_memory(rows)
        return wanted

    def _pool_size(self, block_bytes: int, num_near: int) -> PoolSize:
        """Decide how many blocks of so many bytes the KV cache has, and how long a request may be."""
        config, num_blocks, budget_bytes = self.config, self.config.num_blocks, self.config.budget_bytes
        if self.whole_prompts and num_blocks is None:
            longest = max(config.max_model_len, config.scratch_tokens)
            num_blocks = -(-longest // config.block_size) + config.max_num_seqs
        if budget_bytes is None and num_blocks is None:
            budget_bytes = self._kv_budget(config.block_size, config.max_num_seqs)
        return choose_pool_size(
            num_blocks,
            block_bytes=block_bytes,
            block_size=config.block_size,
            max_model_len=config.max_model_len,
            max_num_seqs=config.max_num_seqs,
            budget_bytes=budget_bytes,
            windows=self.windows,
            num_states=self.num_states,
            chunk=config.max_num_batched_tokens,
            may_shorten=config.fit_max_model_len,
            num_near=num_near,
            store_bytes=config.store_bytes,
        )

    def _log(self, block_bytes: int) -> None:
        config = self.config
        log.info(
            "%s in %s%s on %s with %s kernels: %.0f MiB of weights, %d KV blocks of %d tokens%s%s (%.0f MiB)",
            *(config.model.name, self.dtype),
            config.quantised_to,
            *(config.device, self._kernels.name, self.memory_bytes["weights"] / 2**20, self.num_blocks),
            config.block_size,
            f" in {config.kv_cache_dtype}" if config.kv_cache_dtype != "auto" else "",
            f" in {len(self.windows)} groups of layers" if len(self.windows) > 1 else "",
            self.num_blocks * block_bytes / 2**20,
        )

    def _agreed(self, pool: PoolSize) -> tuple[int, int]:
        """Return the blocks, and the tokens of the longest request, that every rank of the group has memory for."""
        if self._operations is None:
            return pool.num_blocks, pool.max_model_len
        mine = torch.tensor([pool.num_blocks, pool.max_model_len])
        everyone = torch.empty(self._operations.size, 2, dtype=torch.int64)
        self._operations.everyone.all_gather(mine, everyone)
        num_blocks, max_model_len = everyone.amin(0).tolist()
        return num_blocks, max_model_len

    def _arrange_blocks(self) -> int:
        """Decide what a block holds, and return the bytes of one."""
        config, decoder = self.config, self._decoder
        self._drafts_windows = () if self._proposer is None else self._proposer.windows
        if self._operations is not None and config.speculation is not None:
            self._drafts_windows = told_windows(self._operations.everyone, self._drafts_windows)
        drafts_bytes = arrange_layers(decoder, self._proposer, config, self._drafts_windows)
        self.windows, self.num_states = decoder.groups.windows, decoder.groups.num_states
        return decoder.kv_bytes_per_block(config.block_size) + drafts_bytes

    def _allocate(self, sizes: BatchSizes, disk: DiskFile | None) -> None:
        """Takes memory for the KV cache, and gets ready to compute in it."""
        caches = self._decoder.allocate_kv_caches(sizes.num_blocks, sizes.block_size)
        self._kv_caches = [*caches, *(self._proposer.allocate(sizes) if self._proposer is not None else ())]
        if self.device.type == "cpu":
            # The system clears memory when it is first written to. Each layer's first pages are written to here, side
            # by side: in the first request, where it would be layer by layer, that took 0.4 s.
            first = torch.zeros(1, dtype=torch.int64)
            self._kernels.move_kv(self._kv_caches, first, first)
        self.host = self.host_class(self._kv_caches, disk)
        self.stored = self._open_store()
        self._passes = Passes(
            self._decoder,
            caches,
            self._last_drawn,
            max_num_seqs=sizes.max_num_seqs,
            max_model_len=sizes.max_model_len,
            block_size=sizes.block_size,
            clock=self._clock,
            adapters=self._adapters,
            operations=self._operations,
            records=self._operations is not None or self._loaded.key.shard is None,
        )

    def _open_store(self) -> StoredMemory | None:
        if not self.config.store_bytes or self.whole_prompts:
            return None
        if self._operations is not None and self._drafts_windows:
            return None  # the leader alone has keys and values of drafts
        return stored_memory(
            self.config, self._kv_caches, self._kernels, dtype=self.dtype, windows=self.windows
        )

    @property
    def memory_bytes(self) -> dict[str, int]:
        """See `ModelRunner`."""
        free, total = self._memory()
        return {"weights": self._loaded.num_bytes, "kv_cache": self._kv_bytes, "free": free, "total": total}

    @property
    def is_preparing(self) -> bool:
        """See `ModelRunner`."""
        return False

    @property
    def preparations(self) -> dict[str, int]:
        """See `ModelRunner`."""
        return {}

    def _memory(self) -> tuple[int, int]:
        """Return the device's free and total memory."""
        return available_bytes(), total_bytes()

    def leave(self) -> LoadedModel:
        """See `ModelRunner`."""
        self._loaded.let_go()
        return self._loaded

    def add_adapter(self, name: str, folder: str) -> None:
        """See `ModelRunner`."""
        self._adapters.add(name, folder)

    def remove_adapter(self, name: str) -> None:
        """See `ModelRunner`."""
        self._adapters.remove(name)

    def launch(self, inputs: StepInputs) -> StepTokens | PendingSample:
        """See `ModelRunner`."""
        if self._proposer is None and inputs.only_draws:
            drawn = self._passes.draw(inputs)
            if isinstance(drawn, Awaiting):
                rows, params = self._tensor(inputs.rows), sampling_tensors(inputs.sampling, self.device)
                return self._sampler.draw_or_wait(drawn.logits, rows, params, inputs, waited=drawn.waited)
            if drawn is not None:
                return SampledTokens(drawn)
        return self._launch(inputs)

    @torch.inference_mode()
    def _launch(self, inputs: StepInputs) -> StepTokens | PendingSample:
        self._copy_blocks(inputs)
        if inputs.pooled is not None:
            return self._launch_pooled(inputs, inputs.pooled)
        if self._proposer is None and inputs.draws_after_each:
            logits = self._passes.logits(inputs)
            if logits is not None:
                rows, params = self._tensor(inputs.rows), sampling_tensors(inputs.sampling, self.device)
                return self._sampler.draw_or_wait(logits, rows, params, inputs)
        wanted = None if inputs.reads_all else inputs.last_tokens
        return self._draw_after(inputs, self._hidden(inputs, wanted))

    def _launch_pooled(self, inputs: StepInputs, pooled: PooledStep) -> StepTokens | PendingSample:
        """Compute a step with sequences that are pooled; others of it draw as ever."""
        assert self._pooling is not None, "the model pools"
        self._pooling.begin(pooled)
        draws = len(pooled.places) < len(inputs.rows)
        read = None
        if not draws and not inputs.reads_all:
            if self._pooling.reads_last(pooled):
                read = inputs.last_tokens
            elif self._pooling.reads_first(pooled):
                read = np.array([part.tokens.start for part in pooled.parts])
        hidden = self._hidden(inputs, read)
        results = (
            self._pooling.take(pooled, hidden) if read is None else self._pooling.take_read(pooled, hidden)
        )
        if not draws:
            return self._with_drafts(
                SampledTokens(np.full(len(inputs.rows), MISSING), pooling=results), inputs, hidden
            )
        drawn = self._draw_after(inputs, hidden)
        if isinstance(drawn, PendingLogits):
            return replace(drawn, pooling=results)
        drawn.pooling = results
        return drawn

    def _hidden(self, inputs: StepInputs, wanted: npt.NDArray[np.int64] | None) -> torch.Tensor:
        """Return hidden states [T, hidden_size], or [D, hidden_size] of the wanted tokens."""
        types = None if inputs.pooled is None else inputs.pooled.token_types
        return self._passes.run(
            *(inputs, inputs.ancestors, inputs.adapted, wanted, inputs.embedded, types, inputs.rotary),
            encoded=inputs.encoded,
        )

    def _draw_after(self, inputs: StepInputs, hidden: torch.Tensor) -> SampledTokens | PendingLogits:
        """Draw from the hidden states of a step: [T, hidden_size], or [D, hidden_size] of the wanted tokens."""
        prompts = self._score_prompts(hidden, inputs.scores)
        if not len(inputs.rows):
            drawn = SampledTokens(np.empty(0, np.int64), None, prompts)
            return self._with_drafts(drawn, inputs, hidden)
        drawing = hidden
        if len(inputs.last_tokens) < len(hidden):  # else a token is drawn after each that there is
            drawing = hidden[self._tensor(inputs.last_tokens)]
        rows, params = self._tensor(inputs.rows), sampling_tensors(inputs.sampling, self.device)
        return self._sampler.draw_or_wait(
            self._decoder.logits(drawing), rows, params, inputs, prompts, hidden
        )

    @torch.inference_mode()
    def draw(self, pending: PendingSample) -> StepTokens:
        """See `ModelRunner`."""
        assert isinstance(pending, PendingLogits), "it is one of ours"
        return self._sampler.draw(pending, pending.guided.late)

    def _with_drafts(self, drawn: SampledTokens, inputs: StepInputs, hidden: torch.Tensor) -> SampledTokens:
        """Keep what was right of a tree, and ask the proposer. The host must know the tokens for that."""
        verifying = inputs.verifying
        has_trees = verifying is not None and len(verifying.drafts.parents) > 0
        if self._proposer is None and not has_trees:
            return drawn
        token_ids = drawn.token_ids().copy()
        token_ids[drawn.missing] = MISSING
        step = Verified(inputs, hidden, self._decoder.tapped, token_ids, self._history)
        if has_trees:
            self.move_slots(*step.moved())
        if self._proposer is not None:
            began = self._clock()
            self._history.take(step)
            drawn.proposed = self._proposer.propose(step)
            drawn.drafting_seconds = self._clock() - began
        return drawn

    def move_slots(self, sources: Int64, destinations: Int64) -> None:
        """Copy keys and values of tokens from slots, int64 [S], to others, int64 [S]."""
        self._kernels.move_slots(self._kv_caches, self._tensor(sources), self._tensor(destinations))

    def _score_prompts(self, hidden: torch.Tensor, scores: Scores | None) -> Scoring | None:
        if scores is None or scores.prompt is None:
            return None
        return score_prompts(scores.prompt, self._kernels, self._decoder.logits, hidden)

    def _kv_budget(self, block_size: int, max_num_seqs: int) -> int | None:
        """Bytes for the KV cache where nobody said how many; None is a share of the host's memory."""
        return None

    def _copy_blocks(self, inputs: StepInputs) -> None:
        """Copy the blocks that the step's new sequences share with others in part, so that they become their own."""
        self._copy_between(inputs.copy_sources, inputs.copy_destinations)

    def _copy_between(self, sources: npt.NDArray[np.int32], destinations: npt.NDArray[np.int32]) -> None:
        """Copy blocks, int32 [C], to others, int32 [C]."""
        if len(sources):
            from_blocks, to_blocks = (
                self._tensor(blocks.astype(np.int64)) for blocks in (sources, destinations)
            )
            self._kernels.move_kv(self._kv_caches, from_blocks, to_blocks)

    def _tensor(self, array: npt.NDArray[np.generic]) -> torch.Tensor:
        return to_device(array, self.device)
