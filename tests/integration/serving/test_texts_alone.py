"""A model of texts is asked about images, videos and sounds: each API refuses in words, and goes on."""

from __future__ import annotations

import base64
import io

import pytest
from PIL import Image

from tests.integration.serving.asking import CHAT, MESSAGES, RESPONSES

TRANSCRIPTIONS, TRANSLATIONS = "/v1/audio/transcriptions", "/v1/audio/translations"


def png() -> str:
    file = io.BytesIO()
    Image.new("RGB", (8, 8), "red").save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode()


PNG = png()
URL = f"data:image/png;base64,{PNG}"
SOURCE = {"type": "base64", "media_type": "image/png", "data": PNG}


@pytest.mark.parametrize(
    ("path", "name", "part", "what"),
    [
        (CHAT, "messages", {"type": "image_url", "image_url": {"url": URL}}, "an image"),
        (
            CHAT,
            "messages",
            {"type": "video_url", "video_url": {"url": f"data:video/jpeg;base64,{PNG}"}},
            "a video",
        ),
        (RESPONSES, "input", {"type": "input_image", "image_url": URL}, "an image"),
        (MESSAGES, "messages", {"type": "image", "source": SOURCE}, "an image"),
    ],
)
def test_images_and_videos_are_refused_with_their_place(http, path, name, part, what):
    asked = {"model": "demo", "max_tokens": 4, name: [{"role": "user", "content": [part]}]}
    if path == RESPONSES:
        del asked["max_tokens"]
    answer = http.post(path, json=asked)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert f"{what}; this model takes texts alone" in error["message"]


@pytest.mark.parametrize("path", [TRANSCRIPTIONS, TRANSLATIONS])
def test_sounds_are_refused_by_the_name_of_the_model(http, path):
    answer = http.post(path, data={"model": "demo"}, files={"file": ("a.wav", b"RIFF" + bytes(60))})
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["param"] == "model" and "expected one that hears" in error["message"]
