"""A detokenizer that hides long numbers, such as those of cards, in what users get.

cd docs/examples
pageant run --topology hidden_numbers.yaml --raw "Call 5551234"
pageant conformance detokenizer hidden_numbers:HiddenNumbers
"""

from __future__ import annotations

import re

from pageant.actors.detokenizer import Detokenizer
from pageant.protocol.outputs import OpenOutput

LONG = re.compile(r"\d{4,}")
GOING_ON = re.compile(r"\d+$")


class HiddenNumbers(Detokenizer):
    """Shows a number of four digits or more as #."""

    async def on_start(self) -> None:
        await super().on_start()
        self.held: dict[int, str] = {}  # by request: digits at the end of its text, which may go on

    def rewrite(self, request: OpenOutput, text: str, last: bool) -> str:
        text = self.held.pop(request.serial, "") + text
        if not last and (digits := GOING_ON.search(text)):
            self.held[request.serial], text = digits[0], text[: digits.start()]
        return LONG.sub("#", text)
