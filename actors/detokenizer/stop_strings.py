"""Stop strings, found as the text comes, in whatever tokens.

An automaton (Aho and Corasick 1975) reads each character once. Its state is also the longest end of the text
that could still become a stop string, which is held back.
"""

from collections import deque


class StopAutomaton:
    """Aho-Corasick automaton over a request's stop strings. States are numbered; 0 is "nothing matched so far"."""

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._next: list[dict[str, int]] = [{}]
        # By state, the longest stop string that ends in it, or None.
        self._stop: list[str | None] = [None]
        depth = [0]
        for stop in stops:
            state = 0
            for char in stop:
                state = self._child(state, char, depth)
            self._stop[state] = stop
        self._fallback = [0] * len(depth)
        self.num_held = depth
        """By state, the length of the longest end of the text that is a true beginning of a stop string."""
        self._link()
        self.num_held_max = max(map(len, stops)) - 1
        self._first_chars = frozenset(self._next[0])

    def read(self, state: int, text: str, *, until_match: bool) -> tuple[int, int, str | None]:
        """Return the state after `text`; or at the first match, with its end in `text` and the stop string."""
        if state == 0 and self._first_chars.isdisjoint(text):
            return 0, 0, None
        following, fallback = self._next, self._fallback
        for index, char in enumerate(text):
            while state and char not in following[state]:
                state = fallback[state]
            state = following[state].get(char, 0)
            if until_match and (stop := self._stop[state]) is not None:
                return state, index + 1, stop
        return state, 0, None

    def _child(self, state: int, char: str, depth: list[int]) -> int:
        if char not in self._next[state]:
            self._next[state][char] = len(depth)
            self._next.append({})
            self._stop.append(None)
            depth.append(depth[state] + 1)
        return self._next[state][char]

    def _link(self) -> None:
        """Compute, breadth first, the state to fall back to when the next character does not fit."""
        queue = deque([0])
        while queue:
            state = queue.popleft()
            for char, child in self._next[state].items():
                self._fallback[child] = self._longest_suffix(state, char)
                queue.append(child)
            if not state:
                continue
            suffix = self._fallback[state]
            self._stop[state] = self._stop[state] or self._stop[suffix]
            # A complete stop string that did not count is no longer the beginning of one.
            if not self._next[state]:
                self.num_held[state] = self.num_held[suffix]

    def _longest_suffix(self, parent: int, char: str) -> int:
        state = parent
        while state:
            state = self._fallback[state]
            if char in self._next[state]:
                return self._next[state][char]
        return 0
