"""Turns the reStructuredText remains in CPython's documentation into plain English sentences."""

import re

_PLAIN = str.maketrans(
    {"’": "'", "‘": "'", "“": '"', "”": '"', "–": "-", "—": "-", "…": "...", "\u00a0": " "}
)

_MARKUP = (
    (re.compile(r"(?<=\w)-\n\s*(?=\w)"), "-"),  # a word broken at its hyphen
    (re.compile(r":[a-z:]+:`~?([^`<]+?)(?:\s*<[^>]*>)?`"), r'"\1"'),  # :func:`len`
    (re.compile(r"``([^`]+)``"), r'"\1"'),  # ``literal``
    (re.compile(r"`([^`']+)[`']"), r'"\1"'),  # `name' and `name`
    (re.compile(r"(?<![\w*])\*\*?(\w[^*]{0,200}?)\*\*?(?![\w*])"), r"\1"),  # *emphasis*
    (re.compile(r"\s*\[\d+\]"), ""),  # footnote marks
    (re.compile(r"\s*\((?:[Ss]ee|described in)\b[^()]*(?:\([^()]*\)[^()]*)*\)"), ""),  # (see section ...)
    (re.compile(r"\s*,? *see section [A-Z][\w ]*(?=[.,])"), ""),
    (re.compile(r"::(?=\s|$)"), ":"),
    (re.compile(r"\s+"), " "),
)

_ABBREVIATIONS = ("e.g.", "i.e.", "etc.", "vs.", "cf.", "viz.", "Mr.", "no.")
_ANNOUNCEMENT = re.compile(
    r"\b(follow\w*|below|syntax|example|equivalent to|like this)[^:]*:$", re.IGNORECASE
)
_SENTENCE_END = re.compile(r"(?<=[.!?])[\"')]*\s+(?=[\"'(]?[A-Z_]|\"[a-z]|[a-z]+\()")

_NOT_A_START = " =+|-.>$#0123456789"
_CODE_MARKS = ("::=", ">>>", "->", "+--", "===", "---")


def plain(text: str) -> str:
    """Returns the text on one line, in ASCII punctuation, without inline markup."""
    text = text.translate(_PLAIN)
    for pattern, replacement in _MARKUP:
        text = pattern.sub(replacement, text)
    return text.strip()


def paragraphs(text: str) -> list[str]:
    """Returns the blocks that blank lines separate, indentation kept."""
    return [
        block.rstrip() for block in re.split(r"\n[ \t]*\n", text.expandtabs().strip("\n")) if block.strip()
    ]


def is_prose(block: str) -> bool:
    """Tells a paragraph of English from code, grammar, headings, tables and signatures."""
    lines = block.splitlines()
    if block[0] in _NOT_A_START or block.startswith("* ") or any(mark in block for mark in _CODE_MARKS):
        return False
    if any(line.startswith("  ") for line in lines) or len(block.split()) < 3:
        return False
    letters = sum(character.isalpha() or character.isspace() for character in block)
    return letters > 0.7 * len(block)


def sentences(text: str) -> list[str]:
    """Splits plain text into sentences; abbreviations do not end one."""
    found: list[str] = []
    start = 0
    for match in _SENTENCE_END.finditer(text):
        if text[: match.start()].endswith(_ABBREVIATIONS):
            continue
        found.append(text[start : match.end()].strip())
        start = match.end()
    return [*found, text[start:].strip()] if text[start:].strip() else found


def excerpt(pieces: list[str], chars_max: int) -> str:
    """Joins whole sentences while they fit. Those that announce an example or a list are left out."""
    kept: list[str] = []
    for piece in pieces:
        sentence = re.sub(r",? (for example|e\.g\.):$", ".", piece)
        if _ANNOUNCEMENT.search(sentence) or sentence[-1] not in ".!?:)\"'" or "See section" in sentence:
            continue
        sentence = re.sub(r":$", ".", sentence)
        if len(" ".join([*kept, sentence])) > chars_max:
            break
        kept.append(sentence)
    return " ".join(kept)
