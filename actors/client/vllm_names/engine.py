"""Arguments of the engine: of `LLM(...)`, `EngineArgs`, and so of `vllm serve`, too."""

from __future__ import annotations

from pageant.actors.client.vllm_names import values
from pageant.actors.client.vllm_names.engine_tuning import (
    ADAPTERS,
    KERNELS,
    LOADING,
    MULTIMODAL,
    NO_MEDIA,
    OLDER,
)
from pageant.actors.client.vllm_names.engine_watching import WATCHING
from pageant.actors.client.vllm_names.rows import (
    Form,
    Row,
    flag,
    no_effect,
    not_yet,
    renamed,
    same,
    table,
)

SHARED_OUT = (
    "every executor of a group has a share of each expert, unless `expert_parallel`; experts do not move"
)
HEADS_ALONE = "executors of a group share the KV cache out by heads alone"
ON_CPUS = "executors of a group are on CPUs, and talk as `collectives` says"
IN_TURN = "executors of a group compute and talk in turn"
REPLICAS = "see data_parallel_size"
ON_DEVICE = "weights stay on their device while a model is awake"
ENCODER = "an encoder is an actor of the topology; `image_cache_memory` bounds what it keeps"
ADMITTED = "a request is admitted when there is room for what it ever holds at once"
ONE_STARTS_ALL = "one server starts all replicas and shares out the requests"


MODEL = (
    same("model", "a checkpoint's folder, or a hub id", text=True),
    same(
        "served_model_name",
        "what the model is called outside; of several names, all",
        form=Form.MANY,
        text=True,
        read=values.names,
    ),
    same("tokenizer", "a folder or hub id of another tokenizer", text=True),
    flag(same("skip_tokenizer_init", "serve token ids alone")),
    same("chat_template", "a file, or the template itself", text=True),
    same("revision", "of the checkpoint on the hub", text=True),
    same("tokenizer_revision", "of the tokenizer on the hub", text=True),
    no_effect("code_revision", "no code from a checkpoint is ever run"),
    flag(
        no_effect(
            "trust_remote_code", "no code from a checkpoint is ever run; a model that needs it is refused"
        )
    ),
    same("dtype", "also `half` and `float`", read=values.dtype, text=True),
    same("max_model_len", "`4k`, `4K`; `auto` and -1 are as much as memory holds", read=values.length),
    same(
        "quantization",
        "`int8` and `int4`, made while loading; a checkpoint's own method, such as `gptq` or `compressed-tensors`",
        short=("-q",),
        text=True,
    ),
    not_yet("quantization_config", None, "weights of all layers are quantised alike", "use quantization"),
    flag(no_effect("allow_deprecated_quantization", "no method here is deprecated")),
    same("seed", "from which requests without a seed draw theirs"),
    same("max_logprobs", "-1 is the whole vocabulary"),
    not_yet(
        "logprobs_mode",
        "raw_logprobs",
        "log-probabilities are those of the model, before temperature and filters",
    ),
    flag(not_yet("use_fp64_gumbel", False, "sampling noise is float32")),
    flag(
        no_effect("disable_cascade_attn", "there is no cascade attention: shared prefixes are cached blocks")
    ),
    not_yet("disable_sliding_window", False, "layers keep the windows that their model was made with"),
    flag(
        same(
            "enable_prompt_embeds",
            "prompts may be `prompt_embeds`: tensors in Python, safetensors in base64 over HTTP (never pickles)",
        )
    ),
    same("hf_overrides", "laid over the checkpoint's config.json; functions are refused"),
    same("hf_config_path", "a folder or hub id, whose config.json is read instead of the model's", text=True),
    not_yet("hf_token", (True,), "the hub's own client knows the token", "set HF_TOKEN", form=Form.OPTIONAL),
    no_effect(
        "config_format",
        "a configuration's format is found from its files",
        neutral=("auto", "hf", "mistral"),
    ),
    no_effect(
        "tokenizer_mode",
        "a tokenizer's format is found from its files",
        neutral=("auto", "hf", "slow", "mistral"),
    ),
    no_effect(
        "model_impl",
        "our own implementation where there is one, else that of transformers",
        neutral=("auto", "vllm", "transformers"),
    ),
    same("runner", "`pooling` embeds or classifies; `auto` goes by the checkpoint", text=True),
    same("convert", "`embed` or `classify`, of a model that generates", text=True),
    same("pooler_config", "`pooling_type` and `normalize`"),
    same("generation_config", "`vllm` is `none`", read=values.generation_config, text=True),
    same("override_generation_config", "laid over the checkpoint's generation_config.json"),
    not_yet("model_weights", "", "weights are read from the model's own folder"),
    not_yet(
        "model_class_overrides", (), "an architecture's class is ours", "see docs/adding-an-architecture.md"
    ),
    not_yet("io_processor_plugin", None, "requests and answers have one form"),
    same(
        "logits_processors",
        "classes, or their `module:Class` names; in vLLM's form or ours",
        form=Form.MANY,
        text=True,
        read=values.object_names,
    ),
)

