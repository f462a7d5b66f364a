"""Models without a file in `architectures`: transformers' own modelling code, with attention over our pages.

transformers lets an attention function be registered by name, and models that support it call that function
in every layer. Ours writes the new keys and values to the paged cache and attends over it; the step's
sequences lie packed behind one another, as one row, and only attention tells them apart.

That a model calls the function is not enough for it to be right: it might keep other state, mask in a
way that the function is not told of, or let tokens meet elsewhere. So a model proves itself when it is loaded:
`proof` runs two short sequences through it in steps and compares with transformers' plain attention.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel
from transformers.modeling_outputs import MoeModelOutputWithPast
from transformers.utils import logging as transformers_logging

from pageant.kernels.base import AttentionBatch, Kernels, KVCache, NeededLogits
from pageant.kernels.collectives.base import Collectives
from pageant.kernels.collectives.stage_links import StageLinks
from pageant.kernels.tiled import LinearWeight
from pageant.models.checkpoint import Checkpoint
from pageant.models.decoder import Embedded, Wanted
from pageant.models.errors import CheckpointError
from pageant.models.foreign_attention import (
    NAME,
    Discovery,
    LayerFacts,
    PagedStep,
    Unsupported,
    attend,
    plug_in,
)
from pageant.models.kv_cache import KVLayout
from pageant.models.layer_groups import LayerGroups
from pageant.models.proof import prove, reference_logits
from pageant.models.recurrent_states import RecurrentStates
from pageant.models.spec import ModelSpec

__all__ = ["FallbackDecoder", "load_fallback"]


class FallbackDecoder:
    """A `Decoder` whose layers are those of transformers."""

    def __init__(
        self,
        model: PreTrainedModel,
        layers: LayerFacts,
        spec: ModelSpec,
        device: torch.device,
        kernels: Kernels,
    ) -> None:
        """Takes the model over: its body is cut from its head."""
        self.spec = spec
        self.dtype = model.dtype
        self.device = device
        self.kernels = kernels
        self.head: LinearWeight | None = None  # it may do more
        self.taps: tuple[int, ...] = ()  # transformers' layers have none
        self.tapped: Tensor | None = None
        self.num_bytes = _num_bytes(model)
        self._layers = layers
        self.windows = layers.windows
        self.states: RecurrentStates | None = None
        self.groups = LayerGroups.one(layers.windows)
        self.kv_dtype: torch.dtype = model.dtype
        self._step = PagedStep(kernels)
        self._body = model.base_model
        plug_in(self._body, self._step)
        self._head = model
        self._given = _GivenHidden()
        setattr(model, model.base_model_prefix, self._given)
        self._no_tokens = torch.zeros(1, 1, dtype=torch.int64, device=device)

    def join(self, collectives: Collectives, links: StageLinks | None = None) -> None:
        """See `Decoder.join`."""
        raise NotImplementedError("transformers' own modelling code is not shared out")

    def pass_over(self, num_tokens: int) -> None:
        """See `Decoder.pass_over`."""
        raise NotImplementedError("transformers' own modelling code is not divided into stages")

    def forward(
        self,
        token_ids: Tensor,
        positions: Tensor,
        batch: AttentionBatch,
        kv_caches: Sequence[KVCache],
        wanted: Wanted | None = None,
        embedded: Embedded | None = None,
        token_types: Tensor | None = None,
    ) -> Tensor:
        """See `Decoder.forward`."""
        self._step.layers = list(self.groups.in_order(batch.groups, kv_caches))
        given: dict[str, Tensor] = {"input_ids": token_ids[None]}
        if embedded is not None:
            body: Any = self._body
            rows: Tensor = body.get_input_embeddings()(token_ids)
            rows[embedded.tokens] = embedded.rows
            given = {"inputs_embeds": rows[None]}
        output = self._body(**given, position_ids=positions[None], use_cache=False)
        hidden: Tensor = output.last_hidden_state[0]
        return hidden if wanted is None else hidden[wanted.tokens]

    def logits(self, hidden: Tensor, needed: NeededLogits | None = None) -> Tensor:
        """See `Decoder.logits`. The model's own head, with whatever it does to logits."""
        self._given.hidden = hidden[None]
        logits: Tensor = self._head(input_ids=self._no_tokens, use_cache=False).logits
        return logits[0].float()

    @property
    def kv_layout(self) -> KVLayout:
        """See `Decoder.kv_layout`."""
        layers = self.groups.layers_per_block
        return KVLayout(layers, self._layers.num_kv_heads, self._layers.head_dim, self.kv_dtype)

    def kv_bytes_per_block(self, block_size: int) -> int:
        """See `Decoder.kv_bytes_per_block`."""
        return self.kv_layout.bytes_per_block(block_size)

    def allocate_kv_caches(self, num_blocks: int, block_size: int) -> list[KVCache]:
        """See `Decoder.allocate_kv_caches`."""
        return self.kv_layout.allocate(num_blocks, block_size, self.device)

    def tensors(self) -> Iterator[Tensor]:
        """Yield all parameters and buffers, [...] of any dtype."""
        yield from (parameter.data for parameter in self._head.parameters())
        yield from self._head.buffers()

    def forget(self) -> None:
        """See `Decoder.forget`."""
        self._step.layers = []
        self._given.hidden = self._no_tokens


