"""Answers of the demo model about each of its topics: sentences picked from the language reference."""

from collections import defaultdict

from pageant.scripts.demo_model.cleaning import excerpt
from pageant.scripts.demo_model.corpus import sections
from pageant.scripts.demo_model.topic_list import TOPICS, Topic

ANSWER_CHARS_MAX = 320


def answers() -> list[tuple[Topic, str]]:
    """Each topic with its answer, in the order above; topics that this Python's text lacks are left out."""
    pages: dict[str, list[str]] = defaultdict(list)
    for section in sections():
        pages[section.topic] += section.sentences()
        pages[f"{section.topic}/{section.title}"] += section.sentences()
    found = [(topic, _answer(topic, pages)) for topic in TOPICS]
    return [(topic, answer) for topic, answer in found if answer]


def _answer(topic: Topic, pages: dict[str, list[str]]) -> str:
    """The sentences that the topic picks, or else the first of its section that fit."""
    everything = pages.get(topic.page.partition("#")[0], [])
    picked = [picked for pick in topic.picks if (picked := _pick(pick, everything))]
    return excerpt(picked or everything, ANSWER_CHARS_MAX)


def _pick(pick: str, everything: list[str]) -> str | None:
    """The first sentence that begins as asked; "It is => The X is" gives a beginning that stands alone."""
    beginning, _, replacement = pick.partition(" => ")
    for sentence in everything:
        if sentence.startswith(beginning):
            sentence = (replacement or beginning) + sentence.removeprefix(beginning)
            return sentence + ("." if sentence[-1].isalnum() else "")
    return None
