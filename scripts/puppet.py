"""A model that says exactly what its chat template decides: `python -m pageant.scripts.puppet FOLDER`.

It copies the token that stands a fixed distance back. Its template writes a script of just that length in front of the
answer, so the answer is the script, which follows from the conversation. Calls of tools, thoughts and texts can be
tested so with a real model, tokenizer and server. The checkpoint is Qwen 2's form, of one layer, made by hand:

- the embeddings are one-hot, and so are the values, moved to the second half of the hidden state;
- queries and keys are constants (biases), turned by the rotary embedding so that they agree at one distance alone;
- the output layer reads the second half.

Conversations are bytes, one token each. The script is, by the latest of these that is in the conversation:

- `CALL:name WITH:{...}:END` in a user's message: a call of that tool, with these arguments;
- `SAY:text:END` in a user's message: the text;
- a tool's result: `The tool said: ` and the result;
- any other user's message: `You said: ` and the end of it.

`THINK:text:END` in the same message puts the text before it as thoughts, unless `enable_thinking` is false.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
import numpy.typing as npt
import typer
from safetensors.numpy import save_file

__all__ = ["SCRIPT_LENGTH", "make_puppet"]

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MARKS = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
SCRIPT_LENGTH = 1024
"""Tokens of a script, with what it is padded with: the longest answer."""

_HEADER_LENGTH = len("assistant\n") + 1
_VOCAB_SIZE, _HALF, _HEAD_SIZE = 272, 320, 64
_HIDDEN_SIZE = 2 * _HALF
_NUM_HEADS = _HIDDEN_SIZE // _HEAD_SIZE
_ROPE_BASE = 10_000.0
_SHARPNESS = 20.0  # of queries and keys: attention is at one position to more than float32 tells
_SAID, _READ = 4.0, 1.25  # of the copied token against the hidden state's own, and in the logits

TEMPLATE = """\
{%- macro text(content) -%}
{%- if content is string -%}{{ content }}
{%- else -%}{%- for part in content or [] -%}{{ part.text or '' }}{%- endfor -%}{%- endif -%}
{%- endmacro -%}
{%- macro ascii(said) -%}{%- for c in said -%}{{ c if c < '\\x7f' else '?' }}{%- endfor -%}{%- endmacro -%}
{%- macro within(said, mark) -%}{{ (said.split(mark)[-1]).split(':END')[0] }}{%- endmacro -%}
{%- set now = namespace(script='You said nothing.', thoughts='') -%}
{%- for message in messages -%}
  {%- set said = text(message.content) -%}
  {%- if message.role == 'tool' -%}
    {%- set now.script = 'The tool said: ' ~ ascii(said[:300]) -%}{%- set now.thoughts = '' -%}
  {%- elif message.role == 'user' and 'CALL:' in said -%}
    {%- set name = said.split('CALL:')[-1].split(' ')[0] -%}
    {%- set now.script = '<tool_call>\\n{"name": "' ~ name ~ '", "arguments": ' ~ within(said, 'WITH:')
        ~ '}\\n</tool_call>' -%}
  {%- elif message.role == 'user' and 'SAY:' in said -%}
    {%- set now.script = within(said, 'SAY:') -%}
  {%- elif message.role == 'user' and message.content and now.script == 'You said nothing.' -%}
    {%- set now.script = 'You said: ' ~ ascii(said[-100:]) -%}
  {%- endif -%}
  {%- if message.role == 'user' and 'THINK:' in said -%}
    {%- set now.thoughts = within(said, 'THINK:') -%}
  {%- endif -%}
{%- endfor -%}
{%- if now.thoughts and enable_thinking is not false -%}
  {%- set now.script = '<think>\\n' ~ now.thoughts ~ '\\n</think>\\n\\n' ~ now.script -%}
{%- endif -%}
{%- set script = now.script ~ '<|im_end|>' -%}
{%- set counted = namespace(text=script) -%}
{%- for mark in MARKS -%}{%- set counted.text = counted.text | replace(mark, 'x') -%}{%- endfor -%}
{%- for message in messages -%}<|im_start|>{{ message.role }}
{{ text(message.content)[-200:] }}<|im_end|>
{% endfor -%}
{%- if add_generation_prompt -%}
{{ script }}{{ '.' * (LENGTH - counted.text | length) }}<|im_start|>assistant
{% endif -%}"""


def make_puppet(folder: Path, template: str = TEMPLATE, max_model_len: int = 32_768) -> Path:
    """Write the checkpoint.

    Args:
        folder: is made.
        template: the chat template; in it, MARKS and LENGTH stand for all marks and for the script's length.
    """
    folder.mkdir(parents=True, exist_ok=True)
    marks = msgspec.json.encode([*SPECIAL, *MARKS]).decode()
    template = template.replace("in MARKS", f"in {marks}").replace("LENGTH", str(SCRIPT_LENGTH))
    (folder / "chat_template.jinja").write_text(template)
    files = {
        "config.json": _config(max_model_len),
        "generation_config.json": {"eos_token_id": [SPECIAL.index("<|im_end|>"), 0], "pad_token_id": 0},
        "tokenizer.json": _tokenizer(),
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": None,
            "eos_token": "<|im_end|>",
            "pad_token": "<|endoftext|>",
            "model_max_length": max_model_len,
            "clean_up_tokenization_spaces": False,
        },
    }
    for name, content in files.items():
        (folder / name).write_bytes(msgspec.json.encode(content))
    save_file(_weights(), folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def _config(max_model_len: int) -> dict[str, Any]:
    return {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "vocab_size": _VOCAB_SIZE,
        "hidden_size": _HIDDEN_SIZE,
        "intermediate_size": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": _NUM_HEADS,
        "num_key_value_heads": _NUM_HEADS,
        "hidden_act": "silu",
        "max_position_embeddings": max_model_len,
        "rms_norm_eps": 1e-6,
        "rope_theta": _ROPE_BASE,
        "tie_word_embeddings": False,
        "use_sliding_window": False,
        "bos_token_id": None,
        "eos_token_id": SPECIAL.index("<|im_end|>"),
        "pad_token_id": 0,
        "torch_dtype": "float32",
    }


def _byte_names() -> list[str]:
    """Return the character by which a byte-level tokenizer names each byte: printable ones stand for themselves."""
    plain = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    return [chr(byte) if byte in plain else chr(next(others)) for byte in range(256)]


def _tokenizer() -> dict[str, Any]:
    tokens = [*SPECIAL, *_byte_names(), *MARKS]
    vocab = {token: number for number, token in enumerate(tokens)}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    added = [
        {"id": vocab[token], "content": token, "special": token in SPECIAL, **flags}
        for token in (*SPECIAL, *MARKS)
    ]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    return {
        "version": "1.0",
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {"type": "BPE", "vocab": vocab, "merges": [], "byte_fallback": False},
    }


def _weights() -> dict[str, npt.NDArray[np.float32]]:
    """Return the tensors by their names."""
    one_hot = np.eye(_VOCAB_SIZE, _HIDDEN_SIZE, dtype=np.float32)
    moved = np.zeros((_HIDDEN_SIZE, _HIDDEN_SIZE), np.float32)
    tokens = np.arange(_VOCAB_SIZE)
    moved[_HALF + tokens, tokens] = _SAID / math.sqrt(_HIDDEN_SIZE)  # the norm's factor for one-hot rows
    read = np.zeros((_VOCAB_SIZE, _HIDDEN_SIZE), np.float32)
    read[tokens, _HALF + tokens] = _READ
    query, key = _agreeing(distance=_HEADER_LENGTH + SCRIPT_LENGTH - 1)
    ones, zeros = np.ones(_HIDDEN_SIZE, np.float32), np.zeros(_HIDDEN_SIZE, np.float32)
    nothing = np.zeros((_HIDDEN_SIZE, _HIDDEN_SIZE), np.float32)
    layer = {
        "input_layernorm.weight": ones,
        "post_attention_layernorm.weight": ones.copy(),
        "self_attn.q_proj.weight": nothing,
        "self_attn.q_proj.bias": np.tile(query, _NUM_HEADS),
        "self_attn.k_proj.weight": nothing.copy(),
        "self_attn.k_proj.bias": np.tile(key, _NUM_HEADS),
        "self_attn.v_proj.weight": np.eye(_HIDDEN_SIZE, dtype=np.float32),
        "self_attn.v_proj.bias": zeros,
        "self_attn.o_proj.weight": moved,
        "mlp.gate_proj.weight": np.zeros((64, _HIDDEN_SIZE), np.float32),
        "mlp.up_proj.weight": np.zeros((64, _HIDDEN_SIZE), np.float32),
        "mlp.down_proj.weight": np.zeros((_HIDDEN_SIZE, 64), np.float32),
    }
    return {
        "model.embed_tokens.weight": one_hot,
        **{f"model.layers.0.{name}": tensor for name, tensor in layer.items()},
        "model.norm.weight": ones.copy(),
        "lm_head.weight": read,
    }


def _agreeing(distance: int) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """Return a query and a key of one head whose product is largest where they are `distance` positions apart.

    Rotary embedding turns each pair of dimensions (i, i + 32) by its own angle per position. A query that is turned
    back by `distance` of these angles is, at that distance, where the key is in every pair.
    """
    half = _HEAD_SIZE // 2
    angles = -distance * _ROPE_BASE ** (-np.arange(half) / half)
    query = _SHARPNESS * np.concatenate([np.cos(angles), np.sin(angles)])
    key = _SHARPNESS * np.concatenate([np.ones(half), np.zeros(half)])
    return query.astype(np.float32), key.astype(np.float32)


def main(folder: Annotated[Path, typer.Argument(help="Where the checkpoint is written.")]) -> None:
    """Make a model that says what its chat template decides."""
    typer.echo(f"made {make_puppet(folder)}")


if __name__ == "__main__":
    typer.run(main)
