"""Commands that answer prompts: run, chat, serve and run-batch."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pageant.scripts.engine_command import all_flags
from pageant.scripts.engine_options import with_adapters, with_engine_options

if TYPE_CHECKING:
    from pageant.protocol.sampling import SamplingParams

Temperature = Annotated[float, typer.Option(help="0 is greedy.")]
TopK = Annotated[int, typer.Option(help="0 keeps all.")]
TopP = Annotated[float, typer.Option(help="1 keeps all.")]
MinP = Annotated[float, typer.Option(help="0 keeps all.")]


def _params(stop: list[str] | None, **given: Any) -> SamplingParams:
    """Return the sampling parameters that a command was given."""
    from pageant.protocol.sampling import SamplingParams

    return SamplingParams(**given, stop=tuple(stop or ()))


@with_engine_options
def run(
    prompt: Annotated[str, typer.Argument(metavar="PROMPT", help="What to ask; - reads standard input.")],
    engine: dict[str, Any],
    system: Annotated[str | None, typer.Option(help="A system message before the prompt.")] = None,
    raw: Annotated[bool, typer.Option(help="Complete the text as it is, without the chat template.")] = False,
    max_tokens: Annotated[int, typer.Option(help="Most tokens of the answer.")] = 256,
    temperature: Temperature = 0.0,
    top_k: TopK = 0,
    top_p: TopP = 1.0,
    min_p: MinP = 0.0,
    stop: Annotated[
        list[str] | None, typer.Option(help="End at this text; may be given several times.")
    ] = None,
    timings: Annotated[bool, typer.Option(help="Say afterwards how long everything took.")] = False,
    pool: Annotated[bool, typer.Option(help="Say afterwards how the KV pool stands.")] = False,
) -> None:
    """Answer one prompt, streaming."""
    from pageant.scripts.commands import run as command

    params = _params(
        stop, max_tokens=max_tokens, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p
    )
    command.run(prompt, engine, params, system=system, raw=raw, timings=timings, pool=pool)


@with_engine_options
def chat(
    engine: dict[str, Any],
    system: Annotated[str | None, typer.Option(help="A system message to begin with.")] = None,
    max_tokens: Annotated[int, typer.Option(help="Most tokens of an answer.")] = 512,
    temperature: Temperature = 0.0,
    top_k: TopK = 0,
    top_p: TopP = 1.0,
    min_p: MinP = 0.0,
    stop: Annotated[
        list[str] | None, typer.Option(help="End an answer at this text; may be given several times.")
    ] = None,
    url: Annotated[
        str | None, typer.Option(help="Talk to this server, such as http://127.0.0.1:8000.")
    ] = None,
    api_key: Annotated[str | None, typer.Option(envvar="OPENAI_API_KEY", help="Key of that server.")] = None,
) -> None:
    """Talk to a model. Ctrl-C ends an answer, Ctrl-D the session; /help lists what else it knows."""
    from pageant.scripts.commands import chat as command

    params = _params(
        stop, max_tokens=max_tokens, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p
    )
    command.chat(engine, params, system, url, api_key)


@with_engine_options
def serve(
    engine: dict[str, Any],
    checkpoint: Annotated[
        str | None,
        typer.Argument(
            metavar="MODEL",
            help="A checkpoint's folder or a hub id, the same as --model; or a topology's file, as --topology.",
        ),
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
    page: Annotated[bool | None, typer.Option(help="Serve the web page at /. [default: yes]")] = None,
    demo: Annotated[
        bool | None, typer.Option(help="Let operators kill actors from the web page. [default: no]")
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
    allowed_media_domains: Annotated[
        list[str] | None,
        typer.Option(
            help="Fetch images and videos of requests from this domain; may be given several times."
        ),
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
        **{"runtime_adapters": runtime_adapters, "page": page, "demo": demo},
        **{"trust_request_chat_template": trust_request_chat_template},
        **{"api_keys": api_key, "operator_keys": operator_key, "cache_scope": cache_scope},
        **{"tool_call_parser": tool_call_parser, "reasoning_parser": reasoning_parser},
        **{"allowed_media_domains": allowed_media_domains},
        **{"allowed_origins": allowed_origin, "ssl_certfile": ssl_certfile, "ssl_keyfile": ssl_keyfile},
    }
    command.serve(with_adapters(engine, adapter or ()), checkpoint, options, drain_seconds, all_flags())


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