PARALLEL = (
    renamed(
        "tensor_parallel_size",
        "tensor_parallel",
        "executors that compute each layer together, with a share of its weights each (see parallel.md)",
        short=("-tp",),
    ),
    renamed(
        "pipeline_parallel_size",
        "pipeline_parallel",
        "stages that compute some of the layers each, one after another (see parallel.md)",
        short=("-pp",),
    ),
    renamed(
        "data_parallel_size",
        "replicas",
        "copies of the model, each with a scheduler, memory and executors of its own (see replicas.md)",
        short=("-dp",),
    ),
    not_yet("data_parallel_rank", None, ONE_STARTS_ALL, REPLICAS, short=("-dpn",)),
    not_yet("data_parallel_start_rank", None, ONE_STARTS_ALL, REPLICAS, short=("-dpr",)),
    not_yet("data_parallel_size_local", 1, ONE_STARTS_ALL, REPLICAS, short=("-dpl",)),
    not_yet("data_parallel_address", None, ONE_STARTS_ALL, REPLICAS, short=("-dpa",)),
    not_yet("data_parallel_rpc_port", None, ONE_STARTS_ALL, REPLICAS, short=("-dpp",)),
    no_effect("data_parallel_backend", ONE_STARTS_ALL, short=("-dpb",)),
    not_yet("data_parallel_hybrid_lb", False, ONE_STARTS_ALL, REPLICAS, short=("-dph",)),
    not_yet("data_parallel_external_lb", False, ONE_STARTS_ALL, REPLICAS, short=("-dpe",)),
    not_yet(
        "data_parallel_multi_port_external_lb",
        False,
        ONE_STARTS_ALL,
        REPLICAS,
        short=("-dpm",),
    ),
    not_yet(
        "prefill_context_parallel_size",
        1,
        "executors of a group compute all tokens of a prompt",
        short=("-pcp",),
    ),
    not_yet("decode_context_parallel_size", 1, HEADS_ALONE, short=("-dcp",)),
    no_effect("dcp_comm_backend", HEADS_ALONE),
    flag(no_effect("dcp_q_replicate", HEADS_ALONE)),
    no_effect("dcp_kv_cache_interleave_size", HEADS_ALONE),
    no_effect("cp_kv_cache_interleave_size", HEADS_ALONE),
    flag(
        renamed(
            "enable_expert_parallel",
            "expert_parallel",
            "whole experts on each executor of a stage, instead of a part of each expert (see parallel.md)",
            short=("-ep",),
        )
    ),
    flag(no_effect("enable_ep_weight_filter", SHARED_OUT)),
    flag(no_effect("enable_eplb", SHARED_OUT)),
    no_effect("eplb_config", SHARED_OUT),
    no_effect("expert_placement_strategy", SHARED_OUT),
    not_yet("enable_elastic_ep", False, SHARED_OUT),
    no_effect("elastic_ep_max_dp_size", SHARED_OUT),
    no_effect("all2all_backend", SHARED_OUT),
    flag(no_effect("disable_custom_all_reduce", ON_CPUS)),
    flag(no_effect("disable_nccl_for_dp_synchronization", ON_CPUS)),
    flag(no_effect("enable_nccl_comm_suspend", ON_CPUS)),
    flag(no_effect("enable_hc_sp", ON_CPUS)),
    flag(no_effect("enable_batch_sharded_sampling", "the leader of a group draws all tokens")),
    flag(no_effect("enable_dbo", IN_TURN)),
    no_effect("ubatch_size", IN_TURN),
    no_effect("dbo_decode_token_threshold", IN_TURN),
    no_effect("dbo_prefill_token_threshold", IN_TURN),
    no_effect("dp_sync_interval", "replicas do not wait for each other"),
    no_effect(
        "distributed_executor_backend",
        "`placement` says which process computes",
        neutral=("uni", "mp", "external_launcher"),
        nearest="on a Ray cluster set `launcher: ray`, see docs/cluster.md",
    ),
    not_yet(
        "nnodes",
        1,
        "a command starts one host",
        "a topology places actors on hosts: see docs/topologies.md",
        short=("-n",),
    ),
    not_yet("node_rank", 0, "a node joins by its name", "use `pageant node --join`", short=("-r",)),
    no_effect("master_addr", "a node is told whom to join: `pageant node --join`"),
    no_effect("master_port", "a node is told whom to join: `pageant node --join`"),
    no_effect("distributed_timeout_seconds", "nodes hold leases: `suspicion_seconds`"),
    no_effect("cpu_distributed_timeout_seconds", "nodes hold leases: `suspicion_seconds`"),
    not_yet("device_ids", None, "an executor computes on one device", "use device, such as cuda:1"),
    not_yet("numa_bind", False, "an executor is bound to cores", "use device, such as cpu:0-3, or numactl"),
    not_yet(
        "numa_bind_nodes",
        None,
        "an executor is bound to cores",
        "use device, such as cpu:0-3, or numactl",
        form=Form.MANY,
    ),
    not_yet(
        "numa_bind_cpus",
        None,
        "an executor is bound to the cores of its device",
        "use device, such as cpu:0-3",
        form=Form.MANY,
    ),
    not_yet("worker_cls", "auto", "an executor is an actor of a topology", "set actors.executor.class"),
    not_yet("worker_extension_cls", "", "an executor is an actor of a topology", "set actors.executor.class"),
    not_yet("ray_workers_use_nsight", False, "Ray starts nodes, and profiles none of them"),
    flag(no_effect("enable_shm_tensor_arena", "actors on one host share memory where it is faster")),
    flag(
        no_effect(
            "enable_fault_tolerance", "it always is: whatever dies is started again, and requests go on"
        )
    ),
    no_effect(
        "fault_tolerance_config", "`heartbeat_seconds` and `suspicion_seconds` say it: see docs/survival.md"
    ),
)

