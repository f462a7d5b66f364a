"""The command line, `pageant`. Each command's module is imported only when it is called."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from pageant.scripts.commands.bench import bench_app
from pageant.scripts.commands.model import model_app
from pageant.scripts.engine_command import EngineCommand, ServeCommand, all_flags
from pageant.scripts.engine_options import with_adapters, with_engine_options
from pageant.scripts.help_text import Commands, PlainCommand
from pageant.scripts.report import Json as Figures

app = typer.Typer(
    cls=Commands,
    rich_markup_mode=None,
    help="Pageant: an LLM inference engine made of actors.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
topology_app = typer.Typer(
    cls=Commands, rich_markup_mode=None, help="Check, show or draw a topology.", no_args_is_help=True
)
app.add_typer(topology_app, name="topology")
app.add_typer(bench_app, name="bench")
app.add_typer(model_app, name="model")

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]


def _tell_version(asked: bool) -> None:
    if asked:
        from pageant.actors.runtime.version import VERSION

        print(f"pageant {VERSION}")
        raise typer.Exit


@app.callback()
def _before(
    version: Annotated[
        bool, typer.Option("--version", callback=_tell_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Pageant: an LLM inference engine made of actors."""


def _find_classes_here() -> None:
    """A class of the user's own may stand in the folder where a command is given."""
    sys.path.insert(0, os.getcwd())


@app.command(cls=EngineCommand)
@with_engine_options
def run(
    prompt: Annotated[str, typer.Argument(metavar="PROMPT", help="What to ask; - reads standard input.")],
    engine: dict[str, Any],
    system: Annotated[str | None, typer.Option(help="A system message before the prompt.")] = None,
    raw: Annotated[bool, typer.Option(help="Complete the text as it is, without the chat template.")] = False,
    max_tokens: Annotated[int, typer.Option(help="Most tokens of the answer.")] = 256,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    top_k: Annotated[int, typer.Option(help="0 keeps all.")] = 0,
    top_p: Annotated[float, typer.Option(help="1 keeps all.")] = 1.0,
    min_p: Annotated[float, typer.Option(help="0 keeps all.")] = 0.0,
    stop: Annotated[
        list[str] | None, typer.Option(help="End at this text; may be given several times.")
    ] = None,
    timings: Annotated[bool, typer.Option(help="Say afterwards how long everything took.")] = False,
    pool: Annotated[bool, typer.Option(help="Say afterwards how the KV pool stands.")] = False,
) -> None:
    """Answer one prompt, streaming."""
    from pageant.protocol.sampling import SamplingParams
    from pageant.scripts.commands import run as command

    params = SamplingParams(
        max_tokens=max_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        stop=tuple(stop or ()),
    )
    command.run(prompt, engine, params, system=system, raw=raw, timings=timings, pool=pool)


@app.command(cls=PlainCommand)
def simulate(
    seeds: Annotated[str, typer.Option(help="One seed, or a range such as 0..500.")] = "0..100",
    jobs: Annotated[int, typer.Option(help="Processes side by side.")] = len(os.sched_getaffinity(0)),
    actor: Annotated[
        list[str] | None,
        typer.Option(
            help="An actor of your own, as scheduler=my_lab:MyScheduler; may be given several times."
        ),
    ] = None,
    trace: Annotated[int | None, typer.Option(help="Show every delivery of this one seed.")] = None,
    shrink: Annotated[bool, typer.Option(help="Look for the shortest schedule that still fails.")] = True,
    json: Json = False,
) -> None:
    """Run the engine in simulated time, with actors killed and messages delayed and lost as each seed says."""
    from pageant.scripts.commands import simulate as command

    _find_classes_here()
    classes = command.parse_classes(actor or [])
    if trace is not None:
        held = command.trace(trace, classes)
    else:
        held = command.simulate(command.parse_seeds(seeds), jobs, classes, shrink=shrink, json=json)
    if not held:
        raise typer.Exit(1)


