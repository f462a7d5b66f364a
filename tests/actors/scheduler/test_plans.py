"""Plans are made from grants, by columns."""

from pageant.actors.scheduler.plans import admissions, build_plan
from pageant.actors.scheduler.request import ScheduledRequest
from pageant.actors.scheduler.scheduled_rows import ScheduledRows
from pageant.protocol.allocation import Admitted, Assigned
from pageant.protocol.arrays import freeze, int32
from pageant.protocol.sampling import SamplingParams
from pageant.protocol.verification import NO_DRAFTS


def request(serial, row, prompt, output=()):
    return ScheduledRequest(
        request_id="",
        frontend="",
        serial=serial,
        arrival=serial,
        prompt=int32(prompt),
        params=SamplingParams(),
        end_tokens=frozenset(),
        output=list(output),
        row=row,
    )


def test_running_and_new_requests_share_a_plan():
    running, new = request(1, 3, [1, 2], [7]), request(2, 0, [4, 5, 6], [8])
    grant = Admitted(serial=2, blocks=int32([9]), num_cached_tokens=0, num_tokens=2)
    granted = Assigned(
        step=5,
        epoch=2,
        num_grown=1,
        grown_counts=int32([1]),
        grown_blocks=int32([6]),
        admitted=(grant,),
        blocks_free=1,
        num_blocks=10,
    )
    chunks = ScheduledRows.of([1], [running.row], [2], [1], [True]) + admissions([new], granted.admitted)
    plan = build_plan(4, granted, [0], chunks, [new], NO_DRAFTS, int32())
    freeze(plan)
    assert (plan.number, plan.epoch, plan.freed_rows.tolist()) == (4, 2, [0])
    assert (plan.rows.tolist(), plan.starts.tolist(), plan.num_tokens.tolist()) == ([3, 0], [2, 0], [1, 2])
    assert plan.draws.tolist() == [True, False]
    assert (plan.grown_rows.tolist(), plan.grown_blocks.tolist()) == ([3], [6])
    (sequence,) = plan.new
    assert (sequence.row, sequence.blocks.tolist()) == (0, [9])
    assert sequence.token_ids.tolist() == [4, 5, 6, 8], "a resumed one brings its output along"
    assert sequence.num_prompt_tokens == 3
