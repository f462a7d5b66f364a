"""The default cast, and what a model's folder says about it. Knows no torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from pageant.actors.client.adapters import check_adapters, check_names
from pageant.actors.client.audio import SEQUENCES, audio_inputs, takes_audio
from pageant.actors.client.images import image_inputs, takes_images
from pageant.actors.client.tokenizers import revision_of, tokenizer_settings
from pageant.actors.frontend.prompts import MAX_LOGPROBS
from pageant.actors.runtime.kinds import has_prefill
from pageant.actors.runtime.replicating import ROUTER, is_replicated
from pageant.actors.runtime.resolving import Cast
from pageant.actors.runtime.stores import STORE
from pageant.actors.runtime.topology import Topology
from pageant.models.checkpoint import Checkpoint, resolve
from pageant.models.overriding import override_config
from pageant.models.pooling.purpose import CONVERTS, RUNNERS
from pageant.models.sharding import ExpertSharing
from pageant.models.share_checks import has_experts, why_not_shared, why_not_staged
from pageant.models.tokenizer_files import renders_pairs
from pageant.protocol.drafting import DEVICE_METHODS
from pageant.protocol.errors import TopologyError
from pageant.protocol.fronting import GenerationValue, ServedModel
from pageant.protocol.pooling import PooledModel

FRONTEND = "frontend"
HTTP = "http"
DRAFTER = "drafter"
OBSERVER = "observer"
ENCODER = "encoder"
PURPOSE = ("runner", "convert", "pooler_config")
"""Settings that say what a checkpoint is served for; they become keys of its configuration."""
LIFECYCLE = "lifecycle"


def _called_for(topology: Topology) -> Iterator[str]:
    """Yield the actors that a topology needs without naming them. Invalid settings are refused where they are
    read.
    """
    speculation = topology.settings.get("speculation")
    if isinstance(speculation, Mapping) and speculation.get("method") not in DEVICE_METHODS:
        yield DRAFTER
    if takes_images(topology) or takes_audio(topology):
        yield ENCODER
    yield LIFECYCLE
    parts = (topology, *topology.models.values())
    if any(part.replicas > 1 for part in parts):
        yield ROUTER
    if topology.settings.get("store_memory") or any(has_prefill(part.kinds.values()) for part in parts):
        yield STORE
    if HTTP in topology.actors or any(map(topology.settings.get, ("otlp_traces_endpoint", "vllm_metrics"))):
        yield OBSERVER


# In the order in which they are started: what takes long comes first.
DEFAULT_CAST = Cast(
    classes={
        "executor": "pageant.actors.executor.actor:Executor",
        "tokenizer": "pageant.actors.tokenizer:Tokenizer",
        "detokenizer": "pageant.actors.detokenizer.actor:Detokenizer",
        "scheduler": "pageant.actors.scheduler.actor:Scheduler",
        "blocks": "pageant.actors.blocks.actor:BlockManager",
        "grammar": "pageant.actors.grammar.actor:Grammar",
        FRONTEND: "pageant.actors.frontend.frontend:Frontend",
    },
    groups=frozenset({"executor", ENCODER}),
    # They live with their callers, or ask the supervisor.
    root_actors=frozenset({FRONTEND, OBSERVER, LIFECYCLE}),
    # Only a tokenizer's work can be shared out; more executors need tensors that cross between them.
    single=frozenset(
        {"executor", "detokenizer", "scheduler", "blocks", "grammar", FRONTEND, OBSERVER, LIFECYCLE, ROUTER}
    ),
    shared=frozenset({FRONTEND, HTTP, OBSERVER, LIFECYCLE, ROUTER, STORE}),
    extra_settings=frozenset(
        {
            *("served_model_name", "max_logprobs", "generation_config", "override_generation_config"),
            *("revision", "tokenizer_revision", "start_asleep", "hf_overrides", "hf_config_path"),
            *("enable_prompt_embeds", "limit_mm_per_prompt", "allowed_media_domains", *PURPOSE),
        }
    ),
    optional={
        HTTP: "pageant.actors.http.server:HttpServer",
        ENCODER: "pageant.actors.encoder.actor:Encoder",
        DRAFTER: "pageant.actors.drafter.actor:DrafterActor",
        OBSERVER: "pageant.actors.observer.actor:Observer",
        LIFECYCLE: "pageant.actors.lifecycle.actor:Lifecycle",
        ROUTER: "pageant.actors.router.actor:Router",
        STORE: "pageant.actors.store.actor:Store",
    },
    called_for=_called_for,
    needs={"speculation": "scheduler", "adapters": "executor"},
)


def _check_handover(topology: Topology) -> None:
    """Refuse a router that is to hand requests over where no replicas are for that."""
    entry = topology.actors.get(ROUTER)
    found = None if entry is None else entry.options.get("handover", topology.settings.get("handover"))
    parts = (topology, *topology.models.values())
    if found == "always" and not any(has_prefill(part.kinds.values()) for part in parts):
        raise TopologyError(
            f"actors.{ROUTER}.options.handover",
            "found always, but no replicas of role prefill with others of role decode; expected kinds of replicas, "
            "such as replicas: {prefill: {count: 1}, decode: {count: 2}}",
        )


def model_settings(topology: Topology) -> dict[str, Any]:
    """Return the settings that the checkpoint gives the actors: paths, sizes, end tokens.

    Raises:
        TopologyError: no model is named, `max_model_len` is beyond it, or an adapter is not for it.
        CheckpointError: the checkpoint cannot be served.
    """
    if not topology.model:
        raise TopologyError("model", "no model is named; expected a checkpoint's folder or a hub id")
    served_names(topology)
    _check_handover(topology)
    if topology.settings.get("disk_space") and topology.settings.get("disk_path") is None:
        raise TopologyError("disk_space", "there is no disk_path; expected a folder on the executor's host")
    path = _configured(resolve(topology.model, revision_of(topology.settings)), topology.settings)
    checkpoint = Checkpoint(path)
    quantization = _quantization(topology.settings.get("quantization"), checkpoint.quantization_method)
    checkpoint.refuse_quantization(quantization)
    checkpoint.check()
    checkpoint.refuse_head_quantization(topology.settings.get("head_quantization"))
    images, audio = image_inputs(topology, checkpoint), audio_inputs(topology, checkpoint)
    _check_shares(topology, checkpoint)
    tokenizer = tokenizer_settings(topology.settings, path)
    spec, pooled = checkpoint.spec(), _pooled(checkpoint, tokenizer)
    longest = checkpoint.longest_text
    return {
        "model": str(path.absolute()),
        "adapters": check_adapters(topology.settings, checkpoint),
        "quantization": quantization,
        "max_model_len": _max_model_len(topology.settings, longest),
        "fit_max_model_len": topology.settings.get("max_model_len") is None,
        "vocab_size": spec.vocab_size,
        "eos_token_ids": checkpoint.eos_token_ids,
        "embeds_size": _embeds_size(topology, checkpoint),
        "images": images,
        "audio": audio,
        **({} if audio is None else {"max_num_seqs": SEQUENCES}),
        "generates": checkpoint.purpose.generates,
        "pooled": pooled,
        **tokenizer,
    }


def _check_shares(topology: Topology, checkpoint: Checkpoint) -> None:
    """Refuse a model that cannot be shared out over as many executors as a topology says."""
    _check_stages(topology, checkpoint)
    whole_experts, of_experts = _option(topology, "expert_parallel")
    if whole_experts is True and not has_experts(checkpoint):
        raise TopologyError(of_experts, "found true: the model has no layers with experts; expected false")
    ranks, place = _wanted(topology, "tensor_parallel")
    segments, of_segments = _wanted(topology, "tensor_segments")
    if max(ranks or 1, segments or 1) < 2:
        return  # whatever else they are, the executor's options are checked for
    experts: ExpertSharing = "whole" if whole_experts is True else "cut"
    if objection := why_not_shared(checkpoint, ranks or 1, segments, experts):
        found, place = (segments, of_segments) if "tensor_segments" in objection else (ranks or 1, place)
        raise TopologyError(place, f"found {found}: {objection}")


def _check_stages(topology: Topology, checkpoint: Checkpoint) -> None:
    """Refuse a model that cannot be divided over as many stages as a topology says."""
    stages, place = _wanted(topology, "pipeline_parallel")
    if stages is None or stages < 2:
        return
    layers, of_layers = _option(topology, "pipeline_layers")
    if not isinstance(layers, list | tuple) or not all(isinstance(count, int) for count in layers):
        layers = None  # the executor's options are checked for that
    if objection := why_not_staged(checkpoint, stages, None if layers is None else tuple(layers)):
        if "together" in objection:
            raise TopologyError(of_layers, f"found {objection}")
        raise TopologyError(place, f"found {stages}: {objection}")


def _wanted(topology: Topology, name: str) -> tuple[int | None, str]:
    """Return an option of the executor that is a number, and its place; None where it is none."""
    found, place = _option(topology, name)
    valid = isinstance(found, int) and not isinstance(found, bool) and found > 0
    return (found if valid else None), place


def _option(topology: Topology, name: str) -> tuple[Any, str]:
    """Return an option of the executor as it is written, or None, and its place."""
    entry = topology.actors.get("executor")
    found, place = None if entry is None else entry.options.get(name), f"actors.executor.options.{name}"
    return (topology.settings.get(name), name) if found is None else (found, place)


_READ = ("adapters", "chat_template", "quantization", "tokenizer")
"""Settings that name something, which `model_settings` finds: a folder for a hub id, a text for a file."""


def with_found(topology: Topology, found: Mapping[str, Any]) -> Topology:
    """Return a topology whose settings say what was found for them, in place of what names it.

    Args:
        found: of `model_settings`.
    """
    read = {name: found[name] for name in _READ if topology.settings.get(name) is not None}
    return msgspec.structs.replace(topology, settings={**topology.settings, **read})


_MADE_HERE = (None, "int8", "int4")
"""Values of `quantization` that an executor takes: weights that it makes while it loads them."""
_METHODS = {
    **dict.fromkeys(("awq_marlin", "auto_awq"), "awq"),
    **dict.fromkeys(("gptq_marlin", "auto_gptq", "gptqmodel"), "gptq"),
}
"""Methods of checkpoints by further names of vLLM's."""