MEMORY = (
    same("gpu_memory_utilization", "of a GPU's memory"),
    same("block_size", "tokens of a KV block"),
    renamed("kv_cache_memory_bytes", "kv_cache_memory", "a number, `4g` or `4GiB`", read=values.size),
    renamed("num_gpu_blocks_override", "num_blocks", "exactly so many KV blocks"),
    same(
        "kv_cache_dtype",
        "`auto`, `int8`, `fp8`, with a scale for each token and head; also `fp8_e4m3`, `int8_per_token_head`, "
        "`fp8_per_token_head`",
        read=values.kv_cache_dtype,
    ),
    not_yet(
        "kv_cache_dtype_skip_layers", (), "the KV caches of all layers have one data type", form=Form.MANY
    ),
    flag(same("enable_prefix_caching", "on unless it is switched off")),
    no_effect("prefix_caching_hash_algo", "blocks are named by 128 bits of blake2b"),
    no_effect("prefix_cache_retention_interval", "the least recently used blocks go first"),
    no_effect("prefix_match_unit", "prefixes are matched to the token"),
    renamed(
        "disable_hybrid_kv_cache_manager",
        "group_layers",
        "layers with other windows have blocks of their own",
        form=Form.FLAG,
        read=lambda value: not value,
    ),
    renamed("kv_offloading_size", "host_memory", "in GiB", read=values.gibibytes),
    not_yet(
        "kv_offloading_backend", "native", "KV blocks go to the host's memory and to a disk", "use disk_path"
    ),
    not_yet(
        "kv_transfer_config",
        None,
        "KV blocks move between executors by way of the store",
        "use store_memory, see docs/store.md",
    ),
    not_yet(
        "kv_events_config",
        None,
        "changes of the KV cache go to actors, not to a socket",
        "watch with an actor of your own, see docs/kv-memory.md",
    ),
    not_yet("ec_transfer_config", None, ENCODER),
    no_effect("ec_manager_config", ENCODER),
    flag(no_effect("kv_sharing_fast_prefill", "layers that share KV are computed once already")),
    flag(no_effect("swa_bounded_replay", "blocks that no window reaches are given back")),
    not_yet("cpu_offload_gb", 0, ON_DEVICE, "use quantization"),
    not_yet("cpu_offload_params", (), ON_DEVICE, "use quantization", form=Form.MANY),
    no_effect("offload_backend", ON_DEVICE),
    not_yet("offload_group_size", 0, ON_DEVICE, "use quantization"),
    no_effect("offload_num_in_group", ON_DEVICE),
    no_effect("offload_prefetch_step", ON_DEVICE),
    not_yet("offload_params", (), ON_DEVICE, "use quantization", form=Form.MANY),
    flag(no_effect("enable_cumem_allocator", "memory is torch's own")),
    flag(no_effect("enable_sleep_mode", "every engine can sleep")),
    flag(no_effect("sleep_mode_offload_cudagraph", "graphs are recorded again when a model wakes up")),
    no_effect("sleep_preserve_parameter_names", "all weights sleep alike", form=Form.MANY),
)