class _GivenHidden(nn.Module):
    """Stands where a model's body was, and returns the hidden states that it was given."""

    hidden: Tensor

    @property
    def decoder(self) -> _GivenHidden:
        """Some heads call their body's decoder."""
        return self

    def forward(self, *_: Any, **__: Any) -> MoeModelOutputWithPast:
        output = MoeModelOutputWithPast(last_hidden_state=self.hidden)
        output.cross_attentions = output.shared_kv_states = None  # some heads pass them on
        return output


def load_fallback(
    checkpoint: Checkpoint,
    dtype: torch.dtype,
    device: torch.device,
    kernels: Kernels,
    progress: Callable[[int, int], None] | None,
) -> FallbackDecoder:
    """Load a checkpoint with transformers, and prove that it can be run here.

    Raises CheckpointError for a model that transformers cannot load, or that cannot be run in pages; it
    says why. No code from the checkpoint runs.
    """
    AttentionInterface.register(NAME, attend)
    model: Any = _load(checkpoint, _model_class(checkpoint), dtype)
    model.to(device).eval()
    try:
        with torch.inference_mode():
            layers = Discovery.of(model)
            expected = reference_logits(model)
            decoder = FallbackDecoder(model, layers, checkpoint.spec(), device, kernels)
            prove(decoder, expected, checkpoint)
    except CheckpointError:
        raise
    except Exception as error:  # whatever its modelling code raises
        raise _cannot_run(checkpoint, type(model).__name__, error) from error
    if progress is not None:
        progress(decoder.num_bytes, decoder.num_bytes)
    return decoder


def _model_class(checkpoint: Checkpoint) -> type[PreTrainedModel]:
    name = checkpoint.config["architectures"][0]
    found = getattr(transformers, name, None)
    if not (isinstance(found, type) and issubclass(found, PreTrainedModel) and found.can_generate()):
        raise CheckpointError(
            checkpoint.path, f"the architecture {name}", "a causal language model of transformers", "Use one."
        )
    if not found._supports_attention_backend:
        raise CheckpointError(
            checkpoint.path,
            f"the architecture {name}, whose attention transformers fixes",
            "one that lets its attention be replaced",
            "Use another model, or add a file to models/architectures.",
        )
    return found


def _load(checkpoint: Checkpoint, model_class: type[PreTrainedModel], dtype: torch.dtype) -> PreTrainedModel:
    """Stream the weights into a model of transformers; complain of those that do not fit."""
    load: Any = model_class.from_pretrained
    try:
        with _quiet():
            model, report = load(
                checkpoint.path,
                dtype=dtype,
                attn_implementation=NAME,
                local_files_only=True,
                use_safetensors=True,
                ignore_mismatched_sizes=True,  # so that they are reported, and refused below
                output_loading_info=True,
            )
    except Exception as error:  # whatever its configuration and loading code raise
        found = f"transformers cannot load it ({type(error).__name__}: {error})"
        raise CheckpointError(
            checkpoint.path, found, "a checkpoint that it can", "See its message."
        ) from error
    for kind in ("missing_keys", "mismatched_keys", "unexpected_keys"):
        names = [str(name) for name in report[kind]]
        if names:
            raise CheckpointError(
                checkpoint.path,
                f"{kind.removesuffix('_keys')} tensors: {', '.join(names[:3])}",
                f"the tensors of {model_class.__name__}",
                "Check that config.json and the weights belong together.",
            )
    loaded: PreTrainedModel = model
    return loaded


def _cannot_run(checkpoint: Checkpoint, name: str, error: Exception) -> CheckpointError:
    why = str(error) if isinstance(error, Unsupported) else f"{type(error).__name__}: {error}"
    return CheckpointError(
        checkpoint.path,
        f"{name} cannot run in pages: {why}",
        "a model whose layers all have causal attention, full or in a window",
        "Use another model, or add a file to models/architectures.",
    )


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Hush transformers' own progress bars and warnings."""
    logging: Any = transformers_logging
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


def _num_bytes(model: PreTrainedModel) -> int:
    """Bytes of all parameters and saved buffers, those that are shared once."""
    return sum({tensor.data_ptr(): tensor.nbytes for tensor in model.state_dict().values()}.values())
