"""A model starts whenever its weights fit: requests may be as long as the KV cache holds."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import pageant
from pageant.actors.executor.runners import memory

DEMO = Path(pageant.__file__).parent / "models" / "demo"


@pytest.fixture(scope="module")
def long_checkpoint(checkpoint, tmp_path_factory):
    """The checkpoint that most tests serve, made for 131,072 tokens."""
    path = tmp_path_factory.mktemp("long") / "llama"
    shutil.copytree(checkpoint.path, path)
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 131_072}))
    return SimpleNamespace(path=path)


@pytest.fixture
def settings():
    return {"placement": "one", "progress": False, "threads": 1, "max_num_seqs": 4, "dtype": "float32"}


def test_a_model_made_for_more_than_memory_holds_starts_with_what_fits(long_checkpoint, settings, caplog):
    with pageant.LLM(long_checkpoint.path, kv_cache_memory="4MiB", **settings) as llm:
        longest = llm.max_model_len
        assert 16 <= longest < 131_072
        (line,) = [one.getMessage() for one in caplog.records if "max_model_len" in one.getMessage()]
        assert line.startswith(f"max_model_len {longest:,} of 131,072: 4 MiB are there for the KV cache")
        with pytest.raises(pageant.BadRequest, match=f"max_model_len is {longest}"):
            llm.generate([[1] * longest])
        (output,) = llm.generate(
            [[1] * (longest - 3)], pageant.SamplingParams(max_tokens=64, ignore_eos=True)
        )
        assert len(output.outputs[0].token_ids) == 3
        assert output.outputs[0].finish_reason == "length"


def test_a_length_that_is_asked_for_is_not_changed(long_checkpoint, settings):
    with pageant.LLM(long_checkpoint.path, kv_cache_memory="4MiB", max_model_len=64, **settings) as llm:
        assert llm.max_model_len == 64


def test_an_8b_shape_made_for_131072_tokens_starts_by_default(tmp_path, settings, caplog, monkeypatch):
    config = LlamaConfig(
        vocab_size=260,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=32,
        num_attention_heads=8,
        num_key_value_heads=8,
        head_dim=128,
        max_position_embeddings=131_072,
    )
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(tmp_path)
    shutil.copy(DEMO / "tokenizer.json", tmp_path)
    monkeypatch.setattr(memory, "available_bytes", lambda: 8 << 30)
    with pageant.LLM(tmp_path, **(settings | {"dtype": "bfloat16"})) as llm:
        assert llm.max_model_len == (7 << 30) // (128 << 10)
        (line,) = [one.getMessage() for one in caplog.records if "max_model_len" in one.getMessage()]
        assert line.startswith(
            "max_model_len 57,344 of 131,072: 7,168 MiB are there for the KV cache; raise "
        )
        assert len(llm.generate([[1, 2, 3]])[0].outputs[0].token_ids)
