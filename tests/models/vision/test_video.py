"""Decoding of videos: transformers' video processors are the oracle for sound ones; others are refused in words."""

import io
import json
import random
import subprocess
import sys
from pathlib import Path

import av
import numpy as np
import pytest
import torch
from PIL import Image

from pageant.models.config import Config
from pageant.models.vision.isolated import argument_of, frames_of, open_video_decoder, video_request
from pageant.models.vision.processing import normalised
from pageant.models.vision.towers import _patches
from pageant.models.vision.video import DURATION_SECONDS_MAX, VideoProcessing, VideoRefused
from pageant.models.vision.video_decoding import decode_video
from pageant.models.vision.video_families import video_spec
from tests.video_models import clip, encoded
from tests.vision_models import png

FAMILY = {"qwen2_vl": "Qwen2VLForConditionalGeneration", "qwen3_vl": "Qwen3VLForConditionalGeneration"}
EDGE = {"qwen2_vl": 14, "qwen3_vl": 16}
SMALL = {"size": {"shortest_edge": 3136, "longest_edge": 20_000}}
CONFIGS = (
    {},
    SMALL,
    {**SMALL, "cap_pixels_per_frame": True, "max_video_tokens": 12},
    {"size": {"shortest_edge": 100_000, "longest_edge": 200_000}},
)
CLIPS = {
    "wide": clip(10, (96, 64)),
    "odd": clip(7, (61, 97), seed=1),
    "tiny": clip(4, (20, 33), seed=2),
    "long": clip(4, (200, 30), seed=3),
}
SHOWN = [(kind, config, name) for kind in FAMILY for config in CONFIGS for name in CLIPS]


def sampled_cases():
    """Return videos by kind, configuration, number of frames, and rate."""
    draw = random.Random(7)
    found = []
    for kind in FAMILY:
        for number in range(150):
            config = {"fps": draw.choice([0.5, 1, 2, 2, 4.5])}
            if number % 5 == 0:
                config = {"num_frames": draw.choice([4, 6, 9]), "fps": None}
            if number % 7 == 0:
                config |= {"min_frames": 6, "max_frames": 16}
            rate = draw.choice([1.0, 5.0, 23.976, 24.0, 25.0, 29.97, 30.0, 60.0])
            found.append((kind, config, draw.randint(10, 900), rate))
    return found


SAMPLED = sampled_cases()


