"""The rules of a drafter: drafts that fit what was asked, from a sequence's own tokens alone."""

from __future__ import annotations

import random
from typing import Any

import numpy as np

from pageant.protocol.arrays import int32, int64
from pageant.protocol.drafting import Speculation
from pageant.scripts.conformance.rules import BrokenRule, Rules

MADE = "it is made with the settings of speculation"
METHODS = "it has the methods open, close and propose"
SHAPE = "propose returns how many drafts each sequence has, and all of them in one int32 array"
WANTED = "a sequence has at most as many drafts as were wanted, and none where none were"
ALONE = "a sequence's drafts depend on its own tokens, not on the others of the call or their order"
SPLIT = "the drafts are the same, however the tokens of a sequence were spread over calls"
FORGETS = "a closed sequence is forgotten: its number may be opened again with other tokens"

Proposal = dict[int, list[int]]
VOCABULARY = 7  # few tokens, so that sequences repeat themselves and there is something to guess


def check_drafter(cls: type[Any]) -> tuple[str, ...]:
    """Hold a drafter against the rules; return those that it kept.

    Raises:
        BrokenRule: names the rule, and what happened.
    """
    rules = Rules()
    _make(cls)
    rules.must(MADE, True)
    missing = [name for name in ("open", "close", "propose") if not callable(getattr(cls, name, None))]
    rules.must(METHODS, not missing, f"it has no {' and no '.join(missing)}")
    for seed in range(5):
        _check_together(cls, rules, random.Random(seed))
    _check_close(cls, rules)
    return rules.kept


def _make(cls: type[Any]) -> Any:
    try:
        return cls(Speculation(method="conformance:Drafter"))
    except TypeError as error:
        raise BrokenRule(MADE, str(error)) from error


def _draw(chance: random.Random, count: int) -> list[int]:
    return [chance.randrange(VOCABULARY) for _ in range(count)]


def _check_together(cls: type[Any], rules: Rules, chance: random.Random) -> None:
    """Several sequences in one call; then each by itself, with its tokens in one piece."""
    texts = {serial: _draw(chance, chance.randint(4, 40)) for serial in range(1, 6)}
    wanted = {serial: chance.randint(0, 4) for serial in texts}
    wanted[1] = 4
    cuts = {serial: chance.randint(1, len(tokens)) for serial, tokens in texts.items()}
    together = _make(cls)
    for serial, tokens in texts.items():
        together.open(serial, int32(tokens[: cuts[serial]]))
    order = list(texts)
    chance.shuffle(order)
    rest = {serial: texts[serial][cuts[serial] :] for serial in texts}
    found = _propose(together, {serial: rest[serial] for serial in order}, wanted, rules)
    for serial, tokens in texts.items():
        alone, whole = _make(cls), _make(cls)
        alone.open(serial, int32(tokens[: cuts[serial]]))
        only = _propose(alone, {serial: rest[serial]}, wanted, rules)
        rules.must(
            ALONE, only[serial] == found[serial], f"{found[serial]} beside others, {only[serial]} alone"
        )
        whole.open(serial, int32(tokens))
        at_once = _propose(whole, {serial: []}, wanted, rules)
        rules.must(SPLIT, at_once[serial] == only[serial], f"{only[serial]}, then {at_once[serial]}")


def _check_close(cls: type[Any], rules: Rules) -> None:
    used, fresh = _make(cls), _make(cls)
    used.open(1, int32([1, 2, 3, 1, 2, 3, 1, 2]))
    _propose(used, {1: []}, {1: 4}, rules)
    used.close(1)
    for drafter in (used, fresh):
        drafter.open(1, int32([1, 5, 6, 1, 5, 6, 1]))
    found, right = (_propose(drafter, {1: []}, {1: 4}, rules) for drafter in (used, fresh))
    rules.must(FORGETS, found == right, f"{found[1]} after another sequence, {right[1]} without")


def _propose(drafter: Any, new: dict[int, list[int]], wanted: dict[int, int], rules: Rules) -> Proposal:
    """One call, checked for its form; the drafts by serial."""
    tokens = int32([token for some in new.values() for token in some])
    most = [wanted[serial] for serial in new]
    answer = drafter.propose(
        int64(list(new)), int32([len(some) for some in new.values()]), tokens, int32(most)
    )
    is_pair = isinstance(answer, tuple) and len(answer) == 2
    rules.must(SHAPE, is_pair, f"it returned {answer!r:.200}")
    lengths, drafts = answer
    is_formed = all(isinstance(one, np.ndarray) and one.dtype == np.int32 and one.ndim == 1 for one in answer)
    rules.must(SHAPE, is_formed, f"it returned {answer!r:.200}")
    fits = len(lengths) == len(new) and int(lengths.sum()) == len(drafts)
    rules.must(SHAPE, fits, f"{len(new)} sequences, lengths {lengths.tolist()}, {len(drafts)} drafts")
    kept = all(0 <= length <= limit for length, limit in zip(lengths.tolist(), most, strict=True))
    rules.must(WANTED, kept, f"lengths {lengths.tolist()}; wanted {most}")
    parts = np.split(drafts, np.cumsum(lengths)[:-1])
    return {serial: part.tolist() for serial, part in zip(new, parts, strict=True)}
