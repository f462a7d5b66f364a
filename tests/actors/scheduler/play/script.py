"""A seeded crowd of users, operators and accidents for a play."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from typing import Any

from pageant.actors.scheduler.request import State
from pageant.protocol.lifecycle import PauseMode
from pageant.protocol.sampling import RequestOutputKind
from tests.actors.scheduler.play.invariants import in_last_step
from tests.actors.scheduler.play.play import Play
from tests.actors.scheduler.play.setting import CAST, EXECUTOR, FRONTENDS, SCHEDULER, VOCABULARY, Setting
from tests.actors.scheduler.play.shadow_model import letter


class Script:
    """Users, operators and accidents at random moments of a play, drawn from a seed."""

    def __init__(self, seed: int, setting: Setting, *, hostile: bool, operated: bool = False) -> None:
        self.play = Play(seed, setting)
        self.random = random.Random(seed + 1)
        self.hostile, self.operated = hostile, operated
        self.documents = [self._tokens(setting.max_model_len - 8) for _ in range(4)]

    def _tokens(self, count: int) -> list[int]:
        return [self.random.randrange(VOCABULARY) for _ in range(count)]

    def submit(self) -> None:
        chance = self.random.random
        longest = self.play.setting.max_model_len
        prompt = self.random.choice(self.documents)[: self.random.randint(0, longest - 8)]
        prompt = prompt + self._tokens(self.random.randint(1, 6))
        if chance() < 0.01:
            prompt = self._tokens(self.random.choice([0, longest, longest + 3]))
        max_tokens = self.random.choice([1, 2, 5, 12, 24, None])
        final = self.play.setting.share_final and chance() < self.play.setting.share_final
        least = self.random.randint(0, min(6, max_tokens or 6)) if chance() < 0.2 else 0
        self.play.submit(
            prompt,
            self.random.choice(FRONTENDS),
            tenant=self.random.choice(["", "one", "another"]),
            priority=self.random.randint(-2, 2),
            max_tokens=max_tokens,
            min_tokens=least,
            ignore_eos=chance() < 0.5,
            stop_token_ids=(3, 9) if chance() < 0.15 else (),
            stop=tuple(map(letter, self.random.sample(range(VOCABULARY), 3))) if chance() < 0.3 else (),
            output_kind=RequestOutputKind.FINAL_ONLY if final else RequestOutputKind.CUMULATIVE,
            frequency_penalty=0.5
            if final and chance() < 0.1
            else 0.0,  # which the model here does not look at
        )

    def abort(self) -> None:
        """Abort a request of a random kind, so that each kind is met often."""
        play = self.play
        if SCHEDULER not in play.cells:
            return
        kinds: dict[Any, list[Any]] = defaultdict(list)
        for request in play.core.requests:
            decoding = not play.core.requests.running.is_prefilling(request)
            last = in_last_step(play.core, request)
            kinds[(request.state, bool(request.num_preemptions), decoding, last)].append(request)
        if not kinds:
            return
        rare = [kind for kind in kinds if kind[3]]
        rare = rare or [kind for kind in kinds if kind[1] and kind[0] is State.WAITING]
        kind = self.random.choice(rare if rare and self.random.random() < 0.7 else list(kinds))
        chosen = self.random.choice(kinds[kind])
        play.abort(play.requests[(chosen.frontend, chosen.request_id)])
        channel = (chosen.frontend, SCHEDULER)
        if self.random.random() < 0.8:
            while play.channels[channel]:
                play.deliver(channel)

    def operate(self) -> None:
        """Let an operator pause, resume, or reset caches."""
        modes: tuple[PauseMode, ...] = ("keep", "wait", "wait", "abort")  # a wait is seldom over in time
        match self.random.choice(("pause", "resume", "resume", "reset")):
            case "pause":
                self.play.pause(self.random.choice(modes), release=self.random.random() < 0.5)
            case "resume":
                self.play.pause(None)
            case _:
                self.play.reset_prefixes()

    def accident(self) -> None:
        play = self.play
        dead = [name for name in (*CAST, *FRONTENDS) if name not in play.cells]
        if dead and self.random.random() < 0.7:
            play.start(self.random.choice(dead))
        elif self.random.random() < 0.15:
            play.kill(self.random.choice((*CAST, *CAST, *FRONTENDS)))

    def run(self, num_requests: int) -> Counter[str]:
        """Play until `num_requests` requests have come and ended; return counts of what happened."""
        play, chance = self.play, self.random.random
        while len(play.requests) < num_requests:
            num_open = sum(not request.ended for request in list(play.requests.values())[-60:])
            if chance() < (0.05 if num_open < 12 else 0.005):
                for _ in range(self.random.randint(1, 4)):
                    self.submit()
            if chance() < 0.03:
                self.abort()
            if self.hostile and chance() < 0.01:
                self.accident()
            if self.operated and chance() < 0.01:
                self.operate()
            if not play.deliver():
                self.submit()
                if self.hostile:
                    play.revive()
        play.revive()
        play.pause(None)
        play.drain()
        play.invariants.at_rest()
        play._collect_counters(SCHEDULER)
        play._collect_counters(EXECUTOR)
        return play.seen
