"""Prompts with videos through whole engines, over HTTP and in the library: transformers is the oracle."""

from __future__ import annotations

import asyncio
import base64
import io
import os
import signal
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import numpy as np
import openai
import pytest
from PIL import Image

import pageant
from pageant.actors.client.cast import HTTP
from pageant.models.checkpoint import Checkpoint
from pageant.models.vision.families import read_vision
from pageant.models.vision.video_decoding import decode_video
from pageant.protocol.encoding import GetEncoderStatistics
from pageant.protocol.errors import BadRequest, TopologyError
from tests.integration.test_images_in_chats import add_tokenizer, data_url, part, user
from tests.integration.test_images_in_chats import asked as asked_of
from tests.kept_encoder import keep
from tests.video_models import FAMILIES, Watching, clip, encoded, pictures
from tests.vision_models import BEGIN, END, IMAGE, VIDEO, Seeing, png

TEMPLATE = (
    "{% for message in messages %}[{{ message.role }}]{% if message.content is string %}{{ message.content }}"
    "{% else %}{% for part in message.content %}{% if part.type == 'image' %}<begin><image><end>"
    "{% elif part.type == 'video' %}<begin><video><end>{% else %}{{ part.text }}"
    "{% endif %}{% endfor %}{% endif %}{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
)
ENGINE = {"placement": "one", "progress": False, "threads": 1, "dtype": "float32", "block_size": 8}
IDS = {**ENGINE, "skip_tokenizer_init": True}
GREEDY = pageant.SamplingParams(temperature=0, max_tokens=32, ignore_eos=True, detokenize=False)
BRIEF = pageant.SamplingParams(temperature=0, max_tokens=4, ignore_eos=True, detokenize=False)
FILM = encoded(clip(25), rate=5)
OTHER = encoded(clip(12, (64, 80), seed=3), rate=4)
TEXT = {"type": "text", "text": "Well?"}


class Chatting(Watching):
    """A model that sees videos, with a tokenizer of bytes and a chat template."""

    def __init__(self, name: str, folder: Path) -> None:
        super().__init__(name, folder)
        self.tokenizer = add_tokenizer(self.path, TEMPLATE)
        self.rules = read_vision(Checkpoint(self.path)).video.processing

    def tokens_of(self, text):
        return self.tokenizer(text)["input_ids"]

    def given_for(self, token_ids, shown, videos):
        """Return transformers' inputs of a prompt; videos are files, or lists of frames with their rate."""
        frames = [
            decode_video(one, self.rules)
            if isinstance(one, bytes)
            else decode_video(b"".join(map(png, one[0])), self.rules, [len(png(f)) for f in one[0]], one[1])
            for one in videos
        ]
        return self.given(token_ids, shown, frames, self.tokens_of)

    def expanded(self, token_ids, shown, videos):
        """Return the tokens of a prompt as the model sees it."""
        return self.given_for(token_ids, shown, videos)["input_ids"][0]

    def follows(self, token_ids, shown, videos, count):
        """Return tokens that follow a prompt."""
        return self.greedy_of(self.given_for(token_ids, shown, videos), count)

    def said(self, text, shown, videos, count):
        """Return what follows a prompt as text."""
        found = self.follows(self.tokens_of(text), shown, videos, count)
        return self.tokenizer.decode(found, skip_special_tokens=True)


def video_url(data, kind="video/mp4"):
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def video(url, **more):
    return {"type": "video_url", "video_url": {"url": url, **more}}


def asked(client, messages):
    return asked_of(client, messages, model="qwen3_vl")


