"""Figures as a screen."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from pageant.scripts.top.figures import Figures, Latency

BAR = 30  # characters


def view(figures: Figures, height: int) -> RenderableType:
    """Return all figures in so many lines: requests get what the rest leaves, the longest first."""
    rest = 14 + len(figures.pools) + len(figures.devices) + len(figures.actors) + len(figures.nodes)
    return Group(
        _engine(figures),
        _blocks(figures),
        _actors(figures),
        _requests(figures, max(3, height - rest)),
    )


def _engine(figures: Figures) -> RenderableType:
    engine = figures.engine
    first = Text.assemble(
        (f"{figures.model}  ", "bold"),
        f"{engine.running} running, {engine.waiting} waiting  ",
        (f"{engine.output_tokens:.0f}", "bold"),
        f" output tokens/s, {engine.prompt_tokens:.0f} prompt tokens/s  {engine.ended:.1f} ended/s",
    )
    for count, what in ((engine.errors, "errors"), (engine.preemptions, "preemptions")):
        if count:
            first.append(f"  {count:.1f} {what}/s", "red" if what == "errors" else "yellow")
    if engine.drafts_accepted is not None:
        first.append(f"  {engine.drafts_accepted:.0%} of drafts accepted")
    shown = [f"{name} {_latency(latency)}" for name, latency in engine.latencies.items() if latency.count]
    second = Text("ms, median and p99:  " + ",  ".join(shown) if shown else "nothing ended", "dim")
    return Group(first, second)


def _latency(latency: Latency) -> str:
    return f"{1e3 * (latency.p50 or 0):.3g} {1e3 * (latency.p99 or 0):.3g}"


def _blocks(figures: Figures) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    for pool in figures.pools:
        hits = "" if pool.hit_rate is None else f"{pool.hit_rate:.0%} of prompt tokens cached"
        table.add_row(
            pool.name,
            ProgressBar(total=max(1, pool.blocks), completed=pool.held, width=BAR),
            f"{pool.held} of {pool.blocks} blocks, {pool.cached} cached  {hits}",
        )
    for device in figures.devices:
        memory = ", ".join(f"{part} {_size(size)}" for part, size in device.memory.items())
        table.add_row(
            f"{device.name} ({device.device})",
            ProgressBar(total=1.0, completed=min(1.0, device.utilisation), width=BAR),
            f"asleep  {memory}"
            if device.asleep
            else f"{device.utilisation:.0%} busy, {device.steps:.0f} steps/s, {device.tokens:.0f} tokens/s  {memory}",
        )
    return table


def _actors(figures: Figures) -> RenderableType:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("actor")
    table.add_column("node")
    for name in ("messages/s", "handling", "mailbox", "most", "bytes/s", "restarts"):
        table.add_column(name, justify="right")
    for actor in figures.actors:
        table.add_row(
            Text(actor.name, "" if actor.up else "bold red"),
            actor.node if actor.up else f"{actor.node} (down)",
            f"{actor.messages:.0f}",
            f"{actor.handling:.1%}",
            str(actor.mailbox),
            str(actor.mailbox_max),
            _size(actor.bytes),
            Text(str(actor.restarts), "yellow" if actor.restarts else ""),
        )
    nodes = Text("  ".join(f"{n.name} {n.cpu:.0%} {_size(n.memory)}" for n in figures.nodes), "dim")
    return Group(table, nodes)


def _requests(figures: Figures, most: int) -> RenderableType:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column(f"{figures.num_requests} requests")
    for name in ("seconds", "sequences", "prompt", "output"):
        table.add_column(name, justify="right")
    for one in figures.requests[:most]:
        table.add_row(
            one.request_id,
            f"{one.seconds:.1f}",
            str(one.num_sequences),
            str(one.num_prompt_tokens or "-"),
            str(one.num_output_tokens),
        )
    return table


def _size(count: float) -> str:
    for unit in ("", "K", "M", "G"):
        if count < 1024:
            return f"{count:.0f}{unit}" if unit != "G" else f"{count:.1f}{unit}"
        count /= 1024
    return f"{count:.1f}T"
