"""The language reference that every CPython carries (`pydoc_data.topics`), as plain English."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pydoc_data.topics import topics
from textwrap import dedent

from pageant.scripts.demo_model.cleaning import is_prose, paragraphs, plain, sentences

_HEADING = re.compile(r"^(?P<title>[^\n]+)\n(?P<line>[*=\-~^])(?P=line)+\s*$", re.MULTILINE)
_SIGNATURE = re.compile(r"^(?:class |coroutine |static )*(?P<name>[A-Za-z_][\w.]*)(?:\(.*\)|\[.*\])?$")


@dataclass(frozen=True)
class Section:
    """One heading of the language reference and the paragraphs of prose below it."""

    topic: str
    title: str
    prose: tuple[str, ...]

    def sentences(self) -> list[str]:
        """All sentences of the section, in order."""
        return [sentence for paragraph in self.prose for sentence in sentences(paragraph)]


@cache
def sections() -> tuple[Section, ...]:
    """Every section of every topic, in a fixed order. Sections that two topics share appear in both."""
    return tuple(section for topic in sorted(topics) for section in topic_sections(topic))


def topic_sections(topic: str) -> list[Section]:
    """The sections of one topic; the first one is the topic's own introduction."""
    text = topics[topic]
    headings = list(_HEADING.finditer(text))
    ends = [heading.start() for heading in headings[1:]] + [len(text)]
    return [
        Section(topic, plain(heading["title"]).replace('"', ""), tuple(_prose(text[heading.end() : end])))
        for heading, end in zip(headings, ends, strict=True)
    ]


def _prose(text: str) -> Iterator[str]:
    """The cleaned paragraphs of a stretch of a topic, definitions and code left out."""
    for block in paragraphs(text):
        block = re.sub(r"^(?:\* |\d+\. )\s*", "", block)
        block = re.sub(r"\n {2,3}(?=\S)", "\n", block)
        if is_prose(block) and not block.startswith(
            ("Changed in version", "New in version", "Note:", "See also")
        ):
            yield plain(block)


def definitions() -> dict[str, str]:
    """Return the meaning of each described name: `object.__len__` or `str.split` to the prose indented below it.

    The first description wins where topics repeat one.
    """
    found: dict[str, str] = {}
    for topic in sorted(topics):
        blocks = paragraphs(topics[topic])
        for position, block in enumerate(blocks[:-1]):
            match = _SIGNATURE.match(block.splitlines()[-1]) if not block.startswith(" ") else None
            if match and "." in match["name"] and match["name"] not in found:
                text = _indented_prose(blocks[position + 1 :])
                if text:
                    found[match["name"]] = text
    return found


def _indented_prose(blocks: list[str]) -> str:
    """The paragraphs of a definition: prose indented by three, up to the first that is not indented."""
    kept: list[str] = []
    for block in blocks:
        if not block.startswith("   "):
            break
        block = dedent(block)
        if is_prose(block) and not block.startswith(("Changed in version", "New in version", "Note:")):
            kept.append(plain(block))
    return " ".join(kept)
