"""The options that every command has which starts actors: names, types, groups and defaults."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Annotated, Any

import typer

MODEL = "The model"
BATCHES = "Memory and batches"
PLACE = "Where it runs"
WATCHING = "Logs, metrics and traces"


def _mapping(text: str | None) -> dict[str, Any] | None:
    """JSON, or YAML's short form of it."""
    import yaml

    if text is None:
        return None
    try:
        found = yaml.safe_load(text)
    except yaml.YAMLError:
        found = None
    if not isinstance(found, dict):
        raise typer.BadParameter(f'found {text!r}; expected a mapping such as {{"method": "ngram"}}')
    return found


@dataclass(frozen=True)
class Shared:
    """An option.

    Attributes:
        kind: of its value. group: under which help shows it. help: a sentence.
        default: what holds where it is not given, as help shows it.
        more: of `typer.Option`.
    """

    name: str
    kind: Any
    group: str
    help: str
    default: str | None = None
    flag: str | None = None
    more: tuple[tuple[str, Any], ...] = ()

    def parameter(self) -> inspect.Parameter:
        """The parameter that Typer makes an option of."""
        shown = self.help if self.default is None else f"{self.help} [default: {self.default}]"
        flags = () if self.flag is None else (self.flag,)
        option = typer.Option(*flags, help=shown, rich_help_panel=self.group, **dict(self.more))
        annotation: Any = Annotated.__class_getitem__((self.kind | None, option))  # type: ignore[attr-defined]
        return inspect.Parameter(
            self.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation
        )


NUMBER = (("metavar", "<number>"),)

SHARED = (
    Shared("model", str, MODEL, "A checkpoint's folder or a hub id.", "the demo"),
    Shared("served_model_name", list[str], MODEL, "What the model is called outside.", "its folder's name"),
    Shared("tokenizer", str, MODEL, "Folder or hub id of another tokenizer.", "the model's"),
    Shared("skip_tokenizer_init", bool, MODEL, "Serve token ids alone.", "no"),
    Shared("runner", str, MODEL, "auto, generate, or pooling: embeddings and classes.", "auto"),
    Shared("convert", str, MODEL, "auto, none, embed or classify.", "auto"),
    Shared("enable_prompt_embeds", bool, MODEL, "Take prompts as embeddings, too.", "no"),
    Shared("chat_template", str, MODEL, "A file, or the template itself.", "the model's"),
    Shared("revision", str, MODEL, "Of the checkpoint on the hub.", "main"),
    Shared("tokenizer_revision", str, MODEL, "Of the tokenizer on the hub.", "that of the model"),
    Shared("dtype", str, MODEL, "auto, float32, bfloat16 or float16.", "auto"),
    Shared("quantization", str, MODEL, "int8 or int4: weights are quantised while they are loaded.", "none"),
    Shared(
        *("head_quantization", str, MODEL, "int8 or int4: the same of embedding and head alone."),
        "as quantization says",
    ),
    Shared(
        *("max_model_len", str, MODEL, "Most tokens of a request, output included; 4k is 4000, 4K 4096."),
        "what memory holds",
        more=NUMBER,
    ),
    Shared("max_logprobs", int, MODEL, "Most log-probabilities that a request may ask for.", "20"),
    Shared("generation_config", str, MODEL, "Where default parameters come from: auto or none.", "auto"),
    Shared("max_lora_rank", int, MODEL, "Largest rank of an adapter.", "256"),
    Shared("seed", int, MODEL, "From which requests without a seed draw theirs.", "0"),
    Shared("max_num_seqs", str, BATCHES, "Most requests in a batch.", "256", more=NUMBER),
    Shared("max_num_batched_tokens", str, BATCHES, "Most tokens computed in a step.", "2048", more=NUMBER),
    Shared("enable_prefix_caching", bool, BATCHES, "Keep the KV of ended requests.", "yes"),
    Shared("kv_cache_dtype", str, BATCHES, "auto, int8 or fp8: keys and values in 8 bits.", "auto"),
    Shared("kv_cache_memory", str, BATCHES, "For KV blocks, such as 4GiB.", "a share of what is free"),
    Shared("gpu_memory_utilization", float, BATCHES, "Share of a GPU's memory that is used.", "0.9"),
    Shared("block_size", int, BATCHES, "Tokens of a KV block.", "16"),
    Shared("host_memory", str, BATCHES, "For KV blocks that leave a device, such as 8GiB.", "0"),
    Shared("store_memory", str, BATCHES, "For KV blocks that outlive executors, such as 8GiB.", "0"),
    Shared(
        "policy", str, BATCHES, "Who is served first: fcfs, priority, shortest, fair or deadline.", "fcfs"
    ),
    Shared(
        *("speculation", str, BATCHES, 'Guess tokens ahead, as JSON: {"method": "ngram", "tokens": 4}.'),
        "no",
        more=(("callback", _mapping),),
    ),
    Shared("device", str, PLACE, "cpu, cores of it (cpu:0-3,8), cuda or cuda:N.", "cpu"),
    Shared("threads", int, PLACE, "That compute on a CPU.", "all cores"),
    Shared("tensor_parallel", int, PLACE, "Executors that share out each layer's weights.", "1"),
    Shared("replicas", int, PLACE, "Copies of the model that share out the requests.", "1"),
    Shared("expert_parallel", bool, PLACE, "Whole experts on each of these executors.", "no"),
    Shared("pipeline_parallel", int, PLACE, "Stages of layers, on as many executors each.", "1"),
    Shared("placement", str, PLACE, "one, each or auto: in which processes actors live.", "auto"),
    Shared("topology", str, PLACE, "A YAML file that describes nodes and actors, under the other options."),
    Shared(
        *("set_", list[str], PLACE, "Any other key of a topology: actors.scheduler.options.policy=fcfs"),
        flag="--set",
    ),
    Shared(
        *("log_level", str, WATCHING, "debug, info, warning or error."),
        "warning",
        more=(("envvar", "PAGEANT_LOG_LEVEL"),),
    ),
    Shared(
        *("log_format", str, WATCHING, "text, or json: an object a line."),
        "text",
        more=(("envvar", "PAGEANT_LOG_FORMAT"),),
    ),
    Shared("vllm_metrics", bool, WATCHING, "Show metrics under vLLM's names too.", "no"),
    Shared(
        "otlp_traces_endpoint", str, WATCHING, "Where traces go: http://localhost:4318/v1/traces.", "nowhere"
    ),
    Shared("traces_sampled", float, WATCHING, "Share of requests traced, where clients do not say.", "1"),
    Shared("detailed_traces", bool, WATCHING, "Trace every step of theirs.", "no"),
)
