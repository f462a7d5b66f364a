"""llama.cpp by its own batch interface: every prompt is a sequence, and all of them decode together."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

DISTRIBUTION = "llama-cpp-python"
INSTALL = [["numpy", "gguf", "safetensors"], ["llama-cpp-python==0.3.36"]]
QUANTIZATIONS = CONVERTED = ("int8", "int4")  # Q8_0 and Q4_0
BATCH_TOKENS = 2048
CHECKPOINT = "model.gguf"


def load(job: dict[str, Any]) -> Callable[[list[list[int]], int], int]:
    """Load a model with the weights mapped and repacked, as by default, and a thread for every core."""
    import llama_cpp

    longest = [max(map(len, work["prompts"])) + work["output_tokens"] for work in job["workloads"].values()]
    sequences = max(len(work["prompts"]) for work in job["workloads"].values())
    path = str(Path(job["model"]) / CHECKPOINT)
    model = llama_cpp.llama_model_load_from_file(path.encode(), llama_cpp.llama_model_default_params())
    settings = llama_cpp.llama_context_default_params()
    settings.n_ctx = sequences * max(longest)
    settings.n_batch = BATCH_TOKENS
    settings.n_seq_max = sequences
    settings.kv_unified = True
    settings.n_threads = settings.n_threads_batch = len(os.sched_getaffinity(0))
    context = llama_cpp.llama_init_from_model(model, settings)
    sampler = llama_cpp.llama_sampler_init_greedy()
    batch = llama_cpp.llama_batch_init(BATCH_TOKENS, 0, 1)
    drawn: list[int] = [0] * sequences

    def compute(entries: list[tuple[int, int, int, bool]]) -> None:
        """Entries are (token, position, sequence, whether its next token is drawn)."""
        for row, (token, position, sequence, draws) in enumerate(entries):
            batch.token[row], batch.pos[row], batch.logits[row] = token, position, draws
            batch.n_seq_id[row], batch.seq_id[row][0] = 1, sequence
        batch.n_tokens = len(entries)
        if llama_cpp.llama_decode(context, batch):
            raise RuntimeError("llama_decode failed")
        for row, (_, _, sequence, draws) in enumerate(entries):
            if draws:
                drawn[sequence] = llama_cpp.llama_sampler_sample(sampler, context, row)

    def generate(prompts: list[list[int]], tokens: int) -> int:
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(context), True)
        entries = [
            (token, position, sequence, position == len(prompt) - 1)
            for sequence, prompt in enumerate(prompts)
            for position, token in enumerate(prompt)
        ]
        for start in range(0, len(entries), BATCH_TOKENS):
            compute(entries[start : start + BATCH_TOKENS])
        for step in range(tokens - 1):
            compute([(drawn[i], len(prompt) + step, i, True) for i, prompt in enumerate(prompts)])
        return tokens * len(prompts)

    return generate


def convert(model: Path, quantization: str, folder: Path) -> None:
    """Qwen3 as GGUF. A tied embedding, which is also the head, stays Q8_0: llama.cpp keeps it finer too."""
    import gguf

    config = json.loads((model / "config.json").read_text())
    layers = config["num_hidden_layers"]
    writer = gguf.GGUFWriter(folder / CHECKPOINT, "qwen3")
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("no_vocab")
    writer.add_block_count(layers)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN3, layers)
    kinds = gguf.GGMLQuantizationType
    for name, values in _tensors(model):
        renamed = names.get_name(name, try_suffixes=(".weight",))
        assert renamed is not None, f"llama.cpp has no name for {name}"
        kind = kinds.F32 if values.ndim == 1 else kinds.Q8_0
        if quantization == "int4" and name.endswith("proj.weight"):
            kind = kinds.Q4_0
        writer.add_tensor(renamed, gguf.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _tensors(model: Path) -> Any:
    """Every tensor of a bfloat16 checkpoint in float32, by name."""
    import numpy as np

    for file in sorted(model.glob("*.safetensors")):
        raw = np.memmap(file, np.uint8, "r")
        header = int(raw[:8].view(np.uint64)[0])
        for name, entry in json.loads(raw[8 : 8 + header].tobytes()).items():
            if name == "__metadata__":
                continue
            assert entry["dtype"] == "BF16", f"{name} is {entry['dtype']}"
            start, end = (8 + header + offset for offset in entry["data_offsets"])
            values = raw[start:end].copy().view(np.uint16).astype(np.uint32) << 16
            yield name, values.view(np.float32).reshape(entry["shape"])
