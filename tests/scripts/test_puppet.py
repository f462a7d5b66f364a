"""The puppet says what its template decides: with transformers, which is the oracle of our own servers."""

from __future__ import annotations

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from pageant.scripts.puppet import make_puppet

CALL = """<tool_call>
{"name": "ls", "arguments": {"path": "."}}
</tool_call>"""


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    folder = make_puppet(tmp_path_factory.mktemp("models") / "puppet")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder)

    def said(*messages):
        ids = tokenizer.apply_chat_template(
            list(messages), add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        output = model.generate(**ids, max_new_tokens=100, do_sample=False)
        return tokenizer.decode(output[0, ids["input_ids"].shape[1] :])

    return said


USER = {"role": "user", "content": 'CALL:ls WITH:{"path": "."}:END'}


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ([{"role": "user", "content": "SAY:Hello.:END"}], "Hello."),
        ([{"role": "system", "content": "x" * 500}, USER], CALL),
        ([USER, {"role": "tool", "content": "a.txt"}], "The tool said: a.txt"),
        ([{"role": "user", "content": "THINK:hm:END SAY:Yes.:END"}], "<think>\nhm\n</think>\n\nYes."),
        ([{"role": "user", "content": "Hi"}], "You said: Hi"),
    ],
)
def test_it_says_its_script(said, messages, expected):
    assert said(*messages) == f"{expected}<|im_end|>"
