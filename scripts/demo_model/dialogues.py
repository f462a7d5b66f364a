"""The conversations that the demo model is trained on: every topic and name, asked in many ways.

Everything follows from the epoch's number, so that a test can list every training question without training.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from random import Random

from pageant.scripts.demo_model.names import Name, names
from pageant.scripts.demo_model.smalltalk import SMALLTALK
from pageant.scripts.demo_model.topic_list import Topic
from pageant.scripts.demo_model.topics import answers
from pageant.scripts.demo_model.wordings import NAME_FRAMES, TOPIC_FRAMES, ask

EPOCHS_MAX = 60  # no training run goes through more epochs than that, and no check looks at fewer
ASKED_PER_TOPIC = 9  # how often an epoch asks about each topic; it asks once about each name
_SYSTEM_PROMPTS = (
    "You are a helpful assistant.",
    "You answer questions about Python.",
    "You are a friendly assistant that explains Python briefly.",
    "Answer in one or two sentences.",
)


@dataclass(frozen=True)
class Turn:
    """A question and its answer."""

    question: str
    answer: str


@dataclass(frozen=True)
class Conversation:
    """One or two turns, with a system prompt or without."""

    turns: tuple[Turn, ...]
    system: str | None = None

    def segments(self) -> Iterator[tuple[str, bool]]:
        """The text in the form of the chat template, in pieces; True marks what the model has to learn."""
        if self.system is not None:
            yield f"<|im_start|>system\n{self.system}<|im_end|>\n", False
        for turn in self.turns:
            yield f"<|im_start|>user\n{turn.question}<|im_end|>\n<|im_start|>assistant\n", False
            yield f"{turn.answer}<|im_end|>", True
            yield "\n", False


def conversations(epoch: int) -> list[Conversation]:
    """The conversations of one epoch, shuffled; each epoch words its questions anew."""
    random = Random(epoch)
    turns = list(_turns(random))
    random.shuffle(turns)
    found: list[Conversation] = []
    while turns:
        count = 2 if random.random() < 0.2 and len(turns) > 1 else 1
        system = random.choice(_SYSTEM_PROMPTS) if random.random() < 0.15 else None
        found.append(Conversation(tuple(turns.pop() for _ in range(count)), system))
    return found


def questions(epochs: int = EPOCHS_MAX) -> Iterator[str]:
    """Every question asked in the first epochs."""
    return (turn.question for epoch in range(epochs) for turn in _turns(Random(epoch)))


def _turns(random: Random) -> Iterator[Turn]:
    topics, looked_up = _subjects()
    for topic, answer in topics:
        for _ in range(ASKED_PER_TOPIC):
            yield Turn(ask(random, random.choice(topic.names), TOPIC_FRAMES), answer)
    for name in looked_up:
        yield Turn(ask(random, _called(random, name), NAME_FRAMES), name.answer)
    for question, answer in SMALLTALK:
        yield Turn(ask(random, question, ("{}",)), answer)


@cache
def _subjects() -> tuple[list[tuple[Topic, str]], list[Name]]:
    """The topics and names with their answers. A topic that shares its wording with a name goes first."""
    topics = answers()
    taken = {name for topic, _ in topics for name in topic.names}
    return topics, [name for name in names() if name.name not in taken]


def _called(random: Random, name: Name) -> str:
    """A name as people write it: bare, with parentheses, or with its kind."""
    chance = random.random()
    if chance < 0.25 and name.kind in ("function", "method"):
        return f"{name.name}()"
    if chance < 0.5 or (name.kind == "module" and chance < 0.75):
        return f"the {name.name} {name.kind}"
    owner, _, last = name.name.rpartition(".")
    if chance < 0.6 and owner:
        return f"{last} in {owner}"
    return name.name
