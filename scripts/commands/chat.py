"""`pageant chat`: a conversation in the terminal."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from pageant.actors.frontend.engine import Engine
from pageant.protocol.errors import PageantError
from pageant.protocol.sampling import SamplingParams
from pageant.scripts.commands.run import start


def chat(engine_arguments: dict[str, Any], params: SamplingParams, system: str | None) -> None:
    """Reads a line, streams the answer, until the end of the input.

    Ctrl-C during an answer aborts it and keeps the session; at the prompt it ends the session.
    """
    messages: list[dict[str, str]] = [{"role": "system", "content": system}] if system else []
    with asyncio.Runner() as runner:
        engine = runner.run(start(engine_arguments))
        try:
            if sys.stdin.isatty():
                print(f"{engine.model_name}. Ctrl-C ends an answer, Ctrl-D the session.", file=sys.stderr)
            while (line := _read()) is not None:
                if line.strip():
                    messages.append({"role": "user", "content": line})
                    _take_turn(runner, engine, messages, params)
        finally:
            runner.run(engine.close())


def _read() -> str | None:
    """The next line, or None at the end."""
    try:
        return input("> " if sys.stdin.isatty() else "")
    except (EOFError, KeyboardInterrupt):
        return None


def _take_turn(
    runner: asyncio.Runner, engine: Engine, messages: list[dict[str, str]], params: SamplingParams
) -> None:
    """One answer, added to the conversation; an interrupted one as far as it came."""
    spoken: list[str] = []
    try:
        runner.run(_stream(engine, messages, params, spoken))
    except KeyboardInterrupt:
        print(" [interrupted]", file=sys.stderr)
    except PageantError as error:  # such as a conversation that has grown too long: the session goes on
        print(f"pageant: {error}", file=sys.stderr)
        messages.pop()
        return
    messages.append({"role": "assistant", "content": "".join(spoken)})


async def _stream(
    engine: Engine, messages: list[dict[str, str]], params: SamplingParams, spoken: list[str]
) -> None:
    async for output in engine.chat(messages, params):
        text = output.outputs[0].new_text
        spoken.append(text)
        print(text, end="", flush=True)
    print()