@app.command(cls=EngineCommand)
@with_engine_options
def chat(
    engine: dict[str, Any],
    system: Annotated[str | None, typer.Option(help="A system message to begin with.")] = None,
    max_tokens: Annotated[int, typer.Option(help="Most tokens of an answer.")] = 512,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    top_k: Annotated[int, typer.Option(help="0 keeps all.")] = 0,
    top_p: Annotated[float, typer.Option(help="1 keeps all.")] = 1.0,
    min_p: Annotated[float, typer.Option(help="0 keeps all.")] = 0.0,
    stop: Annotated[
        list[str] | None, typer.Option(help="End an answer at this text; may be given several times.")
    ] = None,
    url: Annotated[
        str | None, typer.Option(help="Talk to this server, such as http://127.0.0.1:8000.")
    ] = None,
    api_key: Annotated[str | None, typer.Option(envvar="OPENAI_API_KEY", help="Key of that server.")] = None,
) -> None:
    """Talk to a model. Ctrl-C ends an answer, Ctrl-D the session; /help lists what else it knows."""
    from pageant.protocol.sampling import SamplingParams
    from pageant.scripts.commands import chat as command

    params = SamplingParams(
        max_tokens=max_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        stop=tuple(stop or ()),
    )
    command.chat(engine, params, system, url, api_key)


@app.command(cls=ServeCommand)
@with_engine_options
def serve(
    engine: dict[str, Any],
    checkpoint: Annotated[
        str | None,
        typer.Argument(metavar="MODEL", help="A checkpoint's folder or a hub id; the same as --model."),
    ] = None,
    adapter: Annotated[
        list[str] | None,
        typer.Option(
            "--adapter",
            "--lora-modules",
            metavar="NAME=FOLDER",
            help="A low-rank adapter, served as a model of that name; may be given several times.",
        ),
    ] = None,
    host: Annotated[str | None, typer.Option(help="Where to listen. [default: 127.0.0.1]")] = None,
    port: Annotated[int | None, typer.Option(help="0 is any that is free. [default: 8000]")] = None,
    api_key: Annotated[
        list[str] | None,
        typer.Option(
            envvar=["PAGEANT_API_KEY", "VLLM_API_KEY"],
            show_envvar=False,
            help="Serve only who has this key, each a tenant; may be given several times. [default: $VLLM_API_KEY]",
        ),
    ] = None,
    operator_key: Annotated[
        list[str] | None,
        typer.Option(help="A key that sees and ends what any tenant made; may be given several times."),
    ] = None,
    cache_scope: Annotated[
        str | None,
        typer.Option(
            help="Who shares cached prefixes: all or tenant. [default: tenant where there are several keys]"
        ),
    ] = None,
    admin_routes: Annotated[
        bool | None,
        typer.Option(
            envvar=["PAGEANT_ADMIN_ROUTES", "VLLM_SERVER_DEV_MODE"],
            show_envvar=False,
            help="Serve the routes for operators, such as /pause. [default: $VLLM_SERVER_DEV_MODE]",
        ),
    ] = None,
    runtime_adapters: Annotated[
        bool | None,
        typer.Option(
            envvar=["PAGEANT_RUNTIME_ADAPTERS", "VLLM_ALLOW_RUNTIME_LORA_UPDATING"],
            show_envvar=False,
            help="Let callers load and unload adapters. [default: $VLLM_ALLOW_RUNTIME_LORA_UPDATING]",
        ),
    ] = None,
    trust_request_chat_template: Annotated[
        bool | None, typer.Option(help="Take chat templates that requests bring along.")
    ] = None,
    strict_fields: Annotated[
        bool | None, typer.Option(help="Refuse requests with fields that have no effect here.")
    ] = None,
    allowed_origin: Annotated[
        list[str] | None, typer.Option(help="Web pages of this origin may call; may be given several times.")
    ] = None,
    ssl_certfile: Annotated[str | None, typer.Option(help="Serve over TLS with this certificate.")] = None,
    ssl_keyfile: Annotated[str | None, typer.Option(help="And this key.")] = None,
    tool_call_parser: Annotated[
        str | None,
        typer.Option(help="How the model writes calls of tools. [default: by its chat template]"),
    ] = None,
    reasoning_parser: Annotated[
        str | None, typer.Option(help="How it marks what it thinks. [default: by its chat template]")
    ] = None,
    drain_seconds: Annotated[float, typer.Option(help="How long open requests may go on at SIGTERM.")] = 30.0,
) -> None:
    """Serve a model over HTTP, with OpenAI's API."""
    from pageant.scripts.commands import serve as command

    options = {
        **{"host": host, "port": port, "strict_fields": strict_fields, "admin_routes": admin_routes},
        **{"runtime_adapters": runtime_adapters},
        **{"trust_request_chat_template": trust_request_chat_template},
        **{"api_keys": api_key, "operator_keys": operator_key, "cache_scope": cache_scope},
        **{"tool_call_parser": tool_call_parser, "reasoning_parser": reasoning_parser},
        **{"allowed_origins": allowed_origin, "ssl_certfile": ssl_certfile, "ssl_keyfile": ssl_keyfile},
    }
    command.serve(with_adapters(engine, adapter or ()), checkpoint, options, drain_seconds, all_flags())


