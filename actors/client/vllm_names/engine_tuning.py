"""Arguments of vLLM's engine that tune loading, kernels, adapters and media, and names of its earlier versions.

Most have no effect here: `vllm_names.engine` has those that do.
"""

from __future__ import annotations

from pageant.actors.client.vllm_names.rows import Form, flag, no_effect, not_yet, same

__all__ = ["ADAPTERS", "KERNELS", "LOADING", "MULTIMODAL", "OLDER"]

NO_MEDIA = "images, videos and sounds are processed as the checkpoint says"
NO_KERNELS = "it chooses how results are computed, not which; `kernels` is the choice here"
NO_MAMBA = "recurrent layers need no settings; see docs/kv-memory.md"
HUB = "files are read as they are found; the Hugging Face Hub's own client downloads them"

LOADING = (
    no_effect(
        "load_format",
        "safetensors and GGUF files are read, as they are found",
        neutral=("auto", "safetensors", "hf", "mistral", "gguf"),
    ),
    not_yet("download_dir", None, "the hub's client keeps its downloads", "set HF_HOME"),
    no_effect("ignore_patterns", HUB, form=Form.MANY),
    no_effect("safetensors_load_strategy", "tensors are read one by one, each once"),
    no_effect("safetensors_prefetch_num_threads", "tensors are read one by one, each once"),
    no_effect("safetensors_prefetch_block_size", "tensors are read one by one, each once"),
    no_effect("pt_load_map_location", "pickles are never read"),
    not_yet("model_loader_extra_config", (), "there is one way to load weights"),
    no_effect("max_parallel_loading_workers", "each executor loads its own share of the weights"),
    flag(no_effect("use_tqdm_on_load", "a bar is shown where a person watches; `progress=False` hides it")),
    not_yet("weight_transfer_config", None, "weights come from checkpoints", "see docs/lifecycle.md"),
)

KERNELS = (
    flag(no_effect("enforce_eager", NO_KERNELS)),
    no_effect("compilation_config", NO_KERNELS, short=("-cc",)),
    no_effect("optimization_level", NO_KERNELS),
    no_effect("cudagraph_capture_sizes", NO_KERNELS, form=Form.MANY),
    no_effect("max_cudagraph_capture_size", NO_KERNELS),
    no_effect("attention_backend", NO_KERNELS),
    no_effect("attention_config", NO_KERNELS, short=("-ac",)),
    no_effect("kernel_config", NO_KERNELS),
    no_effect("ir_op_priority", NO_KERNELS),
    no_effect("moe_backend", NO_KERNELS),
    no_effect("linear_backend", NO_KERNELS),
    no_effect("sparse_indexer_topk_backend", NO_KERNELS),
    flag(no_effect("enable_flashinfer_autotune", NO_KERNELS)),
    no_effect("jit_monitor_mode", NO_KERNELS),
    flag(no_effect("jit_monitor_verbose", NO_KERNELS)),
    no_effect("mamba_config", NO_MAMBA),
    no_effect("mamba_backend", NO_MAMBA),
    no_effect("mamba_block_size", NO_MAMBA),
    no_effect("mamba_cache_dtype", NO_MAMBA),
    no_effect("mamba_cache_mode", NO_MAMBA),
    no_effect("mamba_cache_philox_rounds", NO_MAMBA),
    no_effect("mamba_ssm_cache_dtype", NO_MAMBA),
    no_effect("mamba_ssu_algorithm", NO_MAMBA),
    flag(no_effect("enable_mamba_cache_stochastic_rounding", NO_MAMBA)),
    flag(no_effect("enable_mamba_shared_prefix_checkpoint", NO_MAMBA)),
    no_effect("gdn_prefill_backend", NO_MAMBA),
    no_effect("kda_decode_backend", NO_MAMBA),
    no_effect("kda_prefill_backend", NO_MAMBA),
    flag(no_effect("use_replayssm", NO_MAMBA)),
    no_effect("replayssm_buffer_len", NO_MAMBA),
    not_yet("engram_config", None, "no model with n-gram memories is served"),
    not_yet("diffusion_config", None, "no diffusion model is served", short=("-dc",)),
)

