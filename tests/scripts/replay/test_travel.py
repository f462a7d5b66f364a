"""Time travel: the state at a step of a recording, and the step at which two runs part."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from pageant.actors.runtime.recording import RecordingHeader, RecordingReader, RecordingWriter
from pageant.actors.runtime.version import VERSION
from pageant.protocol.arrays import int32
from pageant.protocol.codec import Codec
from pageant.protocol.errors import BadRequest
from pageant.protocol.handshake import fingerprint
from pageant.protocol.recording import ActorDescription, Recorded, RecordedMessage
from pageant.protocol.sampling import SamplingParams
from pageant.protocol.serving import Finished, OutputBatch, Submit
from pageant.protocol.stepping import StepPlan
from pageant.scripts.commands import travel
from pageant.scripts.replay.load import read_load
from pageant.scripts.replay.run import play_stand_in
from pageant.scripts.replay.travel import parting, state_at

REQUESTS = int(os.environ.get("TRAVEL_REQUESTS", "1002"))
"""A multiple of three. With 10,002, the replays that the fixture `runs` makes take minutes."""
PAUSE = 0.05  # seconds between pairs of requests: longer than one takes
PLANTED = REQUESTS - 101  # the first request of the only pair that the planted policy turns round
TOKENS = 2
BLOCK_SIZE = 16
POLICY = f"""
class Planted:
    '''Serves in order of arrival, but for one request, which goes behind those that come later.'''

    def order(self, request):
        late = request.prompt[0] == {PLANTED % 1000 + 5} and request.prompt[1] == {PLANTED // 1000 + 5}
        return (request.arrived_at + (1.0 if late else 0.0),)

    def victim(self, running):
        return running[-1]
"""


def prompt(number):
    """Return the token ids of a request, by which it is known: its thousands stand behind the rest."""
    return int32([number % 1000 + 5, number // 1000 + 5, 3, 4])


def write_recording(path: Path) -> None:
    """Write a recording of requests that come three at a time, to a scheduler that serves one at a time.

    The second and the third of each wait together, so that a policy decides who goes first.
    """
    codec = Codec()
    scheduler = json.dumps({"max_num_seqs": 1, "max_num_batched_tokens": 64})
    header = RecordingHeader(
        version=VERSION,
        fingerprint=fingerprint(),
        began=1000.0,
        topology="made",
        kinds=("Submit", "OutputBatch"),
        texts=False,
        actors={"scheduler": ActorDescription(cls="", options=scheduler)},
        num_blocks=256,
        block_size=BLOCK_SIZE,
    )
    writer = RecordingWriter(path, header)

    def recorded(message, at, sender, to):
        body, arrays = codec.encode(message)
        return RecordedMessage(
            at=at,
            kind=type(message).__name__,
            sender=sender,
            sender_incarnation=1,
            to=to,
            to_incarnation=1,
            body=bytes(body),
            arrays=tuple(bytes(one) for one in arrays),
        )

    messages = []
    for number in range(REQUESTS):
        at = 1000.0 + number // 3 * PAUSE + number % 3 * 1e-5
        submit = Submit(
            request_id=str(number),
            frontend="frontend",
            prompt_token_ids=prompt(number),
            params=SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True),
        )
        output = OutputBatch(
            number=number + 1,
            request_ids=(str(number),),
            texts=("",),
            text_starts=int32([0]),
            token_starts=int32([0]),
            counts=int32([TOKENS]),
            token_ids=int32([7] * TOKENS),
            finished={0: Finished(reason="length", num_output_tokens=TOKENS)},
        )
        messages.append(recorded(submit, at, "frontend", "scheduler"))
        messages.append(recorded(output, at + 0.01, "detokenizer", "frontend"))
    writer.write(Recorded(node="root", incarnation=1, messages=tuple(messages)))
    writer.close(2000.0)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The recording, and the recordings of its replays: as it was, and with the planted policy."""
    folder = tmp_path_factory.mktemp("travel")
    write_recording(folder / "made")
    (folder / "planted.py").write_text(POLICY)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        load = read_load(folder / "made")
        play_stand_in(folder / "made", load, {}, 1.0, folder / "first")
        play_stand_in(folder / "made", load, {"policy": "planted:Planted"}, 1.0, folder / "second")
    return folder


def plans(path):
    """Return a recording's plans, read without the code under test."""
    with RecordingReader(path) as reader:
        found = [reader.decode(one) for one in reader.messages() if one.kind == "StepPlan"]
        assert reader.dropped == 0
    return found


def admitted(plan: StepPlan) -> list[int]:
    """Return the requests that a plan takes in, by their prompts."""
    heads = [one.token_ids.tolist() for one in plan.new]
    return [rest - 5 + 1000 * (thousands - 5) for rest, thousands, *_ in heads]


def test_a_planted_difference_is_found_at_its_step_among_all_requests(runs):
    first, second = (read_load(runs / name) for name in ("first", "second"))
    found, same = parting((runs / "first", first), (runs / "second", second))
    pairs = zip(plans(runs / "first"), plans(runs / "second"), strict=False)
    expected = next(step for step, pair in enumerate(pairs, 1) if admitted(pair[0]) != admitted(pair[1]))
    assert found.step == expected == same + 1 > PLANTED
    assert PLANTED in found.first.decision.admitted
    assert PLANTED not in found.second.decision.admitted and found.second.decision.admitted
    assert PLANTED in [one.request for one in found.second.queue]


def test_the_same_policy_decides_the_same_to_the_end(runs):
    load = read_load(runs / "first")
    found, same = parting((runs / "first", load), (runs / "first", load))
    assert found is None and same == len(plans(runs / "first"))


def test_the_state_at_a_step_has_the_plan_the_queue_and_the_blocks(runs):
    """Request 0 runs alone, while 1 and 2 wait for it."""
    load = read_load(runs / "first")
    every = plans(runs / "first")
    step = next(number for number, plan in enumerate(every, 1) if admitted(plan) == [1])
    state = state_at(runs / "first", load, step)
    assert state.decision.admitted == (1,) and [row.request for row in state.decision.rows] == [1]
    assert state.decision.ended == (0,) and state.decision.preempted == ()
    assert [one.request for one in state.queue] == [2] and state.queue[0].prompt_tokens == 4
    assert (state.blocks.num_blocks, state.blocks.held, state.blocks.shared) == (256, 1, 0)
    with pytest.raises(BadRequest, match=f"has {len(every)} steps"):
        state_at(runs / "first", load, len(every) + 1)


def test_the_command_shows_both_decisions(runs, capsys):
    travel.against(runs / "first", {}, str(runs / "second"), speed=1.0, replica=None, json=None)
    text = capsys.readouterr().out
    assert "and differently at step" in text and "== first" in text and "== second" in text
    travel.until(runs / "first", {}, 1, speed=1.0, replica=None, json=Path("-"))
    state = json.loads(capsys.readouterr().out)["state"]
    assert state["decision"]["admitted"] == [0] and state["blocks"]["held"] == 1


def test_a_name_to_compare_with_is_a_policy_or_a_scheduler(runs, monkeypatch):
    monkeypatch.syspath_prepend(str(runs))
    assert travel._change("fair") == {"policy": "fair"}
    assert travel._change("planted:Planted") == {"policy": "planted:Planted"}
    scheduler = "pageant.actors.scheduler.actor:Scheduler"
    assert travel._change(scheduler) == {"actors": {"scheduler": {"class": scheduler}}}
    with pytest.raises(BadRequest, match="compared as they are; leave out policy"):
        travel.against(
            runs / "first", {"policy": "fair"}, str(runs / "second"), speed=1.0, replica=None, json=None
        )
    with pytest.raises(BadRequest, match="expected a new file"):
        travel.keep(runs / "first", {}, runs / "second", speed=1.0, replica=None)


def test_recordings_of_other_requests_are_refused(runs, tmp_path):
    load = read_load(runs / "first")
    other = read_load(runs / "made")
    del other.submits[-1]
    with pytest.raises(BadRequest, match=f"{REQUESTS - 1} requests"):
        parting((runs / "first", load), (runs / "made", other))
    read_load.cache_clear()