@pytest.fixture(scope="module")
def right(tmp_path_factory):
    """What transformers' own processors make of all cases."""
    folder = Path(tmp_path_factory.mktemp("processors"))
    (folder / "cases.json").write_text(json.dumps({"sampled": SAMPLED, "shown": SHOWN}))
    np.savez(folder / "frames.npz", **{name: np.stack(frames) for name, frames in CLIPS.items()})
    program = Path(__file__).parents[2] / "video_processors.py"
    files = [str(folder / name) for name in ("cases.json", "frames.npz", "found.npz")]
    done = subprocess.run([sys.executable, str(program), *files], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return np.load(folder / "found.npz")


def processing_of(kind, config, tmp_path):
    """Return the rules of a family's checkpoint whose video processor has this configuration."""
    model = {"video_token_id": 1, "vision_start_token_id": 2, "vision_end_token_id": 3}
    model["vision_config"] = {"patch_size": EDGE[kind]}
    videos = Config(config, tmp_path / "video_preprocessor_config.json")
    return video_spec(FAMILY[kind], Config(model, tmp_path / "config.json"), videos).processing


def test_frames_are_sampled_as_transformers_does(right, tmp_path):
    for index, (kind, config, total, rate) in enumerate(SAMPLED):
        found = processing_of(kind, config, tmp_path).sampled(total, rate)
        assert found.tolist() == right[f"sampled{index}"].tolist(), (kind, config, total, rate)


def pngs(frames):
    """Return frames as files one after another, and their sizes."""
    files = [png(Image.fromarray(frame)) for frame in frames]
    return b"".join(files), [len(file) for file in files]


def test_frames_are_resized_and_cut_into_patches_as_transformers_does(right, tmp_path):
    """Pillow and torch round differently in places, by a level or two of 256."""
    for index, (kind, config, name) in enumerate(SHOWN):
        processing = processing_of(kind, config, tmp_path)
        data, sizes = pngs(CLIPS[name])
        pixels = decode_video(data, processing, sizes).pixels
        pixels = np.concatenate([pixels, pixels[-1:]])[: len(pixels) + len(pixels) % 2]
        edge = EDGE[kind]
        grid = [len(pixels) // 2, pixels.shape[1] // edge, pixels.shape[2] // edge]
        assert grid == right[f"grid{index}"][0].tolist(), (kind, config, name)
        values = torch.stack([torch.from_numpy(normalised(frame, processing.frame)) for frame in pixels])
        apart = np.abs(_patches(values, edge, 2, 2).numpy() - right[f"pixels{index}"])
        level = 1 / 255 / min(processing.frame.std)
        assert apart.max() < 2.1 * level and apart.mean() < 0.3 * level, (kind, config, name)


def rules(**changes):
    config = {"size": {"shortest_edge": 3136, "longest_edge": 28 * 28 * 12}, **changes}
    return processing_of("qwen2_vl", config, Path())


PLAIN = clip(20)
FILES = {
    "h264 in mp4": {},
    "mpeg4 in mp4": {"codec": "mpeg4"},
    "vp9 in webm": {"codec": "libvpx-vp9", "form": "webm"},
    "h264 in matroska": {"form": "matroska"},
    "mpeg4 in avi": {"codec": "mpeg4", "form": "avi"},
    "fragments": {"movflags": "frag_keyframe+empty_moov"},
}


@pytest.mark.parametrize("name", FILES)
def test_files_show_what_was_written(name):
    """Codecs lose some, and so the frames are compared as pictures."""
    found = decode_video(encoded(PLAIN, rate=10, **FILES[name]), rules())
    assert found.rate == 2.0 and found.seconds.tolist() == [0.0, 0.5, 1.0, 1.5]
    for frame, index in zip(found.pixels, (0, 5, 10, 15), strict=True):
        written = Image.fromarray(PLAIN[index]).resize((frame.shape[1], frame.shape[0]))
        apart = [np.abs(frame.astype(int) - np.asarray(written)).mean()]
        apart += [
            np.abs(frame.astype(int) - np.asarray(Image.fromarray(other).resize(written.size))).mean()
            for other in PLAIN
        ]
        assert apart[0] == min(apart) and apart[0] < 20


def test_a_request_says_how_many_frames_a_second_it_wants():
    data = encoded(clip(40), rate=10)
    assert len(decode_video(data, rules()).pixels) == 8
    assert len(decode_video(data, rules(), fps=5.0).pixels) == 20
    images, sizes = pngs(PLAIN[:3])
    found = decode_video(images, rules(), sizes, fps=4.0)
    assert found.seconds.tolist() == [0.0, 0.25, 0.5] and found.rate == 4.0
    assert decode_video(images, rules(), sizes).rate == 1.0


def test_a_video_that_a_camera_turned_is_shown_upright():
    data = bytearray(encoded(clip(20, (96, 64)), rate=10))
    straight = decode_video(bytes(data), rules()).pixels
    matrix = data.index(b"tkhd") + 4 + 40
    one = (1 << 16).to_bytes(4, "big")
    minus = (0x1_0000_0000 - (1 << 16)).to_bytes(4, "big")
    data[matrix : matrix + 20] = bytes(4) + one + bytes(4) + minus + bytes(4)  # a quarter, clockwise
    turned = decode_video(bytes(data), rules()).pixels
    assert turned.shape[1:3] == straight.shape[2:0:-1]
    assert np.abs(np.rot90(straight, -1, axes=(1, 2)).astype(int) - turned).mean() < 3


def test_a_video_is_shown_within_an_isolated_process_as_here():
    data = encoded(PLAIN, rate=10)
    here = decode_video(data, rules())
    there = frames_of(open_video_decoder(argument_of(rules()))(video_request(data, None, None)))
    assert (here.pixels == there.pixels).all() and here.rate == there.rate
    assert here.seconds.tolist() == there.seconds.tolist()


def stretched(data, factor):
    """Return a file whose header says that each frame is shown so many times as long."""
    data = bytearray(data)
    for box, offset in ((b"mdhd", 16), (b"mvhd", 16)):
        place = data.index(box) + offset
        scale = int.from_bytes(data[place : place + 4], "big")
        data[place : place + 4] = max(1, scale // factor).to_bytes(4, "big")
    return bytes(data)


def huge():
    """Return a file whose header says that frames have 12,000 x 12,000 pixels, which its codec believes."""
    data = bytearray(encoded(PLAIN, codec="ffv1", form="avi"))
    place = data.index(b"strf") + 12
    data[place : place + 8] = (12_000).to_bytes(4, "little") * 2
    return bytes(data)


def sound():
    """Return an MP4 that has a sound alone."""
    file = io.BytesIO()
    with av.open(file, "w", format="mp4") as container:
        stream = container.add_stream("aac", rate=8000)
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 8000), np.float32), format="fltp", layout="mono")
        frame.sample_rate = 8000
        container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return file.getvalue()


