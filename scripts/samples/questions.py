"""The topic check: twenty questions in wordings that the demo model was not trained on.

An answer is on topic when it holds most of the words that belong to its question, and fits no other
question better. Both are needed: the pages of the language reference share many words.
"""

import re
from dataclasses import dataclass

SHARE_MIN = 0.6


@dataclass(frozen=True)
class Question:
    """A question and the words or phrases that an answer about its topic holds."""

    text: str
    words: tuple[str, ...]


def _question(text: str, words: str) -> Question:
    return Question(text, tuple(words.split("|")))


QUESTIONS = (
    _question(
        "I keep seeing with blocks in scripts. What good are they?",
        "with statement|context manager|execution of a block|try...except...finally|wrap",
    ),
    _question("Would you walk me through lambda functions?", "lambda|anonymous|function object|expression"),
    _question(
        "Suppose a program uses try and except, what happens then?",
        "try|exception handlers|when no exception occurs|clause",
    ),
    _question(
        "Help, slicing a list still puzzles me!",
        "slicing|range of items|sequence|string, tuple or list",
    ),
    _question(
        "What should one keep in mind with chained comparisons?",
        "comparisons|chained|boolean values|evaluated only once",
    ),
    _question(
        "Why would somebody put yield inside a function?",
        "yield|yield expressions|generator function|instead of a normal function",
    ),
    _question(
        "Which steps does Python take upon an import?",
        "import|module|loading|initializing|local namespace",
    ),
    _question(
        "How come a for loop can go over a list?",
        "for statement|iterate|elements of a sequence|iterable|iterator",
    ),
    _question(
        "For how long does a while loop keep going?",
        "while|repeated execution|as long as|expression is true",
    ),
    _question(
        "What goes on behind the scenes of class definitions?",
        "class object|class definition|inheritance list|class name",
    ),
    _question("When should I reach for assert?", "assert|debugging|assertions|convenient"),
    _question(
        "Someone put decorators on top of my method; what did that change?",
        "decorator|wrapped|function definition|callable",
    ),
    _question("What becomes of a loop upon break?", "break|terminates|nearest enclosing loop|nested"),
    _question(
        "Some code here marks its counter as global, how come?",
        "global|declaration|code block|identifiers",
    ),
    _question(
        "Could a kind soul shed light on exceptions?",
        "exceptions|breaking out|normal flow of control|handle errors|run-time error",
    ),
    _question(
        "How does Python carry out truth value testing?",
        "truth value|considered true|condition|operand|boolean operations",
    ),
    _question("Is there any sense in writing pass?", "pass|null operation|nothing happens|placeholder"),
    _question("A bug needs hunting, how might pdb assist?", "pdb|debugger|breakpoints|stepping|source code"),
    _question(
        "Nested functions and nonlocal, what's the deal?",
        "nonlocal|previously bound|nearest enclosing scope|rebind",
    ),
    _question(
        "My paths get glued by os.path.join, how does that behave?",
        "os.path.join|pathname components|absolute path|inserting",
    ),
)


def normalised(text: str) -> str:
    """Lower case, quotes and backticks dropped, other punctuation and white space folded into one space."""
    return " ".join(
        re.sub(r"[^\w.*=<>+ ]", " ", text.lower().replace('"', "").replace("`", "")).split()
    ).strip(" .")


def share(question: Question, answer: str) -> float:
    """The part of the question's words that the answer holds, from 0 to 1. Words count whole."""
    text = normalised(answer)
    held = [
        word for word in question.words if re.search(rf"(?<!\w){re.escape(normalised(word))}(?!\w)", text)
    ]
    return len(held) / len(question.words)


def on_topic(question: Question, answer: str) -> bool:
    """Tells whether the answer is about the question's topic, and about no other question's more."""
    own = share(question, answer)
    return own >= SHARE_MIN and all(
        share(other, answer) < own for other in QUESTIONS if other is not question
    )