def _quantization(wanted: Any, own: str | None) -> Any:
    """Return how weights are to be quantised while they are loaded; None for a checkpoint's own method.

    Raises:
        TopologyError: another method is wanted than the checkpoint's.
    """
    if wanted in _MADE_HERE or not isinstance(wanted, str):
        return wanted
    if _METHODS.get(wanted, wanted) == own:
        return None
    theirs = "the checkpoint is not quantised" if own is None else f"or {own}, which the checkpoint is"
    raise TopologyError("quantization", f"found {wanted!r:.80}; expected int8 or int4, {theirs}")


def _configured(folder: Path, settings: Mapping[str, Any]) -> Path:
    """Return the folder of a checkpoint with the configuration that settings give it."""
    overrides, config_path = settings.get("hf_overrides") or {}, settings.get("hf_config_path")
    purpose = {name: value for name in PURPOSE if (value := settings.get(name)) not in (None, "auto")}
    for name, known in (("runner", RUNNERS), ("convert", CONVERTS)):
        if name in purpose and purpose[name] not in known:
            raise TopologyError(name, f"found {purpose[name]!r:.100}; expected one of {', '.join(known)}")
    if not isinstance(overrides, Mapping) or not all(isinstance(key, str) for key in overrides):
        raise TopologyError(
            "hf_overrides", f"found {overrides!r:.200}; expected keys of config.json with values"
        )
    if config_path is not None and (not isinstance(config_path, str) or not config_path):
        raise TopologyError("hf_config_path", f"found {config_path!r:.200}; expected a folder or a hub id")
    if not overrides and not purpose and config_path is None:
        return folder
    try:
        overrides = {**overrides, **purpose}
        return override_config(folder, overrides, None if config_path is None else resolve(config_path))
    except (TypeError, ValueError) as error:  # no JSON
        raise TopologyError("hf_overrides", f"found {overrides!r:.200}; expected JSON: {error}") from None


