"""`pageant bench safety`: what it costs that everything may die, while nothing does.

The workload `overhead` with every actor in its own process; of the CPU time of all processes, the share that goes
into what is there for deaths only: leases, acknowledgements, and supervision. Handlers are timed by the runtime; what
carrying such a message costs besides (encoding, the socket, the loop) is taken to be what carrying any costs that
is as small: half of `--carry` microseconds at either end.
"""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Any

import typer

from pageant.actors.client.llm import LLM
from pageant.protocol.sampling import SamplingParams
from pageant.protocol.supervision import NodeStatistics
from pageant.scripts.bench.progress import rounds
from pageant.scripts.bench.workloads import end_id_of, workload
from pageant.scripts.engine_options import with_engine_options
from pageant.scripts.report import Json, publish, table

SAFETY = {
    "leases": ("RenewLease", "LeaseGranted"),
    "acknowledgements": ("Acknowledge", "Resume"),
    "supervision": (
        "Directory",
        "ActorUp",
        "ActorDown",
        "NodeJoined",
        "NodeExited",
        "ActorStarted",
        "ActorFailed",
    ),
}


@with_engine_options
def bench(
    engine: dict[str, Any],
    runs: Annotated[int, typer.Option(help="All counted together, after one that warms up.")] = 3,
    carry: Annotated[float, typer.Option(help="Microseconds to carry a small message, at both ends.")] = 60.0,
    json: Json = None,
) -> None:
    """Leases, acknowledgements and supervision: their share of all CPU time while nothing dies."""
    work = workload("overhead")
    params = SamplingParams(temperature=0, max_tokens=work.output_tokens, ignore_eos=True)
    settings: dict[str, Any] = {"placement": "each", "enable_prefix_caching": False} | engine
    prompts = work.prompts(end_id=end_id_of(settings["model"]))
    with LLM(settings.pop("model"), progress=False, **settings) as llm:
        llm.generate(prompts, params)
        before = llm.statistics()
        for _ in rounds("overhead", runs):
            llm.generate(prompts, params)
        after = llm.statistics()
    cpu_seconds = _cpu_seconds(after) - _cpu_seconds(before)
    figures: dict[str, Any] = {"cpu_seconds": round(cpu_seconds, 2), "carry_microseconds": carry}
    for name, kinds in SAFETY.items():
        (count, seconds), (count_before, seconds_before) = _handled(after, kinds), _handled(before, kinds)
        count, seconds = count - count_before, seconds - seconds_before
        carried = count * carry * 1e-6
        figures[name] = {
            "messages": count,
            "handler_percent": round(100 * seconds / cpu_seconds, 3),
            "with_carrying_percent": round(100 * (seconds + carried) / cpu_seconds, 3),
        }
    rows = [(name, *figures[name].values()) for name in SAFETY]
    lines = table(("what", "messages", "% in handlers", "% with carrying"), rows)
    publish(figures, [*lines, f"of {cpu_seconds:.1f} s of CPU time"], json)


def _cpu_seconds(nodes: list[NodeStatistics]) -> float:
    return sum(node.cpu_seconds for node in nodes)


def _handled(nodes: list[NodeStatistics], kinds: tuple[str, ...]) -> tuple[int, float]:
    counts: Counter[str] = Counter()
    seconds = 0.0
    for node in nodes:
        for actor in node.actors.values():
            for kind, handled in actor.kinds.items():
                if kind in kinds:
                    counts[kind] += handled.count
                    seconds += handled.seconds
    return sum(counts.values()), seconds
