"""A recording as a load: what was asked of one scheduler, when, and what came of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from statistics import median
from typing import Any

import msgspec

from pageant.actors.runtime.address import replica_of, role_of
from pageant.actors.runtime.recording import RecordingHeader, RecordingReader, UnreadableRecording
from pageant.protocol.checks import TOKEN_ID_MAX
from pageant.protocol.drafting import DEVICE_METHODS
from pageant.protocol.sampling import SamplingParams
from pageant.protocol.serving import Abort, OutputBatch, Submit
from pageant.protocol.stepping import StepPlan, StepResult
from pageant.scripts.replay.costs import StepCosts, StepSize
from pageant.scripts.replay.timeline import Course, Timeline

# Of actors' options, those that make a replay like what was recorded. What a model is comes from elsewhere.
NOT_TAKEN = frozenset({"model", "eos_token_ids", "vocab_size", "threads", "kernels", "device", "disk_path"})
END = TOKEN_ID_MAX  # that a stand-in says at the end of an answer
TAKEN_OF_EXECUTOR = frozenset({"max_num_seqs", "max_model_len", "block_size"})
# Of the executor's options, those that say how several compute one model.
OF_GROUP = (
    *("tensor_parallel", "tensor_segments", "pipeline_parallel", "pipeline_layers"),
    *("expert_parallel", "expert_sums", "collectives"),
)


@dataclass(eq=False)
class Load:
    """Load that was recorded of one scheduler.

    Attributes:
        submits: in the order of arrival; `timeline.courses` has the same requests in the same order.
        began, ended: when the first of its messages was, and the last, in seconds since 1970.
        step_ends: when each step was over, in the same seconds, sorted.
        whole: whether the file ends as it should.
    """

    header: RecordingHeader
    replica: str
    submits: list[Submit] = field(default_factory=list)
    timeline: Timeline = field(default_factory=Timeline)
    costs: StepCosts = field(default_factory=StepCosts)
    began: float = float("inf")
    ended: float = 0.0
    dropped: int = 0
    step_ends: list[float] = field(default_factory=list)
    whole: bool = False

    @property
    def courses(self) -> list[Course]:
        """The courses of the requests, in order."""
        return list(self.timeline.courses.values())

    @property
    def begun_before(self) -> int:
        """Return how many requests have only their end recorded. They cannot be asked again."""
        return self.timeline.begun_before

    @property
    def weight_versions(self) -> list[str]:
        """The versions of the weights that drew the recorded answers, in order of the requests."""
        ends = (course.finished for course in self.courses if course.finished is not None)
        return list(dict.fromkeys(span.version for end in ends for span in end.weight_versions))

    def settings(self) -> dict[str, Any]:
        """The settings of a topology under which it is like the one that was recorded."""
        found: dict[str, Any] = {}
        for name, actor in self.header.actors.items():
            options = msgspec.json.decode(actor.options or "{}")
            if replica_of(name) == self.replica:
                taken = TAKEN_OF_EXECUTOR if role_of(name) == "executor" else options.keys() - NOT_TAKEN
                found |= {
                    key: options[key] for key in sorted(taken & options.keys()) if options[key] is not None
                }
        if self.header.num_blocks is not None:
            found |= {"num_blocks": self.header.num_blocks, "block_size": self.header.block_size}
            if len(self.header.windows) == 1:  # perhaps since drafts were made, which no longer are
                found["group_layers"] = False
        if found.get("speculation", {}).get("method") in DEVICE_METHODS:
            del found["speculation"]  # whose drafts are made by what there is not
        return found

    def group(self) -> dict[str, Any]:
        """Return the settings of the group of executors that computed the model; none if one was alone."""
        leader = self.header.actors.get(f"{self.replica}executor/0")
        options = msgspec.json.decode((leader.options if leader is not None else "") or "{}")
        if options.get("tensor_parallel", 1) * options.get("pipeline_parallel", 1) == 1:
            return {}
        return {name: options[name] for name in OF_GROUP if options.get(name) is not None}

    def classes(self) -> dict[str, str]:
        """The classes of scheduler and block manager."""
        names = ("scheduler", "blocks")
        described = {name: self.header.actors.get(f"{self.replica}{name}") for name in names}
        return {name: actor.cls for name, actor in described.items() if actor is not None and actor.cls}


@lru_cache(maxsize=1)  # the player and the stand-in for the model both need it
def read_load(path: Path, replica: str | None = None) -> Load:
    """Reads a recording.

    Args:
        replica: of which model, where several were served; None is the only one.

    Raises:
        UnreadableRecording: it is none, holds no request, or those of several models.
    """
    with RecordingReader(path) as reader:
        load = Load(reader.header, replica or "")
        replicas = set()
        steps = _Steps()
        for message in reader.messages():
            of = replica_of(message.sender if message.kind == "OutputBatch" else message.to)
            if message.kind == "Submit":
                replicas.add(of)
            if replica is not None and of != replica:
                continue
            match reader.decode(message):
                case Submit() as submit if submit.resume is None:
                    load.submits.append(_without_adapter(submit))
                    load.timeline.submitted((submit.frontend, submit.request_id), submit, message.at)
                case Abort() as abort:
                    for request_id in abort.request_ids:
                        load.timeline.left((abort.frontend, request_id), message.at)
                case OutputBatch() as batch:
                    load.timeline.output(message.to, batch, message.at)
                case StepPlan() as plan:
                    steps.planned(plan, message.sender_incarnation, message.at)
                case StepResult() as result:
                    steps.answered(result, message.to_incarnation, message.at)
                case _:
                    continue
            load.began, load.ended = min(load.began, message.at), max(load.ended, message.at)
        load.dropped, load.whole = reader.dropped, reader.whole
    if len(replicas) > 1 and replica is None:
        names = ", ".join(sorted(one.rstrip("/") for one in replicas))
        raise UnreadableRecording(f"{path} is of several models; name one of them: {names}")
    if not load.submits:
        raise UnreadableRecording(f"{path} holds no request; nothing was asked while it was made")
    if replica is None:
        load.replica = replicas.pop()
    load.costs, load.step_ends = steps.costs(), steps.ends()
    return load


def _without_adapter(submit: Submit) -> Submit:
    """Return a request without its adapter, since a replay has none. Requests that share a prefix still do."""
    if submit.adapter is None:
        return submit
    return msgspec.structs.replace(submit, adapter=None, extra_keys=(*submit.extra_keys, submit.adapter))


class _Steps:
    """Times that steps took, with what goes on between them.

    A step ends when its plan is answered. It begins with the answer to the plan before, where a request goes on from
    that one, and else with its own plan. The steps of a multi-step plan took equally long.
    """

    def __init__(self) -> None:
        self._planned: dict[tuple[int, int, int], tuple[StepSize, float, bool]] = {}
        self._answered: dict[tuple[int, int, int], tuple[float, int, float]] = {}

    def planned(self, plan: StepPlan, scheduler: int, at: float) -> None:
        goes_on = len(plan.rows) > len(plan.new)
        self._planned[plan.epoch, scheduler, plan.number] = StepSize.of(plan), at, goes_on

    def answered(self, result: StepResult, scheduler: int, at: float) -> None:
        self._answered[result.epoch, scheduler, result.number] = at, result.num_steps, result.seconds

    def ends(self) -> list[float]:
        return sorted(at for at, _, _ in self._answered.values())

    def costs(self) -> StepCosts:
        costs, before = StepCosts(), 0.0
        waits: list[float] = []
        for key in sorted(self._planned.keys() & self._answered.keys()):
            size, planned_at, goes_on = self._planned[key]
            at, num_steps, computed = self._answered[key]
            began = before if goes_on and before else max(planned_at, before)
            for _ in range(num_steps):
                costs.add(size, (at - began) / num_steps)
            waits.append(max(0.0, at - began - computed) / max(1, num_steps))
            before = at
        costs.fit()
        costs.host_seconds = median(waits) if waits else 0.0
        return costs


def aborts(load: Load) -> Iterator[tuple[int, float]]:
    """The requests, by number, whose users left or whose end was not recorded, and when that was."""
    for number, course in enumerate(load.courses):
        if course.left_at is not None:
            yield number, course.left_at
        elif course.finished is None:
            yield number, load.ended


def said(load: Load, number: int) -> SamplingParams:
    """A request's parameters for a stand-in, which knows from the seed what was said."""
    course = load.courses[number]
    recorded = course.params
    return SamplingParams(
        temperature=1.0,
        seed=number,
        max_tokens=recorded.max_tokens,
        stop_token_ids=(END,) if course.stopped else (),
        ignore_eos=True,
        detokenize=False,
        logprobs=recorded.logprobs,
        prompt_logprobs=recorded.prompt_logprobs,
        output_kind=recorded.output_kind,
    )


def as_recorded(load: Load, number: int) -> SamplingParams:
    """A request's parameters for a model. A text that was to end it, and is not kept, becomes a length."""
    course = load.courses[number]
    end = course.finished
    if end is not None and end.stop_reason == "" and not load.header.texts:
        return msgspec.structs.replace(course.params, max_tokens=max(1, len(course.token_ids)))
    return course.params
