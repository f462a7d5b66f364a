"""Images in chats, over HTTP and in the library: transformers is the oracle, and bad ones disturb nobody."""

from __future__ import annotations

import base64
import io
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import anthropic
import httpx
import openai
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

import pageant
from pageant.actors.client.cast import HTTP
from tests.vision_models import BEGIN, END, IMAGE, ROW_END, VIDEO, Seeing, images, png

TEMPLATE = (
    "{% for message in messages %}[{{ message.role }}]{% if message.content is string %}{{ message.content }}"
    "{% else %}{% for part in message.content %}{% if part.type == 'image' %}<image>{% else %}{{ part.text }}"
    "{% endif %}{% endfor %}{% endif %}{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
)
SPECIAL = {ROW_END: "<row>", IMAGE: "<image>", VIDEO: "<video>", BEGIN: "<begin>", END: "<end>"}
SMALL = {"placement": "one", "progress": False, "threads": 1, "dtype": "float32", "num_blocks": 200}


def add_tokenizer(folder: Path, template: str) -> PreTrainedTokenizerFast:
    """Give a checkpoint a tokenizer of bytes and a chat template."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())[:249]
    vocab = {byte: number for number, byte in enumerate(alphabet)}
    vocab |= {text: number for number, text in SPECIAL.items()}
    made = Tokenizer(models.BPE(vocab, [], unk_token=None))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=made)
    tokenizer.add_special_tokens({"additional_special_tokens": [*SPECIAL.values()]})
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    return tokenizer


class Chatting(Seeing):
    """A LLaVA with a tokenizer of bytes and a chat template."""

    def __init__(self, folder: Path) -> None:
        super().__init__("llava", folder)
        self.tokenizer = add_tokenizer(self.path, TEMPLATE)

    def said(self, text, pictures, count):
        """Return what follows a prompt in which `<image>` stands for an image."""
        token_ids = self.tokenizer(text)["input_ids"]
        return self.tokenizer.decode(self.greedy(token_ids, pictures, count), skip_special_tokens=True)


@pytest.fixture(scope="module")
def llava(tmp_path_factory):
    return Chatting(Path(tmp_path_factory.mktemp("chatting")))


@pytest.fixture(scope="module")
def llm(llava):
    options = {"port": 0, "allowed_media_domains": ["127.0.0.1"]}
    with pageant.LLM(llava.path, actors={HTTP: {"options": options}}, **SMALL) as llm:
        yield llm


@pytest.fixture(scope="module")
def url(llm):
    return llm._session.served_at().split()[-1]


@pytest.fixture(scope="module")
def client(url):
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        yield client


def data_url(picture, form="PNG"):
    file = io.BytesIO()
    picture.save(file, form)
    return f"data:image/{form.lower()};base64,{base64.b64encode(file.getvalue()).decode()}"


def part(given):
    return {"type": "image_url", "image_url": {"url": given}}


def user(*parts):
    return [{"role": "user", "content": [*parts]}]


def asked(client, messages, **more):
    settings = {"model": "llava", "temperature": 0, "max_tokens": 12, "extra_body": {"ignore_eos": True}}
    return client.chat.completions.create(messages=messages, **settings | more)


def test_the_openai_client_sends_images(client, llava):
    first, second, _ = images()
    text = {"type": "text", "text": "What is this?"}
    messages = user(text, part(data_url(first)), part(data_url(second)))
    expected = llava.said("[user]What is this?<image><image>[assistant]", [first, second], 12)
    answer = asked(client, messages)
    assert answer.choices[0].message.content == expected
    assert answer.usage.prompt_tokens == len("[user]What is this?[assistant]") + 2 * 16
    pieces = asked(client, messages, stream=True)
    assert "".join(piece.choices[0].delta.content or "" for piece in pieces if piece.choices) == expected


def test_responses_take_images_and_go_on_from_them(client, llava):
    given = [{"type": "input_text", "text": "Well?"}, {"type": "input_image", "image_url": PNG}]
    settings = {
        "model": "llava",
        "temperature": 0,
        "max_output_tokens": 12,
        "extra_body": {"ignore_eos": True},
    }
    first = client.responses.create(input=[{"role": "user", "content": given}], **settings)
    asked = "[user]Well?<image>[assistant]"
    assert first.output_text == llava.said(asked, images()[:1], 12)
    second = client.responses.create(input="And?", previous_response_id=first.id, **settings)
    asked += f"{first.output_text}[user]And?[assistant]"
    assert second.output_text == llava.said(asked, images()[:1], 12)
    items = client.responses.input_items.list(first.id)
    assert items.data[0].content[1].image_url == PNG


def test_anthropics_client_sends_images(url, llava):
    source = {"type": "base64", "media_type": "image/png", "data": PNG.partition(",")[2]}
    content = [{"type": "text", "text": "Well?"}, {"type": "image", "source": source}]
    with anthropic.Anthropic(base_url=url, api_key="none", max_retries=0) as client:
        answer = client.messages.create(
            model="llava",
            max_tokens=12,
            messages=[{"role": "user", "content": content}],
            extra_body={"temperature": 0, "ignore_eos": True},
        )
    expected = llava.said("[user]Well?<image>[assistant]", images()[:1], 12)
    assert answer.content[0].text and expected.startswith(answer.content[0].text)


def test_the_library_takes_images_of_pillow(llm, llava):
    (picture, *_) = images()
    params = pageant.SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    (output,) = llm.chat(user({"type": "text", "text": "Well?"}, {"type": "image", "image": picture}), params)
    assert output.outputs[0].text == llava.said("[user]Well?<image>[assistant]", [picture], 12)
    prompt = {"prompt": "Look: <image>", "multi_modal_data": {"image": picture}}
    (output,) = llm.generate(prompt, params)
    assert output.outputs[0].text == llava.said("Look: <image>", [picture], 12)


PNG = data_url(images()[0])
REFUSED = {
    "not an image": (part("data:image/png;base64,aGVsbG8="), "image 1 of 1: the data is no image"),
    "cut short": (part(PNG[: len("data:image/png;base64,") + 1600]), "damaged or cut short"),
    "a file": (part("file:///etc/passwd"), "expected a data: URL"),
    "a URL that leads nowhere": (part("http://127.0.0.1:1/a.png"), "was not fetched: "),
    "a URL of another domain": (part("http://10.0.0.1/a.png"), "not among allowed_media_domains"),
    "no base64": (part("data:image/png;base64,-"), "no base64"),
    "a spelled placeholder": (
        {"type": "text", "text": "<image>"},
        "2 placeholder tokens of images, and 1 images",
    ),
    "a sound": ({"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}, "expected 'text'"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_bad_images_are_answered_with_400_and_disturb_nobody(client, llava, name):
    bad, message = REFUSED[name]
    parts = [bad, part(PNG)] if bad["type"] == "text" else [bad]
    with pytest.raises(openai.BadRequestError, match=message) as refused:
        asked(client, user(*parts))
    assert refused.value.param == "messages"
    expected = llava.said("[user]Well?<image>[assistant]", images()[:1], 12)
    assert (
        asked(client, user({"type": "text", "text": "Well?"}, part(PNG))).choices[0].message.content
        == expected
    )


def test_images_are_fetched_from_domains_that_are_allowed(client, llava):
    class Images(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(png(images()[0]))

        def log_message(self, *_):
            pass

    with HTTPServer(("127.0.0.1", 0), Images) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        where = part(f"http://127.0.0.1:{server.server_port}/a.png")
        answer = asked(client, user({"type": "text", "text": "Well?"}, where))
        server.shutdown()
        serving.join()
    expected = llava.said("[user]Well?<image>[assistant]", images()[:1], 12)
    assert answer.choices[0].message.content == expected


def test_a_body_that_is_too_large_is_refused(url):
    body = {"model": "llava", "messages": user(part("data:image/png;base64," + "A" * (70 << 20)))}
    answer = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60)
    assert answer.status_code == 413
