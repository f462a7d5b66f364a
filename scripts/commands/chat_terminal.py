"""Terminal side of `pageant chat`: lines with editing and history, answers with whole words and colours."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from pathlib import Path
from typing import Any, TextIO

HISTORY_MAX = 1000
USER, DIM, RESET = "\x1b[1;36m", "\x1b[2m", "\x1b[0m"
CTRL_C = "(Ctrl-C again, or Ctrl-D, ends the session)"


class Lines:
    """Reads the user's messages: with editing, history and pasted lines on a terminal, else line by line."""

    def __init__(self, colours: bool) -> None:
        self._interactive = sys.stdin.isatty()
        self._colours = colours and self._interactive
        self._readline: Any = None
        if self._interactive and sys.stdout.isatty() and os.environ.get("TERM") != "dumb":
            self._readline = _load_readline()

    def read(self) -> str | None:
        """Return the next message, or None at the end: Ctrl-D, or Ctrl-C twice in a row.

        A line that ends in a backslash goes on in the next one. Pasted lines are one message.
        """
        interrupts = 0
        parts: list[str] = []
        while True:
            try:
                line = input(self._prompt(bool(parts)))
            except EOFError:
                return None
            except KeyboardInterrupt:
                self._end_colour()
                interrupts, parts = interrupts + 1, []
                print(file=sys.stderr)
                if interrupts > 1:
                    return None
                print(CTRL_C, file=sys.stderr)
                continue
            self._end_colour()
            if self._interactive and line.endswith("\\"):
                parts.append(line[:-1])
                continue
            return "\n".join([*parts, line])

    def close(self) -> None:
        """Keep the history for the next session."""
        if self._readline is not None:
            with contextlib.suppress(OSError):  # a home that cannot be written to has no history
                self._readline.set_history_length(HISTORY_MAX)
                self._readline.write_history_file(_history_file())

    def _prompt(self, goes_on: bool) -> str:
        if not self._interactive:
            return ""
        text = ". " if goes_on else "> "
        # The marks tell readline which characters take no room.
        return f"\001{USER}\002{text}" if self._colours and self._readline else text

    def _end_colour(self) -> None:
        if self._colours and self._readline:
            print(RESET, end="", flush=True)


def _load_readline() -> Any:
    """Python's own line editor where it was built with one."""
    try:
        import readline
    except ImportError:
        return None
    readline.parse_and_bind("set enable-bracketed-paste on")
    with contextlib.suppress(OSError):  # the first session has no history
        readline.read_history_file(_history_file())
    return readline


def _history_file() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    path = Path(home) / "pageant" / "chat_history"
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


class Words:
    """Writes a streamed text; on a terminal a word that does not fit goes to the next line whole.

    Args:
        width: columns of the terminal; None writes the text as it comes.
    """

    def __init__(self, out: TextIO, width: int | None) -> None:
        self._out, self._width = out, width
        self._column = 0
        self._word = ""

    def write(self, text: str) -> None:
        """Take in the next piece of the text. The last word waits for its end."""
        if self._width is None:
            self._out.write(text)
        else:
            for character in text:
                self._take(character)
        self._out.flush()

    def end(self) -> None:
        """Write what waits, and end the line."""
        self._put_word()
        self._out.write("\n")
        self._out.flush()
        self._column = 0

    def _take(self, character: str) -> None:
        if not character.isspace():
            self._word += character
            return
        self._put_word()
        if character == "\n":
            self._column = 0
        elif self._width is not None and self._column + 1 >= self._width:
            character, self._column = "\n", 0
        else:
            self._column += 1
        self._out.write(character)

    def _put_word(self) -> None:
        if self._width is not None and self._column and self._column + len(self._word) > self._width:
            self._out.write("\n")
            self._column = 0
        self._out.write(self._word)
        self._column += len(self._word)
        if self._width is not None and self._column > self._width:
            self._column %= self._width  # a word that is longer than a line is broken by the terminal
        self._word = ""


def words() -> Words:
    """A writer to standard output that fits the terminal, if there is one."""
    return Words(sys.stdout, shutil.get_terminal_size().columns if sys.stdout.isatty() else None)


def has_colours() -> bool:
    """Tell whether the terminal shows colours, and the user has not turned them off."""
    return sys.stdout.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"


def remark(text: str, colours: bool) -> None:
    """Print a line of the program's own, apart from the model's words."""
    print(f"{DIM}{text}{RESET}" if colours else text, file=sys.stderr, flush=True)
