"""Agents check: do command lines of coding agents finish a tool loop here? `python -m pageant.scripts.bench.agents`.

    python -m pageant.scripts.bench.agents setup     # npm fetches them, with pinned versions, into the user's cache
    python -m pageant.scripts.bench.agents run

Each is told, by its own settings, where the server is, and is otherwise as it comes. It is asked to read a file with a
word in it; the model, a puppet that does what its prompt says, calls the tool that reads and tells what came of it. The
loop is finished if the word is in the agent's last message.

Nothing leaves the machine: telemetry and updates are off by documented settings, and a proxy on the loopback, which
every other address would be reached through, refuses and reports whatever is tried.
"""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from pageant.scripts.bench.peers.environments import HOME as PEERS_HOME
from pageant.scripts.bench.serving.servers import ComparedServer
from pageant.scripts.puppet import make_puppet

HOME = PEERS_HOME.parent / "agents"
MODEL = "puppet"
SECONDS_MAX = 180.0
NO_PORT = 9  # that of the discard service, which nobody runs
PACKAGES = ("@openai/codex@0.171.0", "@anthropic-ai/claude-code@2.1.197")

Variables = dict[str, str]


@dataclass(frozen=True)
class Agent:
    """A command line.

    Attributes:
        binary: its name among npm's.
        arguments: without the prompt, which comes last.
        tool: a call that reads a file, as the puppet is told to make it.
        configure: writes settings into the folder that is its home, and returns variables; given the server's URL.
    """

    binary: str
    arguments: tuple[str, ...]
    tool: Callable[[Path], str]
    configure: Callable[[Path, str], Variables]


def _configure_codex(home: Path, url: str) -> Variables:
    settings = f"""\
model = "{MODEL}"
model_provider = "pageant"
check_for_update_on_startup = false
[analytics]
enabled = false
[features]  # these two fetch lists from the network
plugins = false
apps = false
[model_providers.pageant]
name = "pageant"
base_url = "{url}/v1"
wire_api = "responses"
"""
    folder = home / ".codex"
    folder.mkdir()
    (folder / "config.toml").write_text(settings)
    return {"CODEX_HOME": str(folder)}


def _configure_claude_code(home: Path, url: str) -> Variables:
    off = ("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "DISABLE_TELEMETRY", "DISABLE_ERROR_REPORTING")
    models = ("ANTHROPIC_MODEL", "ANTHROPIC_DEFAULT_HAIKU_MODEL")
    return {
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_AUTH_TOKEN": "none",
        "CLAUDE_CONFIG_DIR": str(home / ".claude"),
        "DISABLE_AUTOUPDATER": "1",
        **dict.fromkeys(off, "1"),
        **dict.fromkeys(models, MODEL),
    }


AGENTS = {
    "codex": Agent(
        binary="codex",
        arguments=("exec", "--skip-git-repo-check"),
        tool=lambda file: f'CALL:exec_command WITH:{{"cmd": "cat {file.name}"}}:END',
        configure=_configure_codex,
    ),
    "claude-code": Agent(
        binary="claude",
        arguments=("--print",),
        tool=lambda file: f'CALL:Read WITH:{{"file_path": "{file}"}}:END',
        configure=_configure_claude_code,
    ),
}


class RefusingProxy:
    """Refuses whatever comes, and keeps what it was asked for."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.tried: list[str] = []
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with suppress(OSError):  # it is closed
            while True:
                connection, _ = self._listener.accept()
                with connection, suppress(OSError):
                    connection.settimeout(5.0)
                    self.tried.append(connection.recv(4096).split(b"\r\n")[0].decode(errors="replace"))
                    connection.sendall(b"HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\n\r\n")

    def close(self) -> None:
        """Stop listening."""
        self._listener.close()


@contextmanager
def refusing_proxy() -> Iterator[RefusingProxy]:
    """A proxy, and its end."""
    proxy = RefusingProxy()
    try:
        yield proxy
    finally:
        proxy.close()


def _variables(home: Path, proxy: str) -> Variables:
    """Return what a process needs to run, and nothing of the user's own settings."""
    kept = {name: os.environ[name] for name in ("PATH", "LANG", "TERM") if name in os.environ}
    names = ("http_proxy", "https_proxy", "all_proxy")
    through = {name: proxy for each in names for name in (each, each.upper())}
    direct = dict.fromkeys(("no_proxy", "NO_PROXY"), "127.0.0.1,localhost")
    return {**kept, **through, **direct, "HOME": str(home)}


@dataclass(frozen=True)
class Outcome:
    """Outcome of a tool loop: whether it was finished, what was tried elsewhere, and what the agent wrote."""

    finished: bool
    tried: list[str]
    written: str


def drive(name: str, url: str, binaries: Path) -> Outcome:
    """Have an agent read a file."""
    agent, word = AGENTS[name], secrets.token_hex(8)
    with tempfile.TemporaryDirectory() as folder, refusing_proxy() as proxy:
        home, work = Path(folder) / "home", Path(folder) / "work"
        home.mkdir()
        work.mkdir()
        file = work / "note.txt"
        file.write_text(f"The word is {word}.\n")
        environment: Mapping[str, str] = _variables(home, proxy.url) | agent.configure(home, url)
        try:
            ran = subprocess.run(
                [binaries / agent.binary, *agent.arguments, agent.tool(file)],
                cwd=work,
                env=environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=SECONDS_MAX,
            )
        except subprocess.TimeoutExpired:
            return Outcome(False, proxy.tried, f"it took more than {SECONDS_MAX:.0f} seconds")
        finished = ran.returncode == 0 and word in ran.stdout
        return Outcome(finished, list(proxy.tried), ran.stdout + ran.stderr)


app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, add_completion=False)
Home = Annotated[Path, typer.Option(help="Where the agents are installed.")]


@app.command()
def setup(home: Home = HOME) -> None:
    """Fetch the agents by npm, with pinned versions."""
    home.mkdir(parents=True, exist_ok=True)
    command = ["npm", "install", "--prefix", str(home), "--no-audit", "--no-fund", *PACKAGES]
    subprocess.run(command, check=True)


@app.command()
def run(home: Home = HOME) -> None:
    """Have each agent finish a tool loop; exit with status 1 where one does not, or reaches for the network."""
    binaries, failed = home / "node_modules" / ".bin", False
    if missing := [name for name, agent in AGENTS.items() if not (binaries / agent.binary).exists()]:
        raise SystemExit(
            f"{', '.join(missing)}: not in {home}; `python -m pageant.scripts.bench.agents setup` fetches them"
        )
    with tempfile.TemporaryDirectory() as folder:
        model = make_puppet(Path(folder) / MODEL)
        with ComparedServer("pageant", model, PEERS_HOME) as server:
            for name, agent in AGENTS.items():
                command: list[str | Path] = [binaries / agent.binary, "--version"]
                nowhere = _variables(Path(folder), f"http://127.0.0.1:{NO_PORT}")
                version = subprocess.run(command, env=nowhere, capture_output=True, text=True).stdout.strip()
                outcome = drive(name, server.url, binaries)
                failed |= not outcome.finished or bool(outcome.tried)
                typer.echo(f"{name:12} {version:24} {'finished' if outcome.finished else 'NOT FINISHED'}")
                for one in outcome.tried:
                    typer.echo(f"  refused: {one}")
                if not outcome.finished:
                    typer.echo(outcome.written[-4000:])
    raise typer.Exit(int(failed))


if __name__ == "__main__":
    app()