def statistics(llm):
    return llm._session.ask("encoder/0", GetEncoderStatistics())


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_tokens_are_transformers(family, tmp_path):
    """Steps are small, so that videos are cut; blocks are few, so that requests give way.

    On a busy machine videos may come one after another, and nobody has to. Asked for again, they are known.
    """
    seeing = Chatting(family, tmp_path)
    asked_for = [
        ([5, 9, 7, 11, 30], [], []),
        (seeing.watched([5, "video", 7]), [], [FILM]),
        (seeing.watched(["image", 4, "video", 9, "image", 9]), pictures(), [OTHER]),
    ]
    prompts = []
    for token_ids, shown, videos in asked_for:
        media = {name: value for name, value in (("image", shown), ("video", videos)) if value}
        prompts.append({"prompt_token_ids": token_ids, "multi_modal_data": media} if media else token_ids)
    expected = [seeing.follows(*one, 32) for one in asked_for]
    longest = 33 + max(len(seeing.expanded(*one)) for one in asked_for)
    settings = {"num_blocks": longest // 8 + 3, "max_model_len": longest}
    settings |= {"max_num_batched_tokens": 13, "max_num_seqs": 4}
    with pageant.LLM(seeing.path, **settings, **ENGINE) as llm:
        for _ in range(4):
            outputs = llm.generate(prompts * 2, GREEDY)
            assert [output.outputs[0].token_ids for output in outputs] == expected * 2
            if llm.scheduler_statistics().counters["preemptions"]:
                break
        else:
            pytest.fail("requests are meant to give way")
        (again,) = llm.generate(prompts[1], BRIEF)
        assert again.outputs[0].token_ids == expected[1][:4]
        assert statistics(llm).encoded == 4, "each video and image is encoded once"


async def test_nothing_is_lost_when_the_encoder_dies(tmp_path):
    """The encoder has a process of its own, so that videos and rows cross between processes."""
    seeing = Chatting("qwen2_5_vl", tmp_path)
    keep(seeing.path, [png(one) for one in pictures()], [FILM, OTHER])
    asked_for = [
        (seeing.watched([5, "video", 7]), [], [FILM]),
        (seeing.watched(["image", 4, "video", 9, "image", 9]), pictures(), [OTHER]),
    ]
    expected = [seeing.follows(*one, 32) for one in asked_for]
    own = {"nodes": {"front": {}, "seeing": {"process": True}}}
    own["actors"] = {"encoder": {"node": "seeing", "class": "tests.kept_encoder:KeptEncoder"}}
    settings = {key: value for key, value in IDS.items() if key not in ("progress", "placement")}
    async with pageant.Engine(seeing.path, num_blocks=100, max_num_seqs=2, **own, **settings) as engine:

        async def served(token_ids, shown, videos):
            media = {name: value for name, value in (("image", shown), ("video", videos)) if value}
            prompt = {"prompt_token_ids": token_ids, "multi_modal_data": media}
            return (await engine.complete(prompt, GREEDY)).outputs[0].token_ids

        pids = {node.node: node.pid for node in await engine.statistics()}
        os.kill(pids["seeing"], signal.SIGSTOP)  # so that it has videos in hand when it dies
        asked = [asyncio.create_task(served(*one)) for one in asked_for]
        assert len((await engine.complete([5, 9, 7], BRIEF)).outputs[0].token_ids) == 4, "texts do without it"
        os.kill(pids["seeing"], signal.SIGKILL)
        assert await asyncio.gather(*asked) == expected
        assert {node.node: node.pid for node in await engine.statistics()}["seeing"] != pids["seeing"]


def frames_of(video):
    return [Image.fromarray(frame) for frame in video]


def test_equal_videos_are_shared_and_others_never_are(tmp_path):
    """Another pixel and another time are another video; frames are 56 x 84, as the tower takes them."""
    seeing = Chatting("qwen2_5_vl", tmp_path)
    first = clip(4, (84, 56))
    second = [*first[:3], first[3].copy()]
    second[3][-1, -1, 2] ^= 1
    with pageant.LLM(seeing.path, num_blocks=200, **ENGINE) as llm:

        def cached(token_ids, frames, fps):
            prompt = [{"role": "user", "content": [{"type": "video", "video": frames, "fps": fps}]}]
            (output,) = llm.chat(prompt, BRIEF)
            text = seeing.tokens_of("[user]<begin><video><end>[assistant]")
            expected = seeing.follows(text, [], [(frames_of(frames), fps)], 4)
            assert output.outputs[0].token_ids == expected
            return output.num_cached_tokens

        before = len("[user]") + 1
        length = len("[user][assistant]") + 2 + 2 * 2 * 3
        assert cached([], first, 1.0) == 0
        assert statistics(llm).encoded == 1
        assert cached([], second, 1.0) == before, "nothing from the video on is shared"
        assert cached([], first, 0.5) == before, "positions in time differ"
        assert cached([], first, 1.0) == cached([], second, 1.0) == length - 1
        assert statistics(llm).encoded == 3


@pytest.fixture(scope="module")
def qwen(tmp_path_factory):
    return Chatting("qwen3_vl", Path(tmp_path_factory.mktemp("watching")))


@pytest.fixture(scope="module")
def llm(qwen):
    options = {"port": 0, "allowed_media_domains": ["127.0.0.1"]}
    settings = {"num_blocks": 200, "max_model_len": 340, "limit_mm_per_prompt": {"image": 2, "video": 2}}
    with pageant.LLM(qwen.path, actors={HTTP: {"options": options}}, **settings, **ENGINE) as llm:
        yield llm


@pytest.fixture(scope="module")
def client(llm):
    url = llm._session.served_at().split()[-1]
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_the_openai_client_sends_videos(client, qwen):
    first = pictures()[0]
    messages = user(TEXT, video(video_url(FILM)), part(data_url(first)), video(video_url(OTHER)))
    text = "[user]Well?<begin><video><end><begin><image><end><begin><video><end>[assistant]"
    answer = asked(client, messages)
    assert answer.choices[0].message.content == qwen.said(text, [first], [FILM, OTHER], 12)
    assert "video" in client.models.list().data[0].input_modalities


def test_frames_are_sent_as_a_video(client, llm, qwen):
    """As JPEG files with commas between them, and in the library as Pillow's images or an array."""
    frames = frames_of(clip(5))
    url = "data:video/jpeg;base64," + ",".join(data_url(one, "JPEG").partition(",")[2] for one in frames)
    text = "[user]Well?<begin><video><end>[assistant]"
    seen = [Image.open(open_jpeg(one)) for one in frames]
    answer = asked(client, user(TEXT, video(url, fps=2)))
    assert answer.choices[0].message.content == qwen.said(text, [], [(seen, 2.0)], 12)
    params = pageant.SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    for given in (frames, np.stack([np.asarray(one) for one in frames])):
        (output,) = llm.chat(user(TEXT, {"type": "video", "video": given}), params)
        assert output.outputs[0].text == qwen.said(text, [], [(frames, 1.0)], 12)


def open_jpeg(picture):
    return io.BytesIO(base64.b64decode(data_url(picture, "JPEG").partition(",")[2]))


def test_videos_are_fetched_from_domains_that_are_allowed(client, qwen):
    class Videos(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(FILM)

        def log_message(self, *_):
            pass

    with HTTPServer(("127.0.0.1", 0), Videos) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        answer = asked(client, user(TEXT, video(f"http://127.0.0.1:{server.server_port}/a.mp4")))
        server.shutdown()
        serving.join()
    expected = qwen.said("[user]Well?<begin><video><end>[assistant]", [], [FILM], 12)
    assert answer.choices[0].message.content == expected


REFUSED = {
    "no video": (video(video_url(b"nothing of the kind")), "video 1 of 1: the data is no video"),
    "an image": (video(video_url(png(pictures()[0]), "video/png")), "video 1 of 1: the data is no video"),
    "cut short": (video(video_url(FILM[: len(FILM) // 2])), "video 1 of 1: the video is damaged"),
    "no frames": (video("data:video/jpeg;base64,"), "frame 1 has no bytes"),
    "a frame that is none": (video("data:video/jpeg;base64,AAAA"), "frame 1 of 1: the data is no image"),
    "a file": (video("file:///etc/passwd"), "expected a data: URL such as data:video/mp4"),
    "another domain": (video("http://10.0.0.1/a.mp4"), "not among allowed_media_domains"),
    "no base64": (video("data:video/mp4;base64,-"), "no base64"),
    "no URL": ({"type": "video_url"}, "has no video_url"),
    "a rate that is none": (video(video_url(FILM), fps=0), "fps is 0; expected a number above 0"),
    "a spelled placeholder": (
        {"type": "text", "text": "<video>"},
        "2 placeholder tokens of videos, and 1 videos",
    ),
    "more than there may be": (video(video_url(OTHER)), "messages has 3 videos; at most 2"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_bad_videos_are_answered_with_400_and_disturb_nobody(client, qwen, name):
    bad, message = REFUSED[name]
    parts = (
        [bad] * 3 if "more" in name else [bad, video(video_url(OTHER))] if bad["type"] == "text" else [bad]
    )
    with pytest.raises(openai.BadRequestError, match=message) as refused:
        asked(client, user(*parts))
    assert refused.value.param == "messages"


def test_a_video_that_leaves_no_room_is_refused_before_it_is_encoded(llm):
    before = statistics(llm).encoded
    frames = np.zeros((700, 32, 32, 3), np.uint8)
    with pytest.raises(BadRequest, match=r"video 1 of 1: the video has \d+ tokens; at most 339 leave room"):
        llm.chat(user(TEXT, {"type": "video", "video": frames}), BRIEF)
    assert statistics(llm).encoded == before


def test_placeholders_of_videos_in_ids_need_videos(llm):
    with pytest.raises(BadRequest, match="1 placeholder tokens of videos, and 0 videos"):
        llm.generate([5, VIDEO, 6], BRIEF)
    with pytest.raises(BadRequest, match="1 placeholder tokens of videos, and 2 videos"):
        given = {"prompt_token_ids": [5, BEGIN, VIDEO, END], "multi_modal_data": {"video": [OTHER, OTHER]}}
        llm.generate(given, BRIEF)
    with pytest.raises(BadRequest, match="expected a list of images, an array, bytes, or a data: URL"):
        llm.generate({"prompt_token_ids": [5, VIDEO], "multi_modal_data": {"video": object()}}, BRIEF)


def test_what_takes_no_videos_says_so(qwen, checkpoint, tmp_path):
    with pageant.LLM(qwen.path, num_blocks=64, limit_mm_per_prompt={"video": 0}, **IDS) as llm:
        with pytest.raises(BadRequest, match="a video; this model takes texts and images alone"):
            llm.generate({"prompt_token_ids": [5, VIDEO], "multi_modal_data": {"video": OTHER}}, BRIEF)
        with pytest.raises(BadRequest, match="tokens"):
            llm.generate([5, VIDEO], BRIEF)
    with pageant.LLM(qwen.path, num_blocks=64, limit_mm_per_prompt={"image": 0, "video": 1}, **IDS) as llm:
        with pytest.raises(BadRequest, match="1 images; at most 0"):
            given = {"prompt_token_ids": [5, IMAGE], "multi_modal_data": {"image": pictures()[0]}}
            llm.generate(given, BRIEF)
        with pytest.raises(BadRequest, match="without a tokenizer"):
            llm.generate({"prompt_token_ids": [5, VIDEO], "multi_modal_data": {"video": OTHER}}, BRIEF)
    given = {"prompt_token_ids": [5, VIDEO], "multi_modal_data": {"video": OTHER}}
    for name in ("pixtral", "mistral3"):
        refusal = pytest.raises(BadRequest, match="a video; this model takes texts and images alone")
        with pageant.LLM(Seeing(name, tmp_path).path, num_blocks=32, **IDS) as llm, refusal:
            llm.generate(given, BRIEF)
    refusal = pytest.raises(BadRequest, match="this model takes texts alone")
    with pageant.LLM(checkpoint.path, num_blocks=32, **IDS) as llm, refusal:
        llm.generate(given, BRIEF)
    gemma = Seeing("gemma3", tmp_path)
    with pytest.raises(TopologyError, match=r"limit_mm_per_prompt\.video.*the model takes no videos"):
        pageant.LLM(gemma.path, limit_mm_per_prompt={"video": 1}, **IDS)
