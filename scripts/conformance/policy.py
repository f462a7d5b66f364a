"""The rules of a scheduling policy: `order` and `victim` are pure, and decide."""

from __future__ import annotations

import copy
import itertools
import math
import random
from collections.abc import Sequence
from typing import Any

from pageant.actors.scheduler.request import ScheduledRequest
from pageant.protocol.arrays import int32
from pageant.protocol.sampling import SamplingParams
from pageant.scripts.conformance.rules import BrokenRule, Rules
from pageant.scripts.conformance.scheduler import check_with_policy

MADE = "it is made without arguments"
METHODS = "it has the methods order and victim"
NUMBERS = "order returns a tuple of numbers, without NaN"
LENGTH = "order returns tuples of one length, so that any two can be compared"
PURE_ORDER = "order returns the same for the same request, and changes nothing of it"
CHOICE = "victim returns one of the requests that it is given"
PURE_VICTIM = "victim chooses the same from the same requests, and changes nothing of them"
SERVES = "with it, a scheduler whose memory is short ends every request with the right tokens"


def check_policy(cls: type[Any]) -> tuple[str, ...]:
    """Puts a scheduling policy on trial; returns the rules that it kept.

    Raises:
        BrokenRule: names the rule, and what happened.
    """
    rules = Rules()
    try:
        policy = cls()
    except TypeError as error:
        raise BrokenRule(MADE, str(error)) from error
    rules.must(MADE, True)
    missing = [name for name in ("order", "victim") if not callable(getattr(policy, name, None))]
    rules.must(METHODS, not missing, f"it has no {' and no '.join(missing)}")
    requests = _requests()
    keys = [_check_order(policy, request, rules) for request in requests]
    lengths = {len(key) for key in keys}
    rules.must(LENGTH, len(lengths) == 1, f"there are tuples of {sorted(lengths)} entries")
    in_order = [request for _, request in sorted(zip(keys, requests, strict=True), key=_by_key)]
    for count in (1, 2, 3, len(in_order)):
        for start in range(0, len(in_order) - count + 1, 3):
            _check_victim(policy, in_order[start : start + count], rules)
    check_with_policy(cls, rules, SERVES)
    return rules.kept


def _by_key(entry: tuple[tuple[float, ...], ScheduledRequest]) -> Any:
    return entry[0], entry[1].serial


def _requests() -> list[ScheduledRequest]:
    """Requests of many kinds, as a scheduler may hold them."""
    chance = random.Random(0)
    kinds = itertools.product((1, 7, 300), (None, 1, 64), (0, 5))
    requests = []
    for serial, (length, max_tokens, generated) in enumerate(kinds, 1):
        requests.append(
            ScheduledRequest(
                request_id=f"request-{serial}",
                frontend="frontend",
                serial=serial,
                arrival=serial,
                prompt=int32([chance.randrange(100) for _ in range(length)]),
                params=SamplingParams(max_tokens=max_tokens),
                end_tokens=frozenset({2}),
                max_total=length + (max_tokens or 1000),
                output=[chance.randrange(100) for _ in range(generated)],
            )
        )
    return requests


def _state(request: ScheduledRequest) -> tuple[Any, ...]:
    """Return everything of a request, so that two moments can be compared."""
    fields = {name: getattr(request, name) for name in ScheduledRequest.__slots__}
    fields["prompt"] = request.prompt.tobytes()
    return tuple(copy.deepcopy(value) for value in fields.values())


def _check_order(policy: Any, request: ScheduledRequest, rules: Rules) -> tuple[float, ...]:
    before = _state(request)
    key: tuple[float, ...] = policy.order(request)
    numbers = isinstance(key, tuple) and all(
        isinstance(entry, int | float) and not math.isnan(entry) for entry in key
    )
    rules.must(NUMBERS, numbers, f"it returned {key!r}")
    again = [policy.order(request) for _ in range(3)]
    rules.must(PURE_ORDER, all(other == key for other in again), f"it returned {key!r}, then {again!r}")
    rules.must(PURE_ORDER, _state(request) == before, "it changed the request")
    return key


def _check_victim(policy: Any, running: Sequence[ScheduledRequest], rules: Rules) -> None:
    given, before = list(running), [_state(request) for request in running]
    victim = policy.victim(given)
    rules.must(CHOICE, any(victim is one for one in running), f"it returned {victim!r}")
    again = [policy.victim(list(running)) for _ in range(3)]
    rules.must(PURE_VICTIM, all(other is victim for other in again), "it chose another one the next time")
    unchanged = given == list(running) and [_state(request) for request in running] == before
    rules.must(PURE_VICTIM, unchanged, "it changed what it was given")
