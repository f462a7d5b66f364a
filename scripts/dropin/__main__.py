"""Measure how much of what is written for vLLM runs here: `python -m pageant.scripts.dropin KIND --write`.

- `examples` runs vLLM's examples, with `vllm` and ports changed.
- `launches` starts the servers that vLLM's tests start, with their flags as written.
- `snippets` runs the snippets of vLLM's documentation that use an `LLM`.

`--write` puts the results into docs/benchmarks/dropin.json and docs/from-vllm.md. No test and no check runs these:
they take a quarter of an hour each and fetch vLLM's source distribution.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from pageant.scripts.dropin import page
from pageant.scripts.dropin.cases import LEFT_OUT, OFFLINE, ONLINE, Example
from pageant.scripts.dropin.hub import Hub
from pageant.scripts.dropin.launches import launch_name, read_launches, run_launch
from pageant.scripts.dropin.running import Outcome, run_example, run_script
from pageant.scripts.dropin.snippets import read_snippets
from pageant.scripts.dropin.sources import VERSION, cache, find_sources

app = typer.Typer(add_completion=False, help=__doc__, pretty_exceptions_enable=False)
Sources = Annotated[Path | None, typer.Option("--sources", help="vLLM's unpacked source distribution.")]
Only = Annotated[str, typer.Option("--only", "-k", help="Run those whose name contains this.")]
Write = Annotated[bool, typer.Option("--write", help="Keep the results for the documentation.")]


@app.callback()
def _main() -> None:
    """Take a command, even while there is one only."""


def _show(outcome: Outcome) -> None:
    state = "ran" if outcome.ran else "refused" if outcome.refused else "failed"
    print(f"{state:8}{outcome.seconds:6.1f} s  {outcome.name}", flush=True)
    if outcome.why:
        print(f"{'':18}{outcome.why}", flush=True)


def _keep(kind: str, outcomes: Sequence[Outcome], names: Sequence[str], **more: Any) -> None:
    """Put results beside those of earlier runs, and write the page that shows them.

    Args:
        names: of everything that there is to run of this kind; what is not among them is forgotten.
    """
    kept = json.loads(page.RESULTS.read_text()) if page.RESULTS.exists() else {}
    before = {one["name"]: one for one in kept.get(kind, {}).get("outcomes", [])}
    found = before | {one.name: asdict(one) for one in outcomes}
    listed = [found[name] for name in names if name in found]
    counts = {what: sum(one[what] for one in listed) for what in ("ran", "refused")}
    kept |= {"vllm": VERSION, "left_out": LEFT_OUT}
    kept[kind] = {"count": len(listed), **counts, **more, "outcomes": listed}
    page.RESULTS.write_text(json.dumps(kept, indent=1) + "\n")
    page.main()


@app.command()
def examples(sources: Sources = None, only: Only = "", write: Write = False) -> None:
    """Run vLLM's examples that generate text, one after the other."""
    root, hub = find_sources(sources), Hub(cache() / "hub")
    for kind, listed in (("online examples", ONLINE), ("offline examples", OFFLINE)):
        found = _run(kind, [one for one in listed if only in one.path], root, hub)
        if write and found:
            _keep(kind, found, [one.path for one in listed])


@app.command()
def launches(sources: Sources = None, only: Only = "", write: Write = False) -> None:
    """Start the servers that vLLM's tests start, one after the other."""
    root, hub = find_sources(sources), Hub(cache() / "hub")
    listed, unread = read_launches(root)
    found = []
    for one in listed:
        if only in one["file"]:
            found.append(run_launch(one, hub))
            _show(found[-1])
    refused = sum(one.refused for one in found)
    print(
        f"launches: {sum(one.ran for one in found)} of {len(found)} started, {refused} refused by the table"
    )
    if write:
        _keep("launches", found, [launch_name(one) for one in listed], unread=unread)


@app.command()
def snippets(sources: Sources = None, only: Only = "", write: Write = False) -> None:
    """Run the snippets of vLLM's documentation that make an `LLM` or call one, one after the other."""
    root, hub = find_sources(sources), Hub(cache() / "hub")
    listed = read_snippets(root)
    found = []
    for one in listed:
        if only in one.name:
            found.append(run_script(one.name, one.source, root, hub))
            _show(found[-1])
    print(
        f"snippets: {sum(one.ran for one in found)} of {len(found)} ran, {sum(one.refused for one in found)} refused"
    )
    if write:
        _keep("snippets", found, [one.name for one in listed])


def _run(kind: str, listed: Sequence[Example], root: Path, hub: Hub) -> list[Outcome]:
    found = []
    for one in listed:
        found.append(run_example(one, root, hub))
        _show(found[-1])
    print(f"{kind}: {sum(one.ran for one in found)} of {len(found)} ran", flush=True)
    return found


if __name__ == "__main__":
    app()