@app.command("run-batch", cls=EngineCommand)
@with_engine_options
def run_batch(
    engine: dict[str, Any],
    source: Annotated[
        str, typer.Option("--input", "-i", help="The requests, one a line; - is standard input.")
    ],
    target: Annotated[
        str,
        typer.Option(
            "--output",
            "-o",
            help="The answers, as they come; - is standard output. Without --resume a file is written anew.",
        ),
    ],
    errors: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Answers that are errors go there instead.")
    ] = None,
    url: Annotated[str | None, typer.Option(help="Ask this server, instead of one of our own.")] = None,
    api_key: Annotated[str | None, typer.Option(envvar="OPENAI_API_KEY", help="Of that server.")] = None,
    concurrency: Annotated[int, typer.Option(min=1, help="Requests open at a time.")] = 512,
    resume: Annotated[
        bool, typer.Option(help="Go on: what the output answers is not asked again; what failed is.")
    ] = False,
) -> None:
    """Answer a file of requests in OpenAI's batch format. Ends with 1 if any of them failed."""
    from pageant.scripts.commands import run_batch as command

    failed = command.run_batch(
        engine,
        source,
        target,
        errors=errors,
        url=url,
        api_key=api_key,
        concurrency=concurrency,
        resume=resume,
    )
    raise typer.Exit(1 if failed else 0)


@app.command(cls=PlainCommand)
def top(
    url: Annotated[str, typer.Argument(metavar="URL", help="Of the server.")] = "http://127.0.0.1:8000",
    api_key: Annotated[
        str | None, typer.Option(envvar="OPENAI_API_KEY", help="Key of the server, if it asks for one.")
    ] = None,
    interval: Annotated[float, typer.Option(min=0.01, help="Seconds between looks.")] = 1.0,
    once: Annotated[bool, typer.Option(help="Print one interval's figures, and end.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print a JSON object for each interval.")] = False,
) -> None:
    """Watch a server live: requests, tokens, latencies, blocks, devices and actors, every `--interval` seconds."""
    from pageant.scripts.commands import top as command

    command.top(url, api_key, interval, once=once, as_json=json)


@app.command(cls=PlainCommand)
def pool(
    url: Annotated[str, typer.Argument(metavar="URL", help="Of the server.")] = "http://127.0.0.1:8000",
    api_key: Annotated[
        str | None, typer.Option(envvar="OPENAI_API_KEY", help="Key of the server, if it asks for one.")
    ] = None,
    json: Json = False,
) -> None:
    """Show a server's KV pool: blocks free, cached and held, hits, evictions, waste, and the tiers below."""
    from pageant.scripts.commands import pool as command

    command.pool(url, api_key, as_json=json)


