"""Tiny random models that see videos, and what transformers makes of prompts with videos.

Pixel values are derived here from frames by the processors' published arithmetic, since transformers' video processors
need torchvision; tests/models/vision/test_video.py holds decoding against these processors themselves.

Positions are those that the families were trained with: a text goes on behind the largest position of a video, in time
too. Transformers 5.23 lets it go on behind a video's height and width, so it is given positions.
"""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import av
import numpy as np
import torch
from PIL import Image

from pageant.models.vision.video import VideoFrames
from tests.vision_models import BEGIN, END, IMAGE, VIDEO, Seeing, images

FAMILIES = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl")
STEP = 2
"""Frames of a patch."""


def clip(frames: int = 20, size: tuple[int, int] = (96, 64), seed: int = 0) -> list[np.ndarray]:
    """Return frames uint8 [height, width, 3] of smooth noise, each another one."""
    generator = np.random.default_rng(seed)
    coarse = generator.integers(0, 255, (frames, 5, 5, 3), dtype=np.uint8)
    return [np.asarray(Image.fromarray(one).resize(size, Image.Resampling.BICUBIC)) for one in coarse]


def encoded(
    frames: Sequence[np.ndarray],
    rate: int = 10,
    codec: str = "libx264",
    form: str = "mp4",
    path: Path | None = None,
    **options: str,
) -> bytes:
    """Return frames as a file; `path` is for formats that are written in two passes."""
    file: Any = io.BytesIO() if path is None else str(path)
    with av.open(file, "w", format=form, options=options) as container:
        stream: Any = container.add_stream(codec, rate=rate)
        stream.height, stream.width = frames[0].shape[:2]
        stream.pix_fmt = "yuv420p"
        for frame in frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        container.mux(stream.encode())
    return file.getvalue() if path is None else path.read_bytes()


