"""GGUF files through a whole engine, in the commands, and what is refused before anything loads."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from safetensors.torch import load_file

import pageant
from pageant.actors.client.cast import HTTP
from pageant.actors.client.session import Session
from pageant.actors.client.settings import topology_of
from pageant.protocol.errors import PageantError
from pageant.scripts.commands.doctor import examine_model
from tests.gguf_files import byte_level_metadata, write_file

DEMO = Path(__file__).parents[2] / "models" / "demo"
SETTINGS: dict[str, Any] = {
    "dtype": "float32",
    "max_model_len": 256,
    "kv_cache_memory": 64 << 20,
    "threads": 1,
    "placement": "one",
    "progress": False,
}
MESSAGES: list[Any] = [
    [{"role": "user", "content": text}] for text in ("What is a list?", "What are slices?")
]
GREEDY = pageant.SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)


@pytest.fixture(scope="module")
def file_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Write a demo checkpoint's file, with the demo model's own tokenizer and chat template."""
    content = json.loads((DEMO / "tokenizer.json").read_text())
    template = json.loads((DEMO / "tokenizer_config.json").read_text())["chat_template"]

    def edit(writer: Any) -> None:
        byte_level_metadata(content, "gpt-2")(writer)
        writer.kv_data[0].pop("tokenizer.ggml.bos_token_id")
        writer.kv_data[0]["tokenizer.ggml.eos_token_id"].value = 2
        writer.add_chat_template(template)

    def write(folder: Path, kind: str) -> Path:
        path = tmp_path_factory.mktemp("gguf") / f"{folder.name}.{kind}.gguf"
        values = json.loads((folder / "config.json").read_text())
        rope = {"rope_type": "default", "rope_theta": values["rope_theta"]}
        config = SimpleNamespace(**values, rope_parameters=rope)
        write_file(path, "llama", config, load_file(folder / "model.safetensors"), kind, edit)
        return path

    return write


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


def chats(llm: pageant.LLM) -> list[list[int]]:
    return [output.outputs[0].token_ids for output in llm.chat(MESSAGES, GREEDY)]


@pytest.fixture(scope="module")
def expected() -> list[list[int]]:
    """Return the answers of the checkpoint that the files are of."""
    with pageant.LLM(DEMO, **SETTINGS) as llm:
        return chats(llm)


@pytest.mark.parametrize("how", ["alone", "drafts of another file", "a group of two"])
def test_a_file_of_floats_answers_as_its_checkpoint(
    file_of: Callable[..., Path], expected: list[list[int]], how: str
) -> None:
    """Chats are written by the template in the file's metadata, and read by its tokenizer."""
    changes: dict[str, Any] = {}
    if how == "drafts of another file":
        draft = str(file_of(DEMO / "draft", "F16"))
        changes = {"speculation": {"method": "draft", "model": draft, "tokens": 2, "adaptive": False}}
    if how == "a group of two":
        changes = {"tensor_parallel": 2}
    with pageant.LLM(str(file_of(DEMO, "F32")), **SETTINGS | changes) as llm:
        assert chats(llm) == expected
        counters = llm.scheduler_statistics().counters
    assert (counters.get("drafts_accepted", 0) > 0) == ("speculation" in changes)


def test_drafts_of_a_layer_that_no_file_has_are_refused_by_name(file_of: Callable[..., Path]) -> None:
    speculation = {"method": "mtp", "tokens": 2}
    with pytest.raises(PageantError, match="a GGUF file, of which no layer that drafts"):
        pageant.LLM(str(file_of(DEMO, "F32")), **SETTINGS, speculation=speculation)


def test_a_server_of_a_quantised_file_chats(file_of: Callable[..., Path]) -> None:
    """A server answers as the library does, under the file's name."""
    path = file_of(DEMO, "Q8_0")
    with pageant.LLM(str(path), **SETTINGS) as llm:
        (output,) = llm.chat(MESSAGES[:1], GREEDY)
    settings = {name: value for name, value in SETTINGS.items() if name != "progress"}
    session = Session(topology_of(str(path), None, settings | {"actors": {HTTP: {"options": {"port": 0}}}}))
    session.start()
    try:
        with httpx.Client(base_url=session.served_at().split()[-1], timeout=60) as http:
            name = http.get("/v1/models").json()["data"][0]["id"]
            greedy = {"temperature": 0, "max_tokens": 24, "ignore_eos": True}
            answer = http.post("/v1/chat/completions", json={"model": name, "messages": MESSAGES[0]} | greedy)
    finally:
        session.stop()
    (choice,) = answer.json()["choices"]
    assert name == path.name
    assert choice["message"]["content"] == output.outputs[0].text != ""


def test_what_is_read_of_a_file_is_said(file_of: Callable[..., Path]) -> None:
    found = examine_model(str(file_of(DEMO, "Q4_0")))
    assert found.good and "LlamaForCausalLM in bfloat16" in found.found
    assert found.means.startswith("GGUF (Q4_0): 21 matrices with exact codes")
    cut = file_of(DEMO, "Q8_0")
    cut.write_bytes(cut.read_bytes()[:2_000_000])
    assert "truncated" in examine_model(str(cut)).means


def test_a_file_without_a_known_tokenizer_is_refused_before_anything_loads(
    file_of: Callable[..., Path], caplog: pytest.LogCaptureFixture
) -> None:
    path = file_of(DEMO, "Q4_0")
    path.write_bytes(path.read_bytes().replace(b"tokenizer.ggml.merges", b"tokenizer.ggml.merged"))
    with (
        caplog.at_level(logging.ERROR),
        pytest.raises(pageant.CheckpointError, match=r"no tokenizer\.ggml\.merges"),
    ):
        pageant.LLM(str(path), **SETTINGS)
