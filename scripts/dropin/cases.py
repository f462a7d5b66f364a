"""vLLM's examples that generate text: how each is run, and which are left out and why."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Example:
    """A script of vLLM's.

    Attributes:
        path: below the folder `examples`.
        arguments: of its command line.
        server: for one that talks to a server, the model and the flags that its text tells to serve with.
    """

    path: str
    arguments: tuple[str, ...] = ()
    server: tuple[str, ...] = ()


def _served(path: str, *server: str) -> Example:
    return Example(path, (), server)


_R1 = "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B"
_XLAM = (
    "--model",
    "Salesforce/Llama-xLAM-2-8b-fc-r",
    "--enable-auto-tool-choice",
    "--tool-call-parser",
    "xlam",
)
_CALLS = ("--enable-auto-tool-choice", "--tool-call-parser", "hermes")
ONLINE = (
    _served("basic/online_serving/openai_chat_completion_client.py", "Qwen/Qwen3-8B"),
    _served("basic/online_serving/openai_completion_client.py", "Qwen/Qwen3-0.6B"),
    _served("generate/batched_chat_completions_online.py", "Qwen/Qwen2.5-1.5B-Instruct"),
    _served("features/structured_outputs/structured_outputs_client.py", "Qwen/Qwen2.5-3B-Instruct"),
    _served(
        "features/prompt_embed/prompt_embed_inference_with_openai_client.py",
        *("meta-llama/Llama-3.2-1B-Instruct", "--runner", "generate", "--max-model-len", "4096"),
        "--enable-prompt-embeds",
    ),
    _served("observability/opentelemetry/dummy_client.py", "facebook/opt-125m"),
    _served("reasoning/openai_chat_completion_with_reasoning.py", _R1, "--reasoning-parser", "deepseek_r1"),
    _served(
        "reasoning/openai_chat_completion_with_reasoning_streaming.py",
        *(_R1, "--reasoning-parser", "deepseek_r1"),
    ),
    _served(
        "reasoning/openai_chat_completion_tool_calls_with_reasoning.py",
        *("Qwen/QwQ-32B", "--reasoning-parser", "deepseek_r1", *_CALLS),
    ),
    _served("reasoning/openai_responses_client.py", "Qwen/Qwen3-8B", "--reasoning-parser", "qwen3"),
    _served("scale_out/token_generation_client.py", "Qwen/Qwen3-0.6B", "--enable-scale-out"),
    _served(
        "tool_calling/openai_chat_completion_client_with_tools.py",
        *("NousResearch/Hermes-2-Pro-Llama-3-8B", *_CALLS),
    ),
    _served(
        "tool_calling/openai_chat_completion_client_with_tools_required.py",
        *("unsloth/Llama-3.2-1B-Instruct", "--structured-outputs-config.backend", "outlines"),
    ),
    _served("tool_calling/openai_chat_completion_client_with_tools_xlam.py", *_XLAM),
    _served("tool_calling/openai_chat_completion_client_with_tools_xlam_streaming.py", *_XLAM),
    _served(
        "tool_calling/openai_responses_client_with_tools.py",
        *(
            "Qwen/Qwen3-1.7B",
            "--reasoning-parser",
            "qwen3",
            "--structured-outputs-config.backend",
            "xgrammar",
        ),
        *_CALLS,
    ),
    _served(
        "tool_calling/openai_responses_client_with_mcp_tools.py",
        *("openai/gpt-oss-20b", "--enforce-eager", "--tool-server", "demo"),
    ),
)
OFFLINE = (
    Example("basic/offline_inference/basic.py"),
    Example("basic/offline_inference/chat.py"),
    Example("basic/offline_inference/generate.py"),
    Example("deployment/async_llm_streaming.py"),
    Example("deployment/llm_engine_example.py"),
    Example("features/automatic_prefix_caching/automatic_prefix_caching_offline.py"),
    Example("features/automatic_prefix_caching/prefix_caching_offline.py"),
    Example("features/context_extension/context_extension_offline.py"),
    Example("features/logits_processor/custom.py"),
    Example("features/logits_processor/custom_req.py"),
    Example("features/logits_processor/custom_req_init.py"),
    Example("features/logits_processor/dry.py"),
    Example("features/lora/lora_with_quantization_offline.py"),
    Example("features/lora/multilora_offline.py"),
    Example("features/profiling/run_one_batch_offline.py"),
    Example("features/profiling/simple_profiling_offline.py"),
    Example("features/prompt_embed/prompt_embed_offline.py"),
    Example("features/reset_kv/reset_kv_offline.py"),
    Example("features/sharded_state/save_sharded_state_offline.py", ("--output", "saved")),
    Example("features/sharded_state/load_sharded_state_offline.py"),
    Example("features/speculative_decoding/mlpspeculator_offline.py"),
    Example(
        "features/speculative_decoding/spec_decode_offline.py",
        ("--method", "ngram", "--dataset-name", "random", "--num-prompts", "4"),
    ),
    Example("features/structured_outputs/structured_outputs_offline.py"),
    Example("generate/qwen_1m_offline.py"),
    Example("generate/trace_replay_offline.py"),
    Example("observability/metrics/offline.py"),
    Example("rl/batch_invariance/reproducibility_offline.py"),
    Example("rl/pause_resume/pause_resume_offline.py"),
    Example("rl/skip_loading_weights_in_engine_init.py"),
    Example("tool_calling/chat_with_tools_offline.py"),
)
LEFT_OUT = {
    "pooling, speech_to_text, generate/multimodal": "embeddings, scores, audio and images",
    "disaggregated, ray_serving, torchrun, data_parallel, other rl": "several devices, hosts or processes of a model",
    "applications": "web interfaces and agents of other packages, and a server of its own",
    "basic: classify, embed, score; kv_events, extract_hidden_states, tensorize, watermark": "not text generation",
}
"""Folders of examples that are not run, and what they are about."""