@app.command(cls=PlainCommand)
def quantize(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A checkpoint's folder or a hub id.")],
    out: Annotated[str, typer.Argument(metavar="OUT", help="The new checkpoint's folder.")],
    scheme: Annotated[
        str,
        typer.Option(
            help="w4a16, w8a16, w8a8 (activations too, where engines round them), "
            "int4 or int8 (scales of 32 inputs, as --quantization has them)."
        ),
    ],
    group_size: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Inputs that share a scale; -1 is a whole row. "
            "[default: of w4a16 the largest of 128, 64 and 32 that divides all rows, of w8a16 a whole row]",
        ),
    ] = None,
    ignore: Annotated[
        list[str] | None,
        typer.Option(
            metavar="MODULE",
            help="Leave it as it is: a name, or a regular expression after re:; may be given several times.",
        ),
    ] = None,
    calibrate: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Round by GPTQ, by what the model makes of these texts: plain text, or JSON lines with text, messages "
            "or token_ids. [default: round to the nearest]",
        ),
    ] = None,
    sequences: Annotated[
        int | None, typer.Option(help="The most texts of it, or pieces of plain text. [default: 128]")
    ] = None,
    sequence_length: Annotated[
        int | None, typer.Option(help="The most tokens of each. [default: 1024]")
    ] = None,
    act_order: Annotated[
        bool | None,
        typer.Option(
            "--act-order/--no-act-order",
            help="Round the most important inputs first; files look the same. [default: yes]",
        ),
    ] = None,
    damping: Annotated[
        float | None,
        typer.Option(help="What is added to the Hessian's diagonal, as a share of its mean. [default: 0.05]"),
    ] = None,
) -> None:
    """Write a model's weights in 8 or 4 bits, in compressed-tensors' format. Heads and embeddings stay as they are."""
    from pageant.scripts.commands import quantize as command

    command.quantize(
        model,
        out,
        scheme,
        calibrate,
        {"sequences": sequences, "length": sequence_length},
        {"act_order": act_order, "damping": damping},
        group_size=group_size,
        ignore=tuple(ignore or ()),
    )


@topology_app.command("check", cls=EngineCommand)
@with_engine_options
def topology_check(engine: dict[str, Any]) -> None:
    """Find what is wrong with a topology, before anything loads."""
    from pageant.scripts.commands import topology as command

    command.check(engine)


@topology_app.command("show", cls=EngineCommand)
@with_engine_options
def topology_show(engine: dict[str, Any]) -> None:
    """Print a topology whole, as YAML, with every default filled in."""
    from pageant.scripts.commands import topology as command

    command.show(engine)


@topology_app.command("draw", cls=EngineCommand)
@with_engine_options
def topology_draw(engine: dict[str, Any]) -> None:
    """Draw which actors live on which node, and who talks to whom."""
    from pageant.scripts.commands import topology as command

    command.draw(engine)


@app.command(cls=PlainCommand)
def protocol() -> None:
    """Print the protocol's schema: JSON Schema of every message, the envelope and the handshake."""
    import json

    from pageant.protocol.schema import schema

    print(json.dumps(schema(), indent=1))


@app.command(cls=PlainCommand)
def keys(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="Where to write it; never over what is there.")
    ] = Path("pageant.key"),
) -> None:
    """Make the key of a topology whose nodes are on several hosts: each node needs this file."""
    from pageant.actors.runtime.transport.keys import make_keys, write_keys

    try:
        write_keys(file, make_keys())
    except FileExistsError:
        typer.echo(
            f"pageant: {file} is there already, and a key is never overwritten; name a new file", err=True
        )
        raise typer.Exit(1) from None
    except OSError as error:
        typer.echo(f"pageant: {file}: {error.strerror}", err=True)
        raise typer.Exit(1) from None
    typer.echo(
        f"{file}: copy it to every host, and name it there: --keys {file.name}; in the topology: keys: {file.name}"
    )


@app.command("help", cls=PlainCommand)
def help_(
    command: Annotated[
        list[str] | None, typer.Argument(metavar="COMMAND", help="Such as serve, or bench latency.")
    ] = None,
) -> None:
    """Show what a command does and takes: the same as `pageant COMMAND --help`."""
    app([*(command or ()), "--help"])