def served_models(
    topology: Topology, settings: Mapping[str, Any], of_models: Mapping[str, Mapping[str, Any]]
) -> tuple[ServedModel, ...]:
    """The models of a topology, as those know them who speak for their users.

    Args:
        settings, of_models: see `model_settings`; of each of several models.

    Raises:
        TopologyError: two have one name, adapters included.
    """
    if not topology.models:
        folder = Path(topology.model or "")
        name = folder.resolve().name if folder.exists() else str(folder)
        several = is_replicated(topology, topology)
        served = _served(topology, settings, "", name, typed=str(topology.model), is_replicated=several)
        check_names(served.adapters, {served.name})
        return (served,)
    found: dict[str, ServedModel] = {}
    for name, part in topology.models.items():
        several = is_replicated(topology, part)
        served = _served(part, of_models[name], f"{name}/", name, is_replicated=several)
        if served.name in found:
            raise TopologyError(f"models.{name}", f"another model is called {served.name!r} too")
        found[served.name] = served
    taken = set(found)
    for name, served in zip(topology.models, found.values(), strict=True):
        try:
            check_names(served.adapters, taken)
        except TopologyError as error:
            raise error.within(f"models.{name}") from None
        taken.update(served.adapters)
    return tuple(found.values())


def served_names(topology: Topology) -> tuple[str, ...]:
    """The names that a topology gives its model; none where it leaves them to the model's path.

    Raises:
        TopologyError: what is there is no name, or no list of different ones.
    """
    found = topology.settings.get("served_model_name")
    names = [] if found is None else [found] if isinstance(found, str) else found
    if (
        not isinstance(names, list | tuple)
        or not all(isinstance(one, str) and one for one in names)
        or len({*names}) != len(names)
    ):
        raise TopologyError("served_model_name", f"found {found!r:.200}; expected a name, or different names")
    return tuple(names)


