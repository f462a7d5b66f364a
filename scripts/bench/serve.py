"""`pageant bench serve`: a load on any server that speaks OpenAI's API, ours or another's."""

from __future__ import annotations

import asyncio
import contextlib
import math
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from pageant.actors.runtime.loop import new_event_loop
from pageant.protocol.errors import BadRequest, PeerGone
from pageant.scripts.bench.serving.drive import Driver, Run, first_model
from pageant.scripts.bench.serving.figures import Results, parse_limits, table
from pageant.scripts.bench.serving.load import Load
from pageant.scripts.bench.serving.meter import Meter, NodeMeter
from pageant.scripts.bench.serving.plot import svg
from pageant.scripts.http_client import Client, Failed
from pageant.scripts.loads import Arrivals, Lengths
from pageant.scripts.report import Json, publish

CONVERSATIONS = 200  # where neither their number nor a time is given
LENGTHS = "128, 16:64 (evenly drawn), or normal:256:64."


def bench(
    url: Annotated[str, typer.Argument(help="Of the server.")] = "http://127.0.0.1:8000",
    json: Json = None,
    plot: Annotated[Path | None, typer.Option(metavar="FILE", help="Draw the latencies there (SVG).")] = None,
    model: Annotated[str | None, typer.Option(help="[default: the server's first]")] = None,
    api_key: Annotated[str | None, typer.Option(envvar="OPENAI_API_KEY")] = None,
    conversations: Annotated[int | None, typer.Option(help=f"How many. [default: {CONVERSATIONS}]")] = None,
    seconds: Annotated[float | None, typer.Option(help="Begin them only so long.")] = None,
    rate: Annotated[float, typer.Option(help="That begin per second.")] = math.inf,
    burstiness: Annotated[
        float,
        typer.Option(help="1: a Poisson process; less: bursts; more: evenly (shape of the gamma gaps)."),
    ] = 1.0,
    ramp_from: Annotated[float, typer.Option(help="The rate at the beginning of the ramp.")] = 0.0,
    ramp_seconds: Annotated[float, typer.Option(help="In which the rate grows to --rate.")] = 0.0,
    concurrency: Annotated[int | None, typer.Option(help="Most conversations at a time.")] = None,
    input_tokens: Annotated[str, typer.Option(help=f"Of a turn: {LENGTHS}")] = "128",
    output_tokens: Annotated[str, typer.Option(help=f"Of an answer: {LENGTHS}")] = "64",
    prefix_tokens: Annotated[int, typer.Option(help="That prompts share.")] = 0,
    prefixes: Annotated[int, typer.Option(help="How many different ones there are.")] = 1,
    turns: Annotated[str, typer.Option(help=f"Of a conversation: {LENGTHS}")] = "1",
    think_seconds: Annotated[float, typer.Option(help="Between an answer and the next turn.")] = 0.0,
    chat: Annotated[bool, typer.Option(help="Ask /v1/chat/completions.")] = False,
    token_ids: Annotated[
        str | None, typer.Option(metavar="FIRST:LAST", help="Prompts are ids from these, not text.")
    ] = None,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    until_end: Annotated[bool, typer.Option(help="Let the model end an answer (no ignore_eos).")] = False,
    extra: Annotated[str, typer.Option(help="More fields of every request, as JSON.")] = "{}",
    goodput: Annotated[
        str | None, typer.Option(help="What is good, in ms: ttft:500,tpot:50,e2e:10000.")
    ] = None,
    distinct: Annotated[int, typer.Option(help="Conversations before they repeat; 0: never.")] = 0,
    verify: Annotated[
        bool, typer.Option(help="Each answer must be what its prompt got alone (with --distinct).")
    ] = False,
    warmup: Annotated[int, typer.Option(help="Conversations before, one by one, that do not count.")] = 1,
    pid: Annotated[
        int | None, typer.Option(help="The server's, if it is here: its CPU time and memory are shown.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of everything that is drawn.")] = 0,
) -> None:
    """Drive a server: throughput, goodput, and latencies by mean, median, p90 and p99."""
    if verify and not distinct:
        raise BadRequest(
            "to verify answers, prompts must repeat: expected --distinct with --verify", "distinct"
        )
    load = Load(
        Lengths.parse(input_tokens, "input_tokens"),
        Lengths.parse(output_tokens, "output_tokens"),
        Lengths.parse(turns, "turns"),
        prefix_tokens,
        prefixes,
        distinct,
        _range(token_ids),
        seed,
    )
    if load.token_ids is not None and (chat or load.turns.high > 1):
        raise BadRequest(
            "conversations are of text: expected no --token-ids with --chat or --turns", "token_ids"
        )
    count = CONVERSATIONS if conversations is None and seconds is None else conversations
    run = Run(
        model=model,
        conversations=math.inf if count is None else count,
        seconds=math.inf if seconds is None else seconds,
        concurrency=math.inf if concurrency is None else concurrency,
        chat=chat,
        think_seconds=think_seconds,
        extra={"temperature": temperature} | ({} if until_end else {"ignore_eos": True}) | _fields(extra),
        verify=verify,
        limits=parse_limits(goodput),
    )
    if run.seconds == math.inf and run.conversations == math.inf:
        raise BadRequest("neither conversations nor seconds end this load", "seconds")
    arrivals = Arrivals(rate, burstiness, ramp_from, ramp_seconds)
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        results, nodes, meter = runner.run(_run(Client(url, api_key), load, arrivals, run, warmup, pid))
    report = results.report(run.limits)
    lines = [*table(report).splitlines(), *nodes.lines(report["output_tokens"])]
    report |= nodes.report(report["output_tokens"])
    if meter is not None:
        report |= meter.report(report["output_tokens"])
        lines += meter.lines(report["output_tokens"])
    if plot is not None:
        plot.write_text(svg(results))
    publish({"load": _described(load, arrivals, run), **report}, lines, json)


async def _run(
    client: Client, load: Load, arrivals: Arrivals, run: Run, warmup: int, pid: int | None
) -> tuple[Results, NodeMeter, Meter | None]:
    try:
        if run.model is None:
            run = replace(run, model=await first_model(client))
        driver = Driver(client, load, arrivals, run)
        await driver.prepare(warmup)
    except Failed as error:
        raise PeerGone(f"the server does not answer as it should: {error}") from None
    try:
        meter = Meter(pid) if pid is not None else None
        async with NodeMeter(client) as nodes, meter or contextlib.nullcontext():
            results = await driver.drive()
        return results, nodes, meter
    finally:
        client.close()


def _range(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    first, _, last = text.partition(":")
    if first.isdigit() and last.isdigit() and int(first) <= int(last):
        return int(first), int(last)
    raise BadRequest(f"token_ids is {text!r}; expected such as 10:16000", "token_ids")


def _fields(text: str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise BadRequest(f"extra is {text!r:.100}; expected a JSON object ({error})", "extra") from None


def _described(load: Load, arrivals: Arrivals, run: Run) -> dict[str, Any]:
    """Return what was asked, as JSON has it: what is infinite is null."""
    given = {**asdict(load), **asdict(arrivals), **asdict(run)}
    given.pop("_prefixes")
    return {name: None if value == math.inf else value for name, value in given.items()}