@app.command(cls=PlainCommand)
def node(
    join: Annotated[
        str, typer.Option(metavar="ADDRESS", help="The root node's, such as tcp://10.0.0.1:5700.")
    ],
    name: Annotated[str, typer.Option(help="This node's name in the topology.")],
    keys: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The topology's key, made by `pageant keys`.")
    ] = None,
    endpoint: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS", help="Where this node listens. [default: where the root's host can reach it]"
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the random generators of its actors.")] = 0,
    wire_always: Annotated[bool, typer.Option(help="Encode messages within the node, too.")] = False,
    rejoin_seconds: Annotated[
        float,
        typer.Option(help="How long it tries to join again when it has lost the topology; 0 ends at once."),
    ] = 120.0,
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], typer.Option(help="What is told of its own work.")
    ] = "warning",
    log_format: Annotated[Literal["text", "json"], typer.Option(help="How it is told.")] = "text",
    detached: Annotated[bool, typer.Option(hidden=True)] = True,
) -> None:
    """Join a topology as one of its nodes, which ends with the topology or at a signal."""
    from pageant.actors.runtime.process import main as run_node

    _find_classes_here()
    given = {
        **{"join": join, "name": name, "keys": keys, "endpoint": endpoint, "seed": seed},
        **{"rejoin-seconds": rejoin_seconds, "log-level": log_level, "log-format": log_format},
    }
    arguments = [f"--{option}={value}" for option, value in given.items() if value is not None]
    arguments += ["--wire-always"] * wire_always
    raise typer.Exit(run_node([*arguments, "--detached"]))


@app.command(cls=PlainCommand)
def swap(
    actor: Annotated[str, typer.Argument(metavar="ACTOR", help="Such as scheduler, or executor/0.")],
    cls: Annotated[
        str, typer.Argument(metavar="CLASS", help="module:Class; without it the class stays.")
    ] = "",
    options: Annotated[str, typer.Option(help="A JSON object, laid over the present options.")] = "",
    topology: Annotated[
        str | None, typer.Option(help="Its name or process id, where several run here.")
    ] = None,
    keys: Annotated[str | None, typer.Option(help="The file with the topology's key, if it has one.")] = None,
) -> None:
    """Go on with another class or other options of an actor while it serves; no request is lost."""
    from pageant.scripts.commands import swap as command

    if not command.swap(actor, cls, options, topology, keys):
        raise typer.Exit(1)


@app.command(cls=PlainCommand)
def record(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A new file.")],
    topology: Annotated[
        str | None, typer.Option(help="Its name or process id, where several run here.")
    ] = None,
    seconds: Annotated[
        float | None, typer.Option(min=0.0, help="For so long; without it until Ctrl-C or SIGTERM.")
    ] = None,
    texts: Annotated[
        bool, typer.Option(help="Keep prompts, outputs and what else is text. Without, only token ids.")
    ] = False,
    kind: Annotated[
        list[str] | None,
        typer.Option(help="Keep messages of this kind, or * for all; may be given several times."),
    ] = None,
    keys: Annotated[str | None, typer.Option(help="The file with the topology's key, if it has one.")] = None,
) -> None:
    """Keep what the actors of a running topology are told, for `pageant replay`."""
    from pageant.scripts.commands import record as command

    command.record(file, topology, seconds, texts=texts, kinds=kind, keys=keys)


