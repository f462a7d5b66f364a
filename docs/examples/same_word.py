"""A drafter that expects what followed the last token the last time that it came."""

from __future__ import annotations

from pageant.protocol.arrays import Int32Vector, Int64Vector, int32
from pageant.protocol.drafting import Speculation


class SameWord:
    """Keeps what followed each token last, of each sequence."""

    def __init__(self, settings: Speculation) -> None:
        self.last: dict[int, int] = {}
        self.followers: dict[int, dict[int, int]] = {}

    def open(self, serial: int, token_ids: Int32Vector) -> None:
        """Begin with a sequence's tokens, [N]."""
        self.followers[serial] = dict(zip(token_ids[:-1].tolist(), token_ids[1:].tolist(), strict=True))
        self.last[serial] = int(token_ids[-1])

    def close(self, serial: int) -> None:
        del self.last[serial], self.followers[serial]

    def propose(
        self, serials: Int64Vector, counts: Int32Vector, token_ids: Int32Vector, wanted: Int32Vector
    ) -> tuple[Int32Vector, Int32Vector]:
        """Return how many drafts each of R sequences has, [R], and the drafts of all, [N]. See `Drafter.propose`."""
        new, lengths, drafts = iter(token_ids.tolist()), [], []
        for serial, count, most in zip(serials.tolist(), counts.tolist(), wanted.tolist(), strict=True):
            followers, token = self.followers[serial], self.last[serial]
            for _ in range(count):
                followers[token] = token = next(new)
            self.last[serial], before = token, len(drafts)
            while len(drafts) - before < most and (token := followers.get(token, -1)) >= 0:
                drafts.append(token)
            lengths.append(len(drafts) - before)
        return int32(lengths), int32(drafts)
