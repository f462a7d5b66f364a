"""The model runner of a decoder: one step on the device. Torch begins here."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from pageant.actors.executor.batch.inputs import SamplingColumns, StepInputs
from pageant.actors.executor.batch.pooled import PooledStep
from pageant.actors.executor.batch.processors import process_logits
from pageant.actors.executor.batch.scoring import Scored, Scores, Scoring, score_prompts
from pageant.actors.executor.batch.shaping import NOTHING, shape_logits
from pageant.actors.executor.guided.undrawn import PooledResults, Undrawn
from pageant.actors.executor.on_device import to_device
from pageant.actors.executor.runners.loaded_model import LoadedModel, ModelKey
from pageant.actors.executor.runners.memory import (
    PoolSize,
    available_bytes,
    choose_pool_size,
    total_bytes,
)
from pageant.actors.executor.runners.model_runner import Drawn, KnownTokens
from pageant.actors.executor.runners.passes import Passes
from pageant.actors.executor.runners.pooling import Pooling
from pageant.actors.executor.runners.programs import Awaiting
from pageant.actors.executor.runners.proposers.base import History, Room, Verified
from pageant.actors.executor.runners.proposers.loading import load_proposer
from pageant.actors.executor.runners.undrawn_logits import UndrawnLogits
from pageant.actors.executor.tiers.disk import DiskFile
from pageant.actors.executor.tiers.host_memory import HostMemory
from pageant.kernels.base import SamplingTensors, TokenMasks
from pageant.kernels.collectives.base import Collectives
from pageant.kernels.quantized_kv import KVFormat, kv_dtype
from pageant.models.adapters.checkpoint import RANK_MAX
from pageant.models.layer_groups import LayerGroups
from pageant.models.quantization import Quantization
from pageant.protocol.drafting import Speculation
from pageant.protocol.errors import ConfigurationError
from pageant.protocol.logprobs import Logprobs
from pageant.protocol.verification import MISSING

log = logging.getLogger("pageant.executor")


class DrawnHere(KnownTokens):
    """Tokens that are there, as those of a CPU always are."""

    def __init__(
        self,
        token_ids: npt.NDArray[np.int64],
        drawn: Scoring | None = None,
        prompts: Scoring | None = None,
        failed: dict[int, str] | None = None,
        pooling: PooledResults | None = None,
    ) -> None:
        super().__init__(token_ids, failed=failed)
        self.pooling = pooling
        self._scorings = drawn, prompts

    def logprobs(self) -> tuple[Logprobs | None, Logprobs | None]:
        """See `Drawn`."""
        drawn, prompts = (scoring.columns() if scoring is not None else None for scoring in self._scorings)
        return drawn, prompts


class TorchRunner:
    """Runs a decoder on one device, with its paged KV cache.

    Args:
        adapters: their folders, by name.
        max_lora_rank: of the adapters.
        kv_cache_dtype: of the KV cache, the model's drafts included.
        budget_bytes: for the KV cache; None leaves it to `choose_pool_size`.
        num_blocks: exactly so many blocks, whatever the memory.
        fit_max_model_len: whether `max_model_len` may be lowered to what the KV cache holds.
        group_layers: whether layers with another window than the rest have blocks of their own.
        scratch_tokens: those of the steps under way, for which there are blocks where nothing is kept of them.
        clock: to tell how long drafts take to be made, and recorded steps.
        weight_version: of what is in the checkpoint's folder.
        loaded: the weights, if they are there already. Those of another model, or for another device, are passed over.
        collectives: this rank's side of the group that computes the model together; None where it is alone.
        num_near: how many ranks of the group share this host's memory, this one included.
        segments: parts that sums over inputs are taken in, by all ranks together; None is one for each.
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
        deterministic: bool = False,
        block_size: int,
        max_model_len: int,
        max_num_seqs: int,
        kv_cache_dtype: KVFormat = "auto",
        budget_bytes: int | None,
        num_blocks: int | None,
        fit_max_model_len: bool = False,
        group_layers: bool = True,
        threads: int | None,
        speculation: Speculation | None = None,
        scratch_tokens: int = 0,
        adapters: Mapping[str, str] | None = None,
        max_lora_rank: int = RANK_MAX,
        clock: Callable[[], float] | None = None,
        progress: Callable[[int, int], None] | None = None,
        disk: DiskFile | None = None,
        weight_version: str = "",
        loaded: LoadedModel | None = None,
        collectives: Collectives | None = None,
        num_near: int = 1,
        segments: int | None = None,
    ) -> None:
        if device == "cpu":
            torch.set_num_threads(threads or max(1, len(os.sched_getaffinity(0)) // num_near))
        self.device = torch.device(device)
        self._clock = clock or (lambda: 0.0)
        key = ModelKey(
            *(str(model), dtype, device, backend, max_model_len),
            *(quantization, deterministic, max_lora_rank, weight_version),
            *((0, 1) if collectives is None else (collectives.rank, collectives.size)),
            segments,
        )
        if loaded is None or loaded.key != key:
            loaded = LoadedModel(key, adapters or {}, progress)
        else:
            loaded.unpark()
            loaded.have_adapters(adapters or {})
        self._loaded = loaded
        self._kernels, self._decoder, self._adapters = loaded.kernels, loaded.decoder, loaded.adapters
        self._pooling = None if loaded.pooler is None else Pooling(loaded.pooler)
        if self._pooling is not None and key.shard is not None:
            raise ConfigurationError(
                "a model that is pooled is computed by one executor; expected tensor_parallel 1"
            )
        self.whole_prompts = not self._decoder.spec.is_causal
        self._collectives = collectives
        if collectives is not None:
            self._decoder.join(collectives)
        self.kernels = self._kernels.name
        self.dtype = str(self._decoder.dtype).removeprefix("torch.")
        self._decoder.kv_dtype = kv_dtype(kv_cache_dtype, self._decoder.dtype)
        self._proposer = load_proposer(speculation, self._decoder, dtype, max_model_len)
        block_bytes = self._arrange_blocks(block_size, max_model_len, group_layers=group_layers)
        if self.whole_prompts and num_blocks is None:
            longest = max(max_model_len, scratch_tokens)
            num_blocks = -(-longest // block_size) + max_num_seqs
        if budget_bytes is None and num_blocks is None:
            budget_bytes = self._kv_budget(block_size, max_num_seqs)
        pool = choose_pool_size(
            num_blocks,
            block_bytes=block_bytes,
            block_size=block_size,
            max_model_len=max_model_len,
            max_num_seqs=max_num_seqs,
            budget_bytes=budget_bytes,
            num_groups=len(self.windows),
            may_shorten=fit_max_model_len,
            num_near=num_near,
        )
        self.num_blocks, self.max_model_len = self._agreed(pool)
        max_model_len = self.max_model_len
        room = Room(self.num_blocks + self.spare_blocks, block_size, max_num_seqs, max_model_len)
        self._kv_bytes = room.num_blocks * block_bytes
        self._last_drawn = torch.zeros(max_num_seqs, dtype=torch.int64, device=self.device)  # by row
        self._allocate(room, disk)
        self._history = History(room)
        log.info(
            "%s in %s%s on %s with %s kernels: %.0f MiB of weights, %d KV blocks of %d tokens%s%s (%.0f MiB)",
            *(model.name, self.dtype, f" with {quantization} weights" if quantization else "", device),
            *(self._kernels.name, self.memory_bytes["weights"] / 2**20, self.num_blocks, block_size),
            f" in {kv_cache_dtype}" if kv_cache_dtype != "auto" else "",
            f" in {len(self.windows)} groups of layers" if len(self.windows) > 1 else "",
            self.num_blocks * block_bytes / 2**20,
        )

    def _agreed(self, pool: PoolSize) -> tuple[int, int]:
        """Return the blocks, and the tokens of the longest request, that every rank of the group has memory for."""
        if self._collectives is None:
            return pool.num_blocks, pool.max_model_len
        mine = torch.tensor([pool.num_blocks, pool.max_model_len])
        everyone = torch.empty(self._collectives.size, 2, dtype=torch.int64)
        self._collectives.all_gather(mine, everyone)
        num_blocks, max_model_len = everyone.amin(0).tolist()
        return num_blocks, max_model_len

    def _arrange_blocks(self, block_size: int, max_model_len: int, *, group_layers: bool) -> int:
        """Settles what a block holds, and returns the bytes of one. Where drafts are made with keys and values of their
        own, those would have to be in every group's blocks: then there is one group."""
        drafts_bytes, beside = 0, tuple[int | None, ...]()
        if self._proposer is not None:
            self._decoder.taps, beside = self._proposer.taps, self._proposer.windows
            drafts_bytes = self._proposer.kv_bytes_per_block(block_size)
        if not self._decoder.spec.is_causal:
            self._decoder.groups = LayerGroups.scratch(self._decoder.windows)
        elif group_layers and not beside:
            self._decoder.groups = LayerGroups.by_window(self._decoder.windows, max_model_len)
        else:
            self._decoder.groups = LayerGroups.one(self._decoder.windows, max_model_len, beside)
        self.windows = self._decoder.groups.windows
        return self._decoder.kv_bytes_per_block(block_size) + drafts_bytes

    def _allocate(self, room: Room, disk: DiskFile | None) -> None:
        """Takes memory for the KV cache, and gets ready to compute in it."""
        caches = self._decoder.allocate_kv_caches(room.num_blocks, room.block_size)
        self._kv_caches = [*caches, *(self._proposer.allocate(room) if self._proposer is not None else ())]
        if self.device.type == "cpu":
            # The system clears memory when it is first written to. Each layer's first pages are written to here, side
            # by side: in the first request, where it would be layer by layer, that took 0.4 s.
            first = torch.zeros(1, dtype=torch.int64)
            self._kernels.move_kv(self._kv_caches, first, first)
        self.host = self.host_class(self._kv_caches, disk)
        self._passes = Passes(
            self._decoder,
            caches,
            self._last_drawn,
            max_num_seqs=room.max_num_seqs,
            max_model_len=room.max_model_len,
            block_size=room.block_size,
            clock=self._clock,
            adapters=self._adapters,
            records=self._loaded.key.shard is None,
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

    def launch(self, inputs: StepInputs) -> Drawn | Undrawn:
        """See `ModelRunner`."""
        if self._proposer is None and inputs.only_draws:
            drawn = self._passes.draw(inputs)
            if isinstance(drawn, Awaiting):
                rows, params = self._tensor(inputs.rows), self._params(inputs.sampling)
                return self._draw_or_wait(drawn.logits, rows, params, inputs, waited=drawn.waited)
            if drawn is not None:
                return DrawnHere(drawn)
        return self._launch(inputs)

    @torch.inference_mode()
    def _launch(self, inputs: StepInputs) -> Drawn | Undrawn:
        self._copy_blocks(inputs)
        if inputs.pooled is not None:
            return self._launch_pooled(inputs, inputs.pooled)
        if self._proposer is None and inputs.draws_after_each:
            logits = self._passes.logits(inputs)
            if logits is not None:
                rows, params = self._tensor(inputs.rows), self._params(inputs.sampling)
                return self._draw_or_wait(logits, rows, params, inputs)
        wanted = None if self._reads_all(inputs) else inputs.last_tokens
        return self._draw_after(inputs, self._hidden(inputs, wanted))

    def _launch_pooled(self, inputs: StepInputs, pooled: PooledStep) -> Drawn | Undrawn:
        """Compute a step with sequences that are pooled; others of it draw as ever."""
        assert self._pooling is not None, "the model pools"
        draws = len(pooled.places) < len(inputs.rows)
        read = None
        if not draws and not self._reads_all(inputs):
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
                DrawnHere(np.full(len(inputs.rows), MISSING), pooling=results), inputs, hidden
            )
        drawn = self._draw_after(inputs, hidden)
        if isinstance(drawn, UndrawnLogits):
            return replace(drawn, pooling=results)
        drawn.pooling = results
        return drawn

    def _hidden(self, inputs: StepInputs, wanted: npt.NDArray[np.int64] | None) -> torch.Tensor:
        """Return hidden states [T, hidden_size], or [D, hidden_size] of the wanted tokens."""
        types = None if inputs.pooled is None else inputs.pooled.token_types
        return self._passes.run(inputs, inputs.ancestors, inputs.adapted, wanted, inputs.embedded, types)

    def _draw_after(self, inputs: StepInputs, hidden: torch.Tensor) -> DrawnHere | UndrawnLogits:
        """Draw from the hidden states of a step: [T, hidden_size], or [D, hidden_size] of the wanted tokens."""
        prompts = self._score_prompts(hidden, inputs.scores)
        if not len(inputs.rows):
            drawn = self._drawn(torch.empty(0, dtype=torch.int64), None, prompts, {})
            return self._with_drafts(drawn, inputs, hidden)
        drawing = hidden
        if len(inputs.last_tokens) < len(hidden):  # else a token is drawn after each that there is
            drawing = hidden[self._tensor(inputs.last_tokens)]
        rows, params = self._tensor(inputs.rows), self._params(inputs.sampling)
        return self._draw_or_wait(self._decoder.logits(drawing), rows, params, inputs, prompts, hidden)

    def _reads_all(self, inputs: StepInputs) -> bool:
        """Tell whether more hidden states are read than those after which a token is drawn."""
        return self._proposer is not None or inputs.reads_all

    def _draw_or_wait(
        self,
        logits: torch.Tensor,
        rows: torch.Tensor,
        params: SamplingTensors,
        inputs: StepInputs,
        prompts: Scoring | None = None,
        hidden: torch.Tensor | None = None,
        waited: float = 0.0,
    ) -> DrawnHere | UndrawnLogits:
        """The tokens that are drawn from logits [D, V]; without them, if a mask is missing.

        Args:
            hidden: the step's hidden states [T, N], for drafts that follow; None where there are none.
            waited: seconds, for masks.
        """
        scores, guided = inputs.scores, inputs.guided
        scored = scores.drawn if scores is not None else None
        raw = logits[self._tensor(scored.places)] if scored is not None else None
        shaped = inputs.sampling.shaping is not NOTHING or inputs.processing is not None
        unshaped = logits[self._tensor(guided.places)] if guided is not None and shaped else None
        shape_logits(logits, inputs.sampling.shaping)
        failed = process_logits(logits, inputs.processing)
        if guided is None:
            drawn = self._sample(logits, params, rows, raw, scored, prompts, failed)
            return drawn if hidden is None else self._with_drafts(drawn, inputs, hidden)
        places = np.arange(len(inputs.rows))
        undrawn = UndrawnLogits(
            places=places,
            guided=guided,
            logits=logits,
            params=params,
            rows=rows,
            failed=failed,
            raw=raw,
            scored=scored,
            unshaped=unshaped,
            prompts=prompts,
            computed=None if hidden is None else (inputs, hidden),
            waited=waited,
        )
        late = guided.late
        return undrawn if len(late) else self._draw(undrawn, late)

    @torch.inference_mode()
    def draw(self, undrawn: Undrawn) -> Drawn:
        """See `ModelRunner`."""
        assert isinstance(undrawn, UndrawnLogits), "it is one of ours"
        return self._draw(undrawn, undrawn.guided.late)

    def _draw(self, undrawn: UndrawnLogits, late: npt.NDArray[np.int64]) -> DrawnHere:
        """Draw tokens with the masks that have come, but for the places that are late."""
        guided = undrawn.guided
        deferred = guided.deferred if len(late) else late
        kept = undrawn.part(deferred) if len(deferred) else None
        masks = self._masks(undrawn)
        failed = {**guided.failures(), **undrawn.failed}
        drawn = self._sample(
            *(undrawn.logits, undrawn.params, undrawn.rows, undrawn.raw, undrawn.scored),
            *(undrawn.prompts, failed, masks),
        )
        drawn.missing, drawn.late, drawn.pooling = late, kept, undrawn.pooling
        return drawn if undrawn.computed is None else self._with_drafts(drawn, *undrawn.computed)

    def _masks(self, undrawn: UndrawnLogits) -> TokenMasks | None:
        """Return what grammars allow. Where a request's other bans would leave nothing of that, grammars prevail."""
        places, bits = undrawn.guided.present()
        if not len(places):
            return None
        rows, masks = self._tensor(places), self._tensor(bits)
        if undrawn.unshaped is None:
            return TokenMasks(rows, masks)
        self._kernels.mask_logits(undrawn.logits, rows, masks)
        dead = (undrawn.logits[rows].amax(-1) == float("-inf")).nonzero()[:, 0]
        if len(dead):
            guided = self._tensor(np.searchsorted(undrawn.guided.places, places))
            undrawn.logits[rows[dead]] = undrawn.unshaped[guided[dead]]
            self._kernels.mask_logits(undrawn.logits, rows[dead], masks[dead])
        return None

    def _sample(
        self,
        logits: torch.Tensor,
        params: SamplingTensors,
        rows: torch.Tensor,
        raw: torch.Tensor | None,
        scored: Scored | None,
        prompts: Scoring | None,
        failed: dict[int, str],
        masks: TokenMasks | None = None,
    ) -> DrawnHere:
        tokens = self._kernels.sample(logits, params, masks)
        if self.device.type == "cpu":
            self._last_drawn.numpy()[rows.numpy()] = tokens.numpy()  # a tenth of the time that torch takes
        else:
            self._last_drawn[rows] = tokens
        scoring = None
        if raw is not None and scored is not None:
            scoring = Scoring(scored)
            scoring.add(self._kernels, raw, tokens[self._tensor(scored.places)])
        return self._drawn(tokens, scoring, prompts, failed)

    def _drawn(
        self, tokens: torch.Tensor, drawn: Scoring | None, prompts: Scoring | None, failed: dict[int, str]
    ) -> DrawnHere:
        return DrawnHere(tokens.numpy(), drawn, prompts, failed)

    def _with_drafts(self, drawn: DrawnHere, inputs: StepInputs, hidden: torch.Tensor) -> DrawnHere:
        """Keeps what was right of a tree, and asks the proposer. The host must know the tokens for that."""
        verifying = inputs.verifying
        has_trees = verifying is not None and len(verifying.drafts.parents) > 0
        if self._proposer is None and not has_trees:
            return drawn
        token_ids = drawn.token_ids().copy()
        token_ids[drawn.missing] = MISSING
        step = Verified(inputs, hidden, self._decoder.tapped, token_ids, self._history)
        if has_trees:
            sources, destinations = step.moved()
            self._kernels.move_slots(self._kv_caches, self._tensor(sources), self._tensor(destinations))
        if self._proposer is not None:
            began = self._clock()
            self._history.take(step)
            drawn.proposed = self._proposer.propose(step)
            drawn.drafting_seconds = self._clock() - began
        return drawn

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

    def _params(self, sampling: SamplingColumns) -> SamplingTensors:
        return SamplingTensors(
            temperature=self._tensor(sampling.temperature),
            top_k=self._tensor(sampling.top_k),
            top_p=self._tensor(sampling.top_p),
            min_p=self._tensor(sampling.min_p),
            seed=self._tensor(sampling.seed),
            sample=self._tensor(sampling.sample),
            position=self._tensor(sampling.position),
        )

    def _tensor(self, array: npt.NDArray[np.generic]) -> torch.Tensor:
        return to_device(array, self.device)
