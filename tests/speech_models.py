"""A tiny random Whisper with windows of two seconds, and what transformers itself writes down for a sound."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
import torch
import transformers

RATE = 16_000
WINDOW_SECONDS = 2
END, START, ENGLISH, GERMAN, TRANSLATE, TRANSCRIBE, PREVIOUS, NO_TIMES = (
    200,
    201,
    202,
    203,
    204,
    205,
    206,
    208,
)
FIRST_TIME = NO_TIMES + 1
ALIGNMENT_HEADS = [[0, 1], [1, 0], [1, 3]]
LANGUAGES = {"<|en|>": ENGLISH, "<|de|>": GERMAN}
SUPPRESSED, FIRST_SUPPRESSED = [3, 17, START, PREVIOUS, 207], [5, END]


def sound(seconds: float, seed: int = 0) -> np.ndarray:
    """Return noise that rises and falls, float32 [samples]."""
    count = int(seconds * RATE)
    noise = np.random.default_rng(seed).standard_normal(count)
    swell = np.sin(np.arange(count) * (2 * np.pi * (1 + seed % 3) / RATE)) ** 2
    return (0.2 * noise * swell).astype(np.float32)


def wav(samples: np.ndarray, rate: int = RATE, subtype: str = "FLOAT", kind: str = "WAV") -> bytes:
    """Return samples as a file."""
    file = io.BytesIO()
    soundfile.write(file, samples, rate, format=kind, subtype=subtype)
    return file.getvalue()


def features_of(extractor: Any, samples: np.ndarray) -> torch.Tensor:
    """Return transformers' features of samples, [1, bins, frames]: of a window at least."""
    is_long = len(samples) > extractor.n_samples
    return extractor(
        samples,
        sampling_rate=RATE,
        truncation=False,
        padding="longest" if is_long else "max_length",
        return_tensors="pt",
    )["input_features"]


def token_times(model: Any, extractor: Any, samples: np.ndarray, **given: Any) -> list[float]:
    """Return when transformers finds the end of each token of a sound, in seconds."""
    features = features_of(extractor, samples)
    mask = torch.ones(1, len(samples) // extractor.hop_length, dtype=torch.int64)
    found = model.generate(
        features,
        attention_mask=mask,
        do_sample=False,
        num_beams=1,
        return_segments=True,
        return_token_timestamps=True,
        **given,
    )
    return [float(time) for segment in found["segments"][0] for time in segment["token_timestamps"]]


class Hearing:
    """A model that hears, saved to a folder.

    Args:
        languages: it knows two, and can translate; else one.
    """

    def __init__(self, folder: Path, *, languages: bool = True, length: int = 48) -> None:
        self.path = folder
        config = transformers.WhisperConfig(
            vocab_size=FIRST_TIME + WINDOW_SECONDS * 50 + 1,
            num_mel_bins=16,
            d_model=64,
            encoder_layers=2,
            decoder_layers=2,
            encoder_attention_heads=2,
            decoder_attention_heads=4,
            encoder_ffn_dim=96,
            decoder_ffn_dim=96,
            max_source_positions=WINDOW_SECONDS * 50,
            max_target_positions=length,
            init_std=0.3,
            bos_token_id=END,
            eos_token_id=END,
            pad_token_id=END,
            decoder_start_token_id=START,
        )
        torch.manual_seed(3)
        self.model: Any = transformers.WhisperForConditionalGeneration(config).eval()
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                if name.endswith("bias"):
                    parameter.normal_(std=0.1)
        generation = transformers.GenerationConfig(
            bos_token_id=END,
            eos_token_id=END,
            pad_token_id=END,
            decoder_start_token_id=START,
            max_length=length,
            no_timestamps_token_id=NO_TIMES,
            max_initial_timestamp_index=25,
            suppress_tokens=SUPPRESSED,
            begin_suppress_tokens=FIRST_SUPPRESSED,
            prev_sot_token_id=PREVIOUS,
            alignment_heads=ALIGNMENT_HEADS,
            is_multilingual=languages,
            **(
                {
                    "lang_to_id": LANGUAGES,
                    "task_to_id": {"transcribe": TRANSCRIBE, "translate": TRANSLATE},
                }
                if languages
                else {}
            ),
        )
        self.model.generation_config = generation
        self.extractor = transformers.WhisperFeatureExtractor(
            feature_size=config.num_mel_bins, chunk_length=WINDOW_SECONDS
        )
        self.model.save_pretrained(folder)
        self.extractor.save_pretrained(folder)
        self.languages = languages

    def features(self, samples: np.ndarray) -> torch.Tensor:
        """Return features of samples, [1, bins, frames]: of a window at least."""
        return features_of(self.extractor, samples)

    @torch.inference_mode()
    def times(self, samples: np.ndarray, **given: Any) -> list[float]:
        """Return when transformers finds the end of each token of `written`, in seconds."""
        return token_times(self.model, self.extractor, samples, task="transcribe", **given)

    @torch.inference_mode()
    def written(self, samples: np.ndarray, **given: Any) -> list[int]:
        """Return the tokens that transformers writes for samples, greedily, without those of the prompt."""
        if self.languages:
            given = {"task": "transcribe", **given}
        if not given.get("return_timestamps"):
            # A random model writes times unasked, by which it would be asked again.
            given["force_unique_generate_call"] = True
        found = self.model.generate(
            self.features(samples), do_sample=False, num_beams=1, return_segments=True, **given
        )
        tokens = [int(token) for segment in found["segments"][0] for token in segment["tokens"]]
        return [token for token in tokens if token != END]