SOUND = encoded(PLAIN, rate=10)
REFUSED = {
    "a text": (b"no video at all", "no video that is known here; expected an MP4"),
    "nothing": (b"", "no video that is known here"),
    "an image": (png(Image.fromarray(PLAIN[0])), "no video that is known here"),
    "a list of files": (b"#EXTM3U\n#EXTINF:1,\nfile:///etc/passwd\n", "no video that is known here"),
    "a script of files": (b"ffconcat version 1.0\nfile /etc/passwd\n", "no video that is known here"),
    "a truncated mp4": (SOUND[: len(SOUND) // 2], "damaged or cut short"),
    "a truncated webm": (
        encoded(PLAIN, codec="libvpx-vp9", form="webm")[:2500],
        "cut short: it has .* of 2.0 seconds",
    ),
    "a truncated avi": (
        encoded(PLAIN, codec="mpeg4", form="avi")[:9000],
        "cut short: it has .* of 20 frames",
    ),
    "noise behind a header": (SOUND[:32] + bytes(range(256)) * 40, "damaged or cut short"),
    "a sound": (sound(), "no pictures"),
    "an hour": (
        stretched(encoded(clip(90, (32, 32)), rate=1), 40),
        rf"36\d\d seconds; at most {DURATION_SECONDS_MAX:.0f}",
    ),
    "a header of huge frames": (huge(), "12000 x 12000 pixels"),
    "a line": (encoded(clip(4, (1000, 4)), rate=2), "1000 x 4 pixels; expected at most 200"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_bad_videos_are_refused_in_words(name):
    data, message = REFUSED[name]
    with pytest.raises(VideoRefused, match=message):
        decode_video(data, rules())
    with pytest.raises(VideoRefused, match=message):
        frames_of(open_video_decoder(argument_of(rules()))(video_request(data, None, None)))


def test_frames_that_are_no_video_are_refused_in_words():
    data, sizes = pngs([PLAIN[0], clip(1, (40, 40))[0]])
    with pytest.raises(VideoRefused, match="frame 2 has 40 x 40 pixels; expected 96 x 64, as the first has"):
        decode_video(data, rules(), sizes)
    with pytest.raises(VideoRefused, match=r"frame 2 of 2: the image is damaged"):
        decode_video(data[:-300], rules(), [sizes[0], sizes[1] - 300])
    with pytest.raises(VideoRefused, match="0 frames; expected 1 to 768"):
        decode_video(b"", rules(), [])
    many = VideoProcessing(frame=rules().frame, frames_most=2)
    with pytest.raises(VideoRefused, match="3 frames; expected 1 to 2"):
        decode_video(*[pngs(PLAIN[:3])[0], many], pngs(PLAIN[:3])[1])
    large = rules(size={"shortest_edge": 30_000_000, "longest_edge": 90_000_000})
    with pytest.raises(VideoRefused, match="at most 64000000 pixels are taken"):
        decode_video(*[pngs(PLAIN[:3])[0], large], pngs(PLAIN[:3])[1])


def test_a_file_needs_pyav_and_frames_do_not(monkeypatch):
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(VideoRefused, match=r"need PyAV.*pip install 'pageant\[video\]'"):
        decode_video(SOUND, rules())
    data, sizes = pngs(PLAIN[:4])
    assert len(decode_video(data, rules(), sizes).pixels) == 4
