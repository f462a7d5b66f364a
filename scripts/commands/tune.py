"""`pageant tune`: the topology that holds a service level on this machine, and what binds it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from pageant.actors.client.vllm_names.translating import translated
from pageant.protocol.errors import BadRequest, StartupError
from pageant.scripts.commands.serve import session_of
from pageant.scripts.loads import Lengths, parse_rate
from pageant.scripts.planning.search import ServiceLevel
from pageant.scripts.replay.load import Load, read_load
from pageant.scripts.report import publish
from pageant.scripts.tuning.binding import binding
from pageant.scripts.tuning.measuring import Measurements, measure, measure_acceptance, say
from pageant.scripts.tuning.reporting import Tuning, comments_of, data_of, lines_of
from pageant.scripts.tuning.serving import serve
from pageant.scripts.tuning.simulating import SPARE, Simulator, Trial, usual_rate
from pageant.scripts.tuning.space import Candidate, Space
from pageant.scripts.tuning.study import check_installed, study
from pageant.scripts.tuning.workloads import Drawn, Kind, Part, Recorded, Source, Workload, named
from pageant.scripts.tuning.writing import topology_text

SEARCHED = ("replicas", "threads", "max_num_seqs", "max_num_batched_tokens", "policy", "quantization")
"""Settings that are searched, unless they are given."""
REFUSED = (
    *("topology", "tensor_parallel", "pipeline_parallel", "expert_parallel"),
    *("speculation", "host_memory", "store_memory"),
)
"""Settings with which nothing is tuned: their effect is not simulated, or the tune chooses it itself."""
SIMULATED_SECONDS = 60.0


@dataclass(frozen=True)
class TunedLoad:
    """The load as it was asked for.

    Attributes:
        workload: a name; None with a recording or lengths of the user's own.
        rate: such as 20/s; None is as recorded, or as much as any candidate is expected to hold.
    """

    workload: str | None
    recording: Path | None
    input_tokens: str | None
    output_tokens: str
    rate: str | None
    seed: int

    def __post_init__(self) -> None:
        given = {
            "--workload": self.workload,
            "--recording": self.recording,
            "--input-tokens": self.input_tokens,
        }
        names = [name for name, value in given.items() if value is not None]
        if len(names) > 1:
            raise BadRequest(f"{' and '.join(names)} each say the load; expected one of them", "workload")

    def as_data(self) -> dict[str, Any]:
        """Return the load as JSON has it."""
        return {**asdict(self), "recording": None if self.recording is None else self.recording.name}

    def described(self) -> Load | Workload:
        """Return the recording, or the distribution that requests are drawn from.

        Raises:
            BadRequest: an unknown workload, or lengths that are none.
            UnreadableRecording: the recording cannot be read.
        """
        if self.recording is not None:
            return read_load(self.recording)
        if self.input_tokens is None:
            return named(self.workload or "mixed")
        lengths = (
            Lengths.parse(self.input_tokens, "input_tokens"),
            Lengths.parse(self.output_tokens, "output_tokens"),
        )
        return Workload((Kind(1.0, *lengths),))


@dataclass(frozen=True)
class Effort:
    """Effort of a tune: what is tried, and for how long.

    Attributes:
        trials: candidates that are simulated, at most.
        candidates: those of them that are really run, beside the defaults.
        seconds: in which the requests of a real run arrive.
    """

    trials: int
    candidates: int
    seconds: float

    def __post_init__(self) -> None:
        for name in ("trials", "candidates"):
            if getattr(self, name) < 1:
                raise BadRequest(f"{name} is {getattr(self, name)}; expected at least 1", name)
        if not self.seconds > 0:
            raise BadRequest(f"seconds is {self.seconds:g}; expected a number above 0", "seconds")


def tune(
    model: str | None,
    engine: Mapping[str, Any],
    load: TunedLoad,
    effort: Effort,
    *,
    slo: str,
    quantizations: Sequence[str],
    speculates: bool | None,
    replicas_max: int,
    output: Path,
    overwrite: bool,
    json: Path | None,
) -> bool:
    """Search, run the best, and write the topology. Return whether one holds the level.

    Raises:
        BadRequest: the load, the level or a setting cannot be meant so.
        PageantError: the recording cannot be read, or the model does not start.
    """
    level = ServiceLevel.parse(slo)
    rate = None if load.rate is None else parse_rate(load.rate)
    described = load.described()
    settings = _settings(model, engine)
    fixed = {name: settings.pop(name) for name in SEARCHED if settings.get(name) is not None}
    if output.exists() and not overwrite:
        raise BadRequest(f"{output} exists; expected a new file, or --overwrite", "output")
    if not output.absolute().parent.is_dir():
        raise BadRequest(f"{output} is in no folder that there is", "output")
    check_installed()
    space = Space.of(
        fixed,
        len(os.sched_getaffinity(0)),
        replicas_max=replicas_max,
        quantizations=quantizations,
        speculates=isinstance(described, Load) if speculates is None else speculates,
    )
    with tempfile.TemporaryDirectory() as folder:
        tuner = _Tuner(level, settings, described, rate, load.seed, effort, Path(folder))
        found = tuner.run(space)
    comments = list(comments_of(found, level))
    if found.answer is not None:
        output.write_text(topology_text(settings, found.answer.candidate, comments))
    said = {"load": load.as_data(), "effort": asdict(effort)}
    publish({**said, **data_of(found, level)}, lines_of(found, level, output), json)
    return found.answer is not None


def _settings(model: str | None, engine: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that were given, with the model; they are checked before anything runs."""
    given = dict(engine)
    for name in REFUSED:
        if given.get(name):
            raise BadRequest(f"{name} is not tuned; expected a tune without it", name)
    session_of({name: value for name, value in given.items() if value is not None}, model)
    if model is not None:
        given["model"] = model
    return translated({name: value for name, value in given.items() if value is not None})


