"""Embeddings as clients send them over HTTP: safetensors in base64, and nothing else."""

from __future__ import annotations

import base64
import io
import pickle

import numpy as np
import pytest
import torch
from safetensors.torch import save

from pageant.actors.frontend.embeds import decode_embeds
from pageant.protocol.errors import BadRequest

ROWS = torch.randn(3, 8)


def encoded(data):
    return base64.b64encode(data).decode()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_a_tensor_comes_back_as_it_was_sent(dtype):
    rows = ROWS.to(dtype)
    found = decode_embeds(encoded(save({"anything": rows})))
    assert found.dtype == np.float32 and (torch.from_numpy(found) == rows.float()).all()


class Harm:
    def __reduce__(self):
        return (pytest.fail, ("it was unpickled",))


def saved():
    file = io.BytesIO()
    torch.save(ROWS, file)
    return file.getvalue()


GOOD = save({"a": ROWS})
WRONG = {
    "no base64": "!!!",
    "no base64 of text": "äöü",
    "torch.save": encoded(saved()),
    "pickle": encoded(pickle.dumps(Harm())),
    "nothing": "",
    "noise": encoded(bytes(range(256))),
    "cut short": encoded(GOOD[:-4]),
    "more than it says": encoded(GOOD + b"1234"),
    "a header that is larger than memory": encoded(b"\xff" * 7 + b"\x7f" + GOOD[8:]),
    "two tensors": encoded(save({"a": ROWS, "b": ROWS.clone()})),
    "integers": encoded(save({"a": torch.zeros(3, 8, dtype=torch.int64)})),
    "doubles": encoded(save({"a": ROWS.double()})),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_no_tensor_of_floats_is_refused(name):
    with pytest.raises(BadRequest) as refused:
        decode_embeds(WRONG[name])
    assert refused.value.parameter == "prompt_embeds" and str(refused.value).startswith("prompt_embeds ")
    if name in ("torch.save", "pickle"):
        assert "pickle" in str(refused.value)