class Watching(Seeing):
    """A model of a family that sees videos, in memory and in a folder."""

    def __init__(self, name: str, folder: Path) -> None:
        super().__init__(name, folder)
        self.has_marks = name.startswith("qwen3")
        self.edge = 16 if self.has_marks else 14
        area = (2 * self.edge) ** 2
        size = {"shortest_edge": 4 * area, "longest_edge": 6 * area}
        if self.has_marks:
            size = {key: 4 * value for key, value in size.items()}  # of all frames
        written = {
            "size": size,
            "patch_size": self.edge,
            "fps": 2,
            "image_mean": [0.5] * 3,
            "image_std": [0.5] * 3,
        }
        (self.path / "video_preprocessor_config.json").write_text(json.dumps(written))

    def patches(self, frames: VideoFrames) -> tuple[torch.Tensor, list[int]]:
        """Return the patches of a video, float32 [patches, values], and their grid by time, height and width."""
        pixels = frames.pixels
        if len(pixels) % STEP:
            pixels = np.concatenate([pixels, pixels[-1:]])
        count, height, width, _ = pixels.shape
        grid = [count // STEP, height // self.edge, width // self.edge]
        found = []
        for time in range(grid[0]):
            for row in range(0, grid[1], 2):
                for column in range(0, grid[2], 2):
                    for y in (row, row + 1):
                        for x in (column, column + 1):
                            patch = pixels[
                                time * STEP : (time + 1) * STEP,
                                y * self.edge : (y + 1) * self.edge,
                                x * self.edge : (x + 1) * self.edge,
                            ]
                            found.append(patch.transpose(3, 0, 1, 2).reshape(-1))
        return torch.from_numpy((np.stack(found) / 255 - 0.5) / 0.5).float(), grid

    def watched(self, tokens: Sequence[int | str]) -> list[int]:
        """Return the tokens of a prompt in which "image" and "video" stand for such, as the templates have it."""
        marked = {"image": IMAGE, "video": VIDEO}
        return [
            token
            for one in tokens
            for token in ((BEGIN, marked[one], END) if isinstance(one, str) else (one,))
        ]

    def given(
        self,
        token_ids: Sequence[int],
        pictures: Sequence[Image.Image],
        videos: Sequence[VideoFrames],
        marks: Any = None,
    ) -> dict[str, Any]:
        """Return transformers' inputs of a prompt in which placeholders stand for images and videos.

        Args:
            marks: returns the tokens of the text that tells a time, for Qwen3-VL.
        """
        shown = self.inputs([IMAGE] * len(pictures), pictures)
        patches = [self.patches(one) for one in videos]
        ids: list[int] = []
        positions: list[np.ndarray] = []
        first = seen = watched = 0

        def text(tokens: Sequence[int]) -> None:
            nonlocal first
            ids.extend(tokens)
            positions.append(np.tile(np.arange(first, first + len(tokens)), (3, 1)))
            first += len(tokens)

        def grid(token: int, shape: list[int], interval: float) -> None:
            nonlocal first
            ids.extend([token] * int(np.prod(shape)))
            found = np.indices(shape).reshape(3, -1)
            found[0] = np.floor(found[0] * interval)
            positions.append(found + first)
            first = int(positions[-1].max()) + 1

        place = 0
        while place < len(token_ids):
            token = token_ids[place]
            if token == IMAGE:
                rows = shown["image_grid_thw"][seen].tolist()
                grid(IMAGE, [1, rows[1] // 2, rows[2] // 2], 1)
                seen += 1
            elif self.has_marks and list(token_ids[place : place + 3]) == [BEGIN, VIDEO, END]:
                frames, (steps, height, width) = videos[watched], patches[watched][1]
                times = [*frames.seconds.tolist(), frames.seconds[-1]]
                for step in range(steps):
                    time = (times[2 * step] + times[2 * step + 1]) / 2
                    text([*marks(f"<{time:.1f} seconds>"), BEGIN])
                    grid(VIDEO, [1, height // 2, width // 2], 1)
                    text([END])
                watched, place = watched + 1, place + 2
            elif token == VIDEO:
                steps, height, width = patches[watched][1]
                seconds = STEP / videos[watched].rate
                interval = 4 * seconds if self.name == "qwen2_5_vl" else 1  # tokens_per_second is 4
                grid(VIDEO, [steps, height // 2, width // 2], interval)
                watched += 1
            else:
                text([token])
            place += 1
        given = {
            key: value for key, value in shown.items() if pictures and key.startswith(("pixel", "image"))
        }
        given["input_ids"] = torch.tensor([ids])
        if videos:
            given["pixel_values_videos"] = torch.cat([one for one, _ in patches])
            given["video_grid_thw"] = torch.tensor([shape for _, shape in patches])
        # The first row is for masks: with others, transformers takes a jump for the begin of another sequence.
        rows = np.concatenate([np.arange(len(ids))[None], np.concatenate(positions, axis=1)])
        given["position_ids"] = torch.from_numpy(rows)[:, None]
        return given

    @torch.inference_mode()
    def logits_of(self, given: dict[str, Any]) -> torch.Tensor:
        """Return logits, float32 [tokens, vocab_size], of `given`."""
        logits: torch.Tensor = self.model(**given).logits[0]
        return logits

    def greedy_of(self, given: dict[str, Any], count: int) -> list[int]:
        """Return so many tokens that follow a prompt, each by a pass over all before it."""
        given = dict(given)
        for _ in range(count):
            token = self.logits_of(given)[-1].argmax().reshape(1, 1)
            following = given["position_ids"].amax(dim=2, keepdim=True) + 1
            following[1:] = following[1:].max()
            given["input_ids"] = torch.cat([given["input_ids"], token], dim=1)
            given["position_ids"] = torch.cat([given["position_ids"], following], dim=2)
        tokens: list[int] = given["input_ids"][0, -count:].tolist()
        return tokens


def pictures() -> list[Image.Image]:
    """Return two images."""
    return images()[:2]