class _Tuner:
    """The stages of a tune: measurements, simulated search, real runs."""

    def __init__(
        self,
        level: ServiceLevel,
        settings: Mapping[str, Any],
        described: Load | Workload,
        rate: float | None,
        seed: int,
        effort: Effort,
        folder: Path,
    ) -> None:
        self._level, self._settings, self._described = level, settings, described
        self._rate, self._seed, self._effort, self._folder = rate, seed, effort, folder

    def run(self, space: Space) -> Tuning:
        """Run all stages."""
        measured, space = measure(self._settings, space, self._folder)
        source = self._source(measured, space, self._rate or 1.0)
        if max(space.choices["speculation_tokens"]):
            requests = source.requests(Part.SEARCH, SIMULATED_SECONDS)
            measured = replace(measured, acceptance=measure_acceptance(self._settings, requests))
        if self._rate is None and not isinstance(source, Recorded):
            source = self._source(measured, space, self._most_held(measured, space))
            say(f"without --rate: {source.rate:.3g} requests a second, the most that is expected to hold")
        simulator = Simulator(measured, source, self._level, self._settings, SIMULATED_SECONDS)
        simulated = self._search(simulator, space)
        tried, confirmed, answer = self._really_run(source, space, simulated)
        worst: dict[Candidate, Trial] = {}
        for one in sorted([*tried, *confirmed], key=_distance):
            worst[one.candidate] = one  # the further of its runs
        nearest = min(worst.values(), key=_distance)
        bound = binding((answer or nearest).candidate, simulator.run)
        return Tuning(simulated, tried, confirmed, answer, nearest, bound, measured, source.rate)

    def _source(self, measured: Measurements, space: Space, rate: float) -> Source:
        if isinstance(self._described, Load):
            return Recorded(self._described, self._rate)
        most = int(measured.of(space.defaults).load.settings()["max_model_len"])
        fitted = self._described.fitted(most)
        if fitted is not self._described:
            factor = most / self._described.most_tokens
            say(f"the model takes {most} tokens: all lengths of the workload are {factor:.2f} times as long")
        vocabulary = measured.vocabulary
        return Drawn(
            fitted, rate, **({} if vocabulary is None else {"vocabulary": vocabulary}), seed=self._seed
        )

    def _most_held(self, measured: Measurements, space: Space) -> float:
        """Return the most requests per second that the defaults or a small token budget hold in model time."""
        budgets = sorted({256, space.defaults.max_num_batched_tokens})
        known = [one for one in budgets if one in space.choices["max_num_batched_tokens"]]
        probes = [
            replace(space.defaults, layout=layout, max_num_batched_tokens=budget)
            for layout in space.choices["layout"]
            for budget in known or [space.defaults.max_num_batched_tokens]
        ]

        def holds(rate: float) -> bool:
            source = self._source(measured, space, rate)
            simulator = Simulator(measured, source, self._level, self._settings, SIMULATED_SECONDS)
            return any(simulator.run(one, spare=SPARE).holds for one in probes)

        return usual_rate(holds)

    def _search(self, simulator: Simulator, space: Space) -> list[Trial]:
        say(f"simulating up to {min(len(space), self._effort.trials)} of {len(space)} candidates")
        trials: dict[Candidate, Trial] = {}

        def score(candidate: Candidate) -> float:
            trials[candidate] = trial = simulator.run(candidate, spare=SPARE)
            return trial.score(space.changes(candidate))

        found = study(space, score, self._effort.trials, self._seed)
        return [trials[candidate] for _, candidate in found]

    def _really_run(
        self, source: Source, space: Space, simulated: Sequence[Trial]
    ) -> tuple[list[Trial], list[Trial], Trial | None]:
        """Run the defaults and the best candidates, and again the defaults and the best of those that hold.

        Returns:
            Runs that choose, runs that confirm, and the first of the latter that holds, the best of the former first.
        """
        chosen = distinct([one.candidate for one in simulated], self._effort.candidates)
        candidates = dict.fromkeys([space.defaults, *chosen])
        tried = [self._serve(source, one, Part.CHOICE) for one in candidates]
        found = [trial for trial in tried if trial is not None]
        if not found:
            raise StartupError("no candidate could be run, and neither could the defaults")
        ranked = sorted(found, key=lambda one: -one.score(space.changes(one.candidate)))
        holding = [one.candidate for one in ranked if one.holds]
        runs = {one: self._serve(source, one, Part.CONFIRMATION) for one in [space.defaults] if holding}
        answer: Trial | None = None
        for candidate in holding:
            if candidate not in runs:
                runs[candidate] = self._serve(source, candidate, Part.CONFIRMATION)
            trial = runs[candidate]
            if trial is not None and trial.holds:
                answer = trial
                break
        return found, [trial for trial in runs.values() if trial is not None], answer

    def _serve(self, source: Source, candidate: Candidate, part: Part) -> Trial | None:
        """Run a candidate for real; None where it does not start."""
        purpose = "confirming" if part is Part.CONFIRMATION else "running"
        say(f"{purpose}: {candidate}")
        path = self._folder / "topology.yaml"
        path.write_text(topology_text(self._settings, candidate))
        requests = source.requests(part, self._effort.seconds)
        warm_up = source.requests(Part.SEARCH, self._effort.seconds)
        try:
            outcome, times = serve(path, requests, warm_up, candidate.layout.replicas)
        except StartupError as error:
            say(f"left out: {error}")
            return None
        return Trial.of(candidate, outcome, times, self._level)


def _distance(trial: Trial) -> float:
    """Return how far a run is from holding the level; requests that were not served count most."""
    return trial.worst + trial.outcome.refused


def distinct(candidates: Sequence[Candidate], count: int) -> list[Candidate]:
    """Return the first so many candidates that differ in more than `max_num_seqs`, which seldom matters alone."""
    found: dict[Candidate, Candidate] = {}
    for one in candidates:
        found.setdefault(replace(one, max_num_seqs=1), one)
    return [*found.values()][:count]
