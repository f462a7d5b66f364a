"""The topic check asks what was not trained, and refuses answers about something else."""

import re
from random import Random

import pytest

from pageant.scripts.demo_model.dialogues import questions
from pageant.scripts.demo_model.wordings import NAME_FRAMES, TOPIC_FRAMES
from pageant.scripts.samples.questions import QUESTIONS, Question, normalised, on_topic

_SUBJECT = r"\S+(?: \S+){0,4}"  # one to five words in a frame's slot

# Fitting answers, worded as the language reference has it.
FITTING = (
    'The "with" statement is used to wrap the execution of a block with methods of a context manager.',
    "Lambda expressions are used to create anonymous functions. It yields a function object.",
    'The "try" statement specifies exception handlers. When no exception occurs, none is run.',
    "A slicing selects a range of items in a sequence object (e.g., a string, tuple or list).",
    'Comparisons yield boolean values: "True" or "False". Comparisons can be chained arbitrarily.',
    "Yield expressions are only used when defining a generator function. Using yield makes one.",
    "The import statement finds a module, loading and initializing it if necessary.",
    'The "for" statement is used to iterate over the elements of a sequence or other iterable object.',
    'The "while" statement is used for repeated execution as long as an expression is true.',
    "A class definition defines a class object. The class name is bound to this class object.",
    "Assert statements are a convenient way to insert debugging assertions; assert checks an expression.",
    "A function definition may be wrapped by one or more decorator expressions. It must be a callable.",
    'The "break" statement terminates the nearest enclosing loop.',
    'The "global" statement is a declaration which holds for the entire current code block.',
    "Exceptions are a means of breaking out of the normal flow of control in order to handle errors.",
    'Any object can be tested for truth value, in an "if" condition or as operand of Boolean operations.',
    '"pass" is a null operation - when it is executed, nothing happens.',
    'The module "pdb" defines an interactive source code debugger. It supports breakpoints and stepping.',
    'The "nonlocal" statement refers to previously bound variables in the nearest enclosing scope.',
    "The os.path.join function: Join two or more pathname components. An absolute path discards the others.",
)


def test_no_training_question_equals_or_contains_a_check_question() -> None:
    asked = [normalised(question.text) for question in QUESTIONS]
    trained = "\n".join(sorted({normalised(question) for question in questions()}))
    assert trained.count("\n") > 50_000
    assert [text for text in asked if text in trained] == []


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: question.words[0])
def test_no_training_frame_fits_a_check_question(question: Question) -> None:
    for frame in (*TOPIC_FRAMES, *NAME_FRAMES):
        before, after = (re.escape(normalised(part)) for part in frame.split("{}"))
        if before or after:
            pattern = " ".join(part for part in (before, _SUBJECT, after) if part)
            assert not re.fullmatch(pattern, normalised(question.text)), frame


def test_fitting_answers_are_on_topic() -> None:
    assert [q.text for q, answer in zip(QUESTIONS, FITTING, strict=True) if not on_topic(q, answer)] == []


def test_the_answer_to_any_other_question_is_refused() -> None:
    accepted = [
        (question.text, answer)
        for asked, question in enumerate(QUESTIONS)
        for answered, answer in enumerate(FITTING)
        if asked != answered and on_topic(question, answer)
    ]
    assert accepted == []


def test_shuffled_answers_are_refused() -> None:
    random = Random(0)
    shuffled = random.sample(FITTING, len(FITTING))
    held = sum(on_topic(question, answer) for question, answer in zip(QUESTIONS, shuffled, strict=True))
    stayed = sum(answer == fitting for answer, fitting in zip(shuffled, FITTING, strict=True))
    assert held == stayed <= 2


def test_all_answers_at_once_are_refused() -> None:
    assert not any(on_topic(question, " ".join(FITTING)) for question in QUESTIONS)


def test_an_echo_of_the_question_is_refused() -> None:
    assert not any(on_topic(question, question.text) for question in QUESTIONS)