ADAPTERS = (
    flag(no_effect("enable_lora", "adapters are served where any are named")),
    no_effect("max_loras", "a batch mixes any number of adapters"),
    no_effect("max_cpu_loras", "adapters stay where they are computed"),
    same("max_lora_rank", "refuses larger ones"),
    not_yet("lora_dtype", "auto", "adapters have the model's data type"),
    not_yet("lora_target_modules", None, "an adapter's own file says where it goes", form=Form.MANY),
    flag(no_effect("fully_sharded_loras", "adapters are shared out as the model is")),
    not_yet("default_mm_loras", None, "no adapter is chosen by images"),
    not_yet("enable_tower_connector_lora", False, "adapters are of the decoder alone"),
    flag(no_effect("specialize_active_lora", NO_KERNELS)),
    not_yet("enable_mixed_moe_lora_format", False, "adapters of experts are not taken"),
    not_yet("enable_moe_shared_loras", False, "adapters of experts are not taken"),
    not_yet(
        "max_lora_cls_labels", None, "a classifier's labels are its checkpoint's", "see docs/embeddings.md"
    ),
)

MULTIMODAL = (
    not_yet(
        "language_model_only", False, "images and videos have limits", "use limit_mm_per_prompt {'image': 0}"
    ),
    same("limit_mm_per_prompt", "images (32 by default) and videos (4) of one prompt"),
    no_effect("allowed_local_media_path", "no file is read for a request"),
    same(
        "allowed_media_domains",
        "images and videos of requests over HTTP are fetched from these; none else",
        form=Form.MANY,
    ),
    not_yet("enable_mm_embeds", False, "images and videos come as pixels"),
    flag(no_effect("interleave_mm_strings", NO_MEDIA)),
    no_effect("media_io_kwargs", "a video's part may have an `fps`; all else is as the checkpoint says"),
    no_effect("mm_processor_kwargs", NO_MEDIA),
    no_effect(
        "mm_processor_cache_gb", "`image_cache_memory` bounds what is kept of images, videos and sounds"
    ),
    no_effect("mm_processor_cache_type", NO_MEDIA),
    no_effect("mm_processor_device", NO_MEDIA),
    no_effect("mm_hasher_algorithm", NO_MEDIA),
    no_effect("mm_shm_cache_max_object_size_mb", NO_MEDIA),
    not_yet("mm_encoder_only", False, "an encoder is an actor of a topology that has a decoder"),
    no_effect("mm_encoder_tp_mode", NO_MEDIA),
    no_effect("mm_encoder_attn_backend", NO_MEDIA),
    no_effect("mm_encoder_attn_dtype", NO_MEDIA),
    no_effect("mm_encoder_fp8_scale_path", NO_MEDIA),
    no_effect("mm_encoder_fp8_scale_save_path", NO_MEDIA),
    no_effect("mm_encoder_fp8_scale_save_margin", NO_MEDIA),
    flag(no_effect("mm_device_do_normalize", NO_MEDIA)),
    no_effect("mm_ipc_gpu_memory_gb", NO_MEDIA),
    no_effect("mm_tensor_ipc", NO_MEDIA),
    flag(no_effect("skip_mm_profiling", NO_MEDIA)),
    no_effect("video_pruning_method", NO_MEDIA),
    no_effect("video_pruning_rate", NO_MEDIA),
    flag(no_effect("enable_mm_processor_stats", NO_MEDIA)),
    no_effect("renderer_num_workers", "a tokenizer actor renders prompts; `actors.tokenizer.count` has more"),
)

OLDER = (
    no_effect("swap_space", "requests that make room are computed again, or kept as `host_memory` says"),
    not_yet("task", ("auto", "generate"), "runner and convert say what a model does", "use runner: pooling"),
    no_effect("guided_decoding_backend", "one backend compiles all grammars"),
    no_effect("max_seq_len_to_capture", NO_KERNELS),
    no_effect("preemption_mode", "the quicker of recomputation and `host_memory` is chosen"),
    flag(no_effect("use_v2_block_manager", "there is one block manager")),
    flag(no_effect("disable_log_requests", "`--log-level info` tells of each request")),
    no_effect("num_scheduler_steps", "`max_steps_per_plan` steps are planned at once where nobody waits"),
    not_yet(
        "worker_use_ray", False, "a topology says what Ray starts", "use `launcher: ray`, see docs/cluster.md"
    ),
    flag(no_effect("calculate_kv_scales", "a KV cache in 8 bits always has scales of its own")),
    no_effect("max_num_partial_prefills", "prompts share a step's budget in their order"),
    no_effect("num_lookahead_slots", "drafts get blocks as they need them"),
    no_effect("override_neuron_config", NO_KERNELS),
    not_yet("override_pooler_config", None, "pooler_config is its name now", "use pooler_config"),
    flag(no_effect("disable_async_output_proc", "outputs are always processed beside steps")),
    flag(no_effect("disable_mm_preprocessor_cache", NO_MEDIA)),
    not_yet("qlora_adapter_name_or_path", None, "adapters are named one by one", "use adapters"),
    no_effect("scheduler_delay_factor", "prompts and decodes share every step"),
)
