"""The shell: what goes to a frontend, and when."""

from __future__ import annotations

from types import SimpleNamespace

from pageant.actors.detokenizer.actor import Detokenizer
from pageant.actors.detokenizer.core import Detokenization
from pageant.protocol.arrays import int32, int64
from pageant.protocol.outputs import OpenOutput, TokenBatch
from pageant.protocol.serving import OutputBatch
from pageant.protocol.streams import Acknowledge
from pageant.protocol.supervision import ActorDown, ActorUp
from pageant.protocol.tracing import TraceContext

SERIAL = 5


class Letters:
    """A tokenizer whose tokens are letters."""

    special_ids = frozenset()
    decoder_spec = None

    def id_to_token(self, token_id):
        return chr(token_id)

    def decode(self, token_ids, *, skip_special_tokens=True):
        return "".join(map(chr, token_ids))


class Told:
    """A detokenizer that is told of one request's tokens, and what it says to the frontend."""

    def __init__(self):
        self.actor = Detokenizer(Detokenizer.Options(model=""))
        self.actor._detokenization = Detokenization(Letters())
        self.actor._token_texts = {}
        self.said = []
        self.actor._cell = SimpleNamespace(
            incarnation=1,
            sender="scheduler",
            sender_incarnation=1,
            node=SimpleNamespace(
                tell=lambda address, message, cell: self.said.append(message),
                watch=lambda address, cell: None,
                clock=SimpleNamespace(now=lambda: 0.0),
            ),
        )
        self.opened = OpenOutput(serial=SERIAL, request_id="r", frontend="f", prompt_tail=int32([65]))
        self.number = 0
        self.tokens((), opened=(self.opened,))

    def tokens(self, token_ids, *, opened=(), finished=None):
        """The next tokens, of one step; returns what was said to the frontend."""
        self.number += 1
        self.said.clear()
        self.actor.tokens(
            TokenBatch(
                number=self.number,
                opened=opened,
                serials=int64([SERIAL]),
                counts=int32([len(token_ids)]),
                token_ids=int32(token_ids),
                finished={} if finished is None else {0: finished},
                facts={},
            )
        )
        batches = [message for message in self.said if isinstance(message, OutputBatch)]
        self.actor._cell.sender = "f"
        for batch in batches:
            self.actor.acknowledged(Acknowledge(stream="outputs", up_to=batch.number))
        self.actor._cell.sender = "scheduler"
        return [
            (text, count)
            for batch in batches
            for text, count in zip(batch.texts, batch.counts.tolist(), strict=True)
            if count
        ]


def test_tokens_go_out_step_by_step():
    told = Told()
    assert [told.tokens([token]) for token in (97, 98, 99)] == [[("a", 1)], [("b", 1)], [("c", 1)]]


def test_a_new_scheduler_whose_first_batch_comes_late_begins_anew():
    told = Told()
    told.tokens([97])
    told.actor._cell.sender_incarnation, told.number = 2, 1
    assert told.tokens([99]) == [], "the first is missing"
    told.number = 0
    assert told.tokens([98], opened=(told.opened,)) == [("b", 1)]
    assert told.tokens([99]) == [("c", 1)]


def test_a_new_scheduler_that_has_nothing_to_say_leaves_nothing_of_the_former():
    told = Told()
    told.tokens([97])
    told.actor.peer_up(ActorUp(address="scheduler", incarnation=2))
    assert not told.actor._requests
    assert told.tokens([98], opened=(told.opened,)) == [], "the former's, late"
    assert not told.actor._requests
    told.actor._cell.sender_incarnation, told.number = 2, 0
    assert told.tokens([99], opened=(told.opened,)) == [("c", 1)]


def test_a_new_frontend_is_told_what_was_sent_before_the_end_of_the_former_was_known():
    told = Told()
    told.actor.acknowledged = lambda message: None
    told.tokens([97])
    told.said.clear()
    told.actor.peer_down(ActorDown(address="f", incarnation=1, reason="crashed", final=False))
    told.actor.peer_up(ActorUp(address="f", incarnation=2))
    (again,) = told.said
    assert isinstance(again, OutputBatch) and again.texts == ("a",) and again.start == again.number
    assert told.tokens([98]) == [("b", 1)], "the request is none of the former's"


def test_traces_end_with_the_scheduler_whose_serials_they_go_by():
    told = Told()
    told.actor._traces[SERIAL] = TraceContext.parse("00-" + "1" * 32 + "-" + "2" * 16 + "-01")
    told.actor.peer_up(ActorUp(address="scheduler", incarnation=2))
    assert not told.actor._traces
