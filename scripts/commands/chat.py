"""`pageant chat`: a conversation in the terminal."""

from __future__ import annotations

import asyncio
import difflib
import json
import sys
import time
from pathlib import Path
from typing import Any

from pageant.actors.client.engine import Engine
from pageant.protocol.errors import BadRequest, PageantError
from pageant.protocol.sampling import SamplingParams
from pageant.scripts.commands.chat_backends import (
    Backend,
    ContextFull,
    EngineBackend,
    Messages,
    ServerBackend,
)
from pageant.scripts.commands.chat_terminal import Lines, has_colours, remark, words
from pageant.scripts.commands.run import start

HELP = {
    "/help": "show this",
    "/clear": "forget the conversation, but for the system message",
    "/system TEXT": "set the system message; without a text, show it",
    "/save FILE": "write the conversation as JSON",
    "/exit": "end the session (as Ctrl-D does)",
}


def chat(
    engine_arguments: dict[str, Any],
    params: SamplingParams,
    system: str | None,
    url: str | None = None,
    api_key: str | None = None,
) -> None:
    """Read a message, stream the answer, until the end of the input.

    Ctrl-C during an answer aborts it and keeps the session; at the prompt it clears the line, and ends the session when
    it comes twice.

    Args:
        url: of a server to talk to, instead of an engine of our own.

    Raises:
        BadRequest: the model has no chat template; nothing was loaded.
    """
    with asyncio.Runner() as runner:
        backend = _open(runner, engine_arguments, url, api_key)
        session = Session(runner, backend, params, system)
        try:
            session.run()
        finally:
            runner.run(backend.close())


def _open(
    runner: asyncio.Runner, engine_arguments: dict[str, Any], url: str | None, api_key: str | None
) -> Backend:
    if url is not None:
        return ServerBackend(url, api_key, engine_arguments.get("served_model_name"))
    if not Engine(**engine_arguments).has_chat_template:
        raise BadRequest(
            f"{engine_arguments.get('model')} has no chat template, so that it cannot take turns; "
            "`pageant run` completes its texts",
            "model",
        )
    return EngineBackend(runner.run(start(engine_arguments)))


class Session:
    """One conversation. `messages` holds the turns, without the system message."""

    def __init__(
        self, runner: asyncio.Runner, backend: Backend, params: SamplingParams, system: str | None
    ) -> None:
        self._runner, self._backend, self._params = runner, backend, params
        self.system = system
        self.messages: Messages = []
        self._colours = has_colours()
        self._lines = Lines(self._colours)

    def run(self) -> None:
        """Take turns until the user ends the session."""
        if sys.stdin.isatty():
            remark(
                f"{self._backend.name}. Ctrl-C ends an answer, Ctrl-D the session; /help lists commands.",
                self._colours,
            )
        try:
            while (line := self._lines.read()) is not None:
                if line.startswith("/"):
                    if not self._command(line.strip()):
                        return
                elif line.strip():
                    self._take_turn(line)
        finally:
            self._lines.close()

    def _command(self, line: str) -> bool:
        """Carry out a command. Return whether the session goes on."""
        name, _, rest = line.partition(" ")
        rest = rest.strip()
        match name:
            case "/exit" | "/quit":
                return False
            case "/help":
                for what, does in HELP.items():
                    self._say(f"{what:<14}{does}")
                self._say("A line that ends in \\ goes on in the next one; pasted lines are one message.")
            case "/clear":
                self.messages.clear()
                self._say("the conversation is empty")
            case "/system":
                self.system = rest or self.system
                self._say(f"system: {self.system or '(none)'}")
            case "/save":
                self._save(rest)
            case _:
                known = [what.partition(" ")[0] for what in HELP]
                near = difflib.get_close_matches(name, known, 1)
                self._say(f"no command {name}; " + (f"did you mean {near[0]}?" if near else "see /help"))
        return True

    def _save(self, name: str) -> None:
        if not name:
            self._say("expected a file: /save FILE")
            return
        try:
            Path(name).expanduser().write_text(
                json.dumps(self._prompt(), indent=1, ensure_ascii=False) + "\n"
            )
        except OSError as error:
            self._say(f"{name}: {error.strerror}")
        else:
            self._say(f"{len(self._prompt())} messages are in {name}")

    def _say(self, text: str) -> None:
        remark(text, self._colours)

    def _prompt(self) -> Messages:
        return ([{"role": "system", "content": self.system}] if self.system else []) + self.messages

    def _take_turn(self, line: str) -> None:
        """Add a message and its answer; an interrupted answer as far as it came."""
        self.messages.append({"role": "user", "content": line})
        spoken: list[str] = []
        try:
            self._answer(spoken)
        except KeyboardInterrupt:
            print(" [interrupted]", file=sys.stderr)
        except PageantError as error:
            print(f"pageant: {error}", file=sys.stderr)
            self.messages.pop()
            return
        self.messages.append({"role": "assistant", "content": "".join(spoken)})

    def _answer(self, spoken: list[str]) -> None:
        """Stream an answer; where the context is full, without the oldest exchanges.

        Raises:
            ContextFull: the last message alone does not fit.
        """
        left_out = 0
        while True:
            try:
                self._runner.run(self._stream(spoken))
                return
            except ContextFull:
                if len(self.messages) < 2:
                    raise
                del self.messages[:2]
                left_out += 2
                self._say(f"the context is full: the oldest {left_out} messages are left out")

    async def _stream(self, spoken: list[str]) -> None:
        out, began, first, tokens = words(), time.perf_counter(), 0.0, 0
        answer = self._backend.answer(self._prompt(), self._params)
        try:
            async for text, count in answer:
                first = first or time.perf_counter()
                tokens = count
                spoken.append(text)
                out.write(text)
        finally:
            if spoken:
                out.end()
        if sys.stdout.isatty() and tokens > 1:
            seconds = time.perf_counter() - first
            rate = (tokens - 1) / seconds if seconds else 0.0
            self._say(f"[{tokens} tokens, {rate:.1f} tokens/s, first after {first - began:.2f} s]")