@app.command(cls=EngineCommand)
@with_engine_options
def replay(
    engine: dict[str, Any],
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A recording.")],
    policy: Annotated[str | None, typer.Option(help="Another policy of the scheduler.")] = None,
    scheduler: Annotated[str | None, typer.Option(help="Another scheduler, module:Class.")] = None,
    speed: Annotated[float, typer.Option(help="2 asks twice as fast as it was.")] = 1.0,
    at_once: Annotated[bool, typer.Option(help="Ask everything at once.")] = False,
    real: Annotated[
        bool,
        typer.Option(help="In real time, with a model, not in simulated time with what it said."),
    ] = False,
    replica: Annotated[str | None, typer.Option(help="Of which model, if several were served.")] = None,
    requests: Annotated[bool, typer.Option(help="Tell of each request too (in the JSON).")] = False,
    json: Figures = None,
) -> None:
    """Ask of another topology what a recorded one was asked, and show how the two differ."""
    from pageant.scripts.commands import replay as command

    command.replay(
        *(file, engine),
        policy=policy,
        scheduler=scheduler,
        speed=None if at_once else speed,
        real=real,
        replica=replica,
        requests=requests,
        json=json,
    )


@app.command(cls=PlainCommand)
def ps(json: Json = False) -> None:
    """List the topologies that run here: nodes and actors, with processes, incarnations and restarts."""
    from pageant.scripts.commands import ps as command

    command.ps(as_json=json)


@app.command(cls=PlainCommand)
def doctor(
    model: Annotated[
        str | None, typer.Argument(metavar="MODEL", help="A checkpoint's folder or a hub id to look at, too.")
    ] = None,
    json: Json = False,
) -> None:
    """Say what was found here (devices, compilers, versions), and what that means."""
    from pageant.scripts.commands import doctor as command

    command.doctor(model, as_json=json)


@app.command(cls=EngineCommand)
@with_engine_options
def chaos(
    engine: dict[str, Any],
    minutes: Annotated[float, typer.Option(help="Minutes of random kills, after one of each process.")] = 1.0,
    requests: Annotated[int, typer.Option(help="Requests that are open at a time.")] = 64,
    tokens: Annotated[int, typer.Option(help="Output tokens of a request, about.")] = 200,
    random_seed: Annotated[int, typer.Option(help="Seed of the draw of who is killed when.")] = 0,
    cut: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            help="Instead, pull the cable of each of three hosts for so long. They are network namespaces: root only.",
        ),
    ] = None,
    poison: Annotated[
        int | None,
        typer.Option(
            metavar="REQUESTS",
            help="Instead, send so many hostile schemas, expressions and grammars from ten clients, over the minutes.",
        ),
    ] = None,
    json: Figures = None,
) -> None:
    """Kill or stop the processes of a topology while requests stream, and see that no token is lost or changed."""
    from pageant.scripts.chaos.cutting import cut as pull
    from pageant.scripts.chaos.poison import poison as feed
    from pageant.scripts.chaos.run import chaos as command

    if cut is not None:
        raise typer.Exit(1 if pull(engine, seconds=cut, requests=requests, tokens=tokens, path=json) else 0)
    if poison is not None:
        raise typer.Exit(1 if feed(engine, requests=poison, seconds=minutes * 60, path=json) else 0)
    missed = command(engine, minutes=minutes, requests=requests, tokens=tokens, seed=random_seed, path=json)
    raise typer.Exit(1 if missed else 0)


@app.command(cls=PlainCommand)
def conformance(
    kind: Annotated[
        str,
        typer.Argument(
            metavar="KIND",
            help="blocks, detokenizer, drafter, executor, grammar, policy, pool, scheduler or tokenizer.",
        ),
    ],
    name: Annotated[str, typer.Argument(metavar="CLASS", help="Your class, as module:Class.")],
) -> None:
    """Hold a class of your own against the rules of its conversation."""
    from pageant.scripts.conformance import run as check

    _find_classes_here()
    report = check(kind, name)
    print(report)
    raise typer.Exit(0 if report.passed else 1)


def main() -> int:
    """Runs a command. What is the user's to mend is told in a few lines, without a traceback."""
    from pageant.protocol.errors import PageantError

    # Asked to end, the process ends in order: nothing of a topology is left behind.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        app()
    except PageantError as error:
        if os.environ.get("PAGEANT_DEBUG"):
            raise
        print(f"pageant: {error}", file=sys.stderr)
        if getattr(error, "__notes__", None):
            print("pageant: with --log-level debug the log has the traceback", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return 130
    return 0
