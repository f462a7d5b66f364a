"""The conversations follow from the epoch's number, and their answers are clean English."""

import re

from pageant.scripts.demo_model.dialogues import Conversation, Turn, conversations
from pageant.scripts.demo_model.names import names
from pageant.scripts.demo_model.topics import answers


def test_an_epoch_is_the_same_each_time_and_unlike_the_next() -> None:
    assert conversations(3) == conversations(3)
    assert conversations(3) != conversations(4)


def test_there_are_enough_subjects() -> None:
    assert len(answers()) >= 100
    assert len(names()) >= 600


def test_the_names_of_topics_are_not_shared() -> None:
    called = [name for topic, _ in answers() for name in topic.names]
    assert len(called) == len(set(called))


def test_answers_are_short_whole_sentences_without_markup() -> None:
    for answer in [answer for _, answer in answers()] + [name.answer for name in names()]:
        assert 20 <= len(answer) <= 360, answer
        assert answer[-1] in ".!?)\"'", answer
        assert not re.search(r"::|``|:\w+:`|====|\*\*\*\*|>>>|\n", answer), answer


def test_only_answers_are_learnt() -> None:
    conversation = Conversation((Turn("What is it?", "A thing."),), system="Be brief.")
    assert "".join(text for text, _ in conversation.segments()) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n"
        "<|im_start|>user\nWhat is it?<|im_end|>\n"
        "<|im_start|>assistant\nA thing.<|im_end|>\n"
    )
    assert [text for text, learnt in conversation.segments() if learnt] == ["A thing.<|im_end|>"]
