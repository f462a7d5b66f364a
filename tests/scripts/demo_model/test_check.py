"""The packaged model is small, complete, and answers about the right topic."""

import json
from collections.abc import Callable

import pytest
from transformers import AutoConfig, AutoTokenizer

from pageant.scripts.demo_model.check import ON_TOPIC_MIN, Verdict, check, transformers_answer
from pageant.scripts.demo_model.dialogues import Conversation, Turn
from pageant.scripts.engine_options import DEMO_MODEL
from pageant.scripts.samples.questions import QUESTIONS, on_topic

BYTES_MAX = 12_000_000
FILES = (
    "README.md",
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
)


@pytest.fixture(scope="module")
def answer() -> Callable[[str], str]:
    return transformers_answer()


@pytest.fixture(scope="module")
def verdicts(answer: Callable[[str], str]) -> list[Verdict]:
    return check(answer)


def test_the_folder_is_complete_and_small() -> None:
    files = sorted(path for path in DEMO_MODEL.iterdir() if path.is_file())
    assert [path.name for path in files] == sorted(FILES)
    assert sum(path.stat().st_size for path in files) <= BYTES_MAX


def test_an_answer_ends_with_the_end_of_a_turn() -> None:
    tokenizer = AutoTokenizer.from_pretrained(DEMO_MODEL)
    assert tokenizer.eos_token == "<|im_end|>"
    assert AutoConfig.from_pretrained(DEMO_MODEL).eos_token_id == tokenizer.eos_token_id
    generation = json.loads((DEMO_MODEL / "generation_config.json").read_text())
    assert tokenizer.eos_token_id in generation["eos_token_id"]


def test_the_chat_template_is_the_form_of_the_training_text() -> None:
    tokenizer = AutoTokenizer.from_pretrained(DEMO_MODEL)
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "What is it?"},
        {"role": "assistant", "content": "A thing."},
    ]
    conversation = Conversation((Turn("What is it?", "A thing."),), system="Be brief.")
    rendered = tokenizer.apply_chat_template(messages, tokenize=False)
    assert rendered == "".join(text for text, _ in conversation.segments())
    prompted = tokenizer.apply_chat_template(messages[:2], tokenize=False, add_generation_prompt=True)
    assert prompted.endswith("<|im_start|>assistant\n")
    assert rendered.startswith(prompted)


def test_enough_answers_are_on_topic(verdicts: list[Verdict]) -> None:
    off_topic = [(verdict.question, verdict.answer) for verdict in verdicts if not verdict.on_topic]
    assert len(verdicts) == 20
    assert len(verdicts) - len(off_topic) >= ON_TOPIC_MIN, off_topic


def test_answers_exchanged_between_questions_are_refused(verdicts: list[Verdict]) -> None:
    rotations = range(1, len(QUESTIONS))
    accepted = sum(
        on_topic(question, verdicts[(place + rotation) % len(verdicts)].answer)
        for rotation in rotations
        for place, question in enumerate(QUESTIONS)
    )
    assert accepted <= len(QUESTIONS) * len(rotations) // 50


def test_the_readme_example_is_answered(answer: Callable[[str], str]) -> None:
    assert "context manager" in answer("Explain the with statement")