SCHEDULING = (
    same("max_num_seqs", "most requests in a batch", read=values.quantity),
    same("max_num_batched_tokens", "most tokens computed in a step; `8k`", read=values.quantity),
    not_yet("max_num_scheduled_tokens", None, "one budget bounds a step", "use max_num_batched_tokens"),
    not_yet("max_num_active_seqs", None, "one bound is on a batch", "use max_num_seqs"),
    renamed("max_num_queued_reqs", "max_waiting_requests", "others are refused at once"),
    renamed(
        "max_num_queued_tokens", "max_waiting_tokens", "others are refused at once", read=values.quantity
    ),
    renamed("scheduling_policy", "policy", "`fcfs` and `priority`, and ours: shortest, fair, deadline"),
    not_yet("scheduler_cls", None, "a scheduler is an actor of a topology", "set actors.scheduler.class"),
    same(
        "long_prefill_token_threshold",
        "of a longer prompt, no more is computed in a step",
        read=values.positive_or_none,
    ),
    flag(no_effect("long_prefill_token_threshold_adaptive", "chunks follow the step's budget")),
    flag(same("async_scheduling", "plan a step while one is computed; on unless it is switched off")),
    flag(
        no_effect(
            "enable_chunked_prefill",
            "prompts are always computed in chunks of max_num_batched_tokens at most",
        )
    ),
    flag(no_effect("disable_chunked_mm_input", NO_MEDIA)),
    flag(no_effect("scheduler_reserve_full_isl", ADMITTED)),
    no_effect("prefill_schedule_interval", "prompts and decodes share every step"),
    no_effect("watermark", ADMITTED),
    no_effect("stream_interval", "what a step brings is sent at once"),
    no_effect("performance_mode", "steps are planned by measured times"),
)

GENERATING = (
    renamed(
        "speculative_config",
        "speculation",
        "methods ngram, draft_model, eagle, eagle3, medusa and mtp",
        short=("-sc",),
        read=values.speculation,
    ),
    renamed("spec_method", "speculation", "its method"),
    renamed("spec_model", "speculation", "its model"),
    renamed("spec_tokens", "speculation", "its tokens"),
    no_effect("structured_outputs_config", "one backend compiles all grammars; requests say the rest"),
    no_effect(
        "reasoning_config",
        "`thinking_token_budget` bounds thoughts; the marks around them are the reasoning parser's",
    ),
    same("reasoning_parser", "of servers; names of vLLM's choose ours", text=True),
    not_yet("tokens_only", False, "there is no server of token ids alone", "use skip_tokenizer_init"),
    not_yet("reasoning_parser_plugin", "", "the marks around reasoning are built in", "use reasoning_parser"),
    not_yet("watermark_config", None, "texts bear no watermark"),
    flag(no_effect("enable_trace_replay", "requests may always bring their output: trace_decode_token_ids")),
    not_yet("enable_return_routed_experts", False, "the experts of a token are not told"),
    not_yet("return_sampling_mask", False, "the tokens that filters leave are not told", "use logprobs=-1"),
    not_yet("aux_output_config", None, "outputs are tokens and their log-probabilities"),
)

GROUPS: dict[str, tuple[Row, ...]] = {
    "Model": MODEL,
    "Loading": LOADING,
    "Parallelism": PARALLEL,
    "Memory": MEMORY,
    "Scheduling": SCHEDULING,
    "Kernels": KERNELS,
    "Adapters": ADAPTERS,
    "Images, audio and video": MULTIMODAL,
    "Generation": GENERATING,
    "Watching": WATCHING,
    "Names of earlier versions": OLDER,
}
ENGINE = table(*(row for rows in GROUPS.values() for row in rows))