def _served(
    topology: Topology,
    settings: Mapping[str, Any],
    replica: str,
    name: str,
    typed: str | None = None,
    *,
    is_replicated: bool,
) -> ServedModel:
    """Args: typed: the path as the user wrote it, which is a name too where it is the only model's."""
    names = served_names(topology) or tuple(dict.fromkeys((name, typed or name)))
    return ServedModel(
        name=names[0],
        aliases=names[1:],
        generation_overrides=_overrides(topology.settings.get("override_generation_config")),
        replica=replica,
        folder=settings["model"],
        tokenizer=None if settings["skip_tokenizer_init"] else settings["tokenizer"],
        chat_template=settings["chat_template"],
        vocab_size=settings["vocab_size"],
        max_model_len=settings["max_model_len"],
        max_logprobs=topology.settings.get("max_logprobs", MAX_LOGPROBS),
        generation_config=topology.settings.get("generation_config", "auto"),
        adapters=tuple(settings["adapters"]),
        eos_token_ids=tuple(settings["eos_token_ids"]),
        embeds_size=settings["embeds_size"],
        generates=settings["generates"],
        pooled=settings["pooled"],
        images=settings["images"],
        audio=settings["audio"],
        is_replicated=is_replicated,
    )


def _overrides(found: Any) -> dict[str, GenerationValue]:
    try:
        return msgspec.convert(found or {}, dict[str, GenerationValue])
    except msgspec.ValidationError as error:
        raise TopologyError("override_generation_config", f"found {found!r:.200}; {error}") from None


def _embeds_size(topology: Topology, checkpoint: Checkpoint) -> int | None:
    """Return the size of the embeddings that prompts may be, where the topology takes any."""
    name = "enable_prompt_embeds"
    wanted = topology.settings.get(name, False)
    if not isinstance(wanted, bool):
        raise TopologyError(name, f"found {wanted!r:.100}; expected true or false")
    if not wanted:
        return None
    size = checkpoint.embedding_size
    if size is None:
        raise TopologyError(name, "this model does not compute with embeddings alone; expected false")
    return size


def _pooled(checkpoint: Checkpoint, tokenizer: Mapping[str, Any]) -> PooledModel | None:
    """Return what frontends need to know of a model that pools, given the settings of its tokenizer."""
    spec = checkpoint.pooling
    if spec is None:
        return None
    decoder = checkpoint.decoder_spec()
    return PooledModel(
        task=spec.task,
        size=spec.size,
        dimensions=spec.dimensions,
        labels=spec.labels,
        reads_all=spec.pool != "last" or not decoder.is_causal,
        of_tokens=spec.pool == "all",
        prompts=dict(spec.prompts),
        default_prompt=spec.default_prompt,
        lowercases=spec.lowercases,
        has_token_types=decoder.num_token_types > 1,
        has_pair_template=renders_pairs(Path(tokenizer["tokenizer"]), tokenizer["chat_template"]),
    )


def _max_model_len(settings: Mapping[str, Any], longest: int) -> int:
    wanted = settings.get("max_model_len")
    if wanted is None:
        return longest
    if isinstance(wanted, bool) or not isinstance(wanted, int) or not 1 <= wanted <= longest:
        raise TopologyError(
            "max_model_len", f"found {wanted!r}; expected 1 to {longest}, which the model was made for"
        )
    return wanted
