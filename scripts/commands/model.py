"""`pageant model`: asks the lifecycle actor of a topology that runs here."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from pageant.protocol.errors import PageantError
from pageant.protocol.lifecycle import (
    AddAdapter,
    GetModelState,
    ModelState,
    PauseMode,
    PauseModel,
    RemoveAdapter,
    ResetModelCache,
    ResumeModel,
    SleepModel,
    UpdateWeights,
    WakeModel,
)
from pageant.protocol.message import Request
from pageant.scripts.help_text import Commands, PlainCommand

model_app = typer.Typer(
    cls=Commands,
    rich_markup_mode=None,
    help="Change how a running topology serves a model.",
    no_args_is_help=True,
)

LIFECYCLE = "lifecycle"
ANSWER_SECONDS = 120.0
DRAIN_SECONDS = 7 * 86_400.0

Model = Annotated[str, typer.Option(help="Its key under models:, where the topology has several.")]
Which = Annotated[str | None, typer.Option(help="The topology's name or process id, where several run here.")]
Keys = Annotated[str | None, typer.Option(help="The file with the topology's key, if it has one.")]


@model_app.command(cls=PlainCommand)
def state(model: Model = "", topology: Which = None, keys: Keys = None) -> None:
    """Say how the model is served."""
    print(_described(_ask(GetModelState(replica=_replica(model)), topology, keys)))


@model_app.command(cls=PlainCommand)
def pause(
    mode: Annotated[
        str, typer.Option(help="What becomes of open requests: abort, wait (they end first) or keep.")
    ] = "abort",
    clear_cache: Annotated[bool, typer.Option(help="Forget all cached prefixes.")] = True,
    model: Model = "",
    topology: Which = None,
    keys: Keys = None,
) -> None:
    """Compute nothing more until it is resumed. Requests that come meanwhile wait."""
    request = PauseModel(replica=_replica(model), mode=_mode(mode), clear_cache=clear_cache)
    print(_described(_ask(request, topology, keys, DRAIN_SECONDS)))


@model_app.command(cls=PlainCommand)
def resume(model: Model = "", topology: Which = None, keys: Keys = None) -> None:
    """Go on after a pause."""
    print(_described(_ask(ResumeModel(replica=_replica(model)), topology, keys)))


@model_app.command(cls=PlainCommand)
def sleep(
    level: Annotated[int, typer.Option(min=1, max=2, help="1 keeps the weights in the host's memory.")] = 1,
    mode: Annotated[str, typer.Option(help="What becomes of open requests: abort, wait or keep.")] = "abort",
    model: Model = "",
    topology: Which = None,
    keys: Keys = None,
) -> None:
    """Give back the memory of KV cache and weights until it is woken."""
    request = SleepModel(replica=_replica(model), level=1 if level == 1 else 2, mode=_mode(mode))
    print(_described(_ask(request, topology, keys, DRAIN_SECONDS)))


@model_app.command("wake-up")
def wake_up(model: Model = "", topology: Which = None, keys: Keys = None) -> None:
    """Compute again after a sleep."""
    print(_described(_ask(WakeModel(replica=_replica(model)), topology, keys, DRAIN_SECONDS)))


@model_app.command("update-weights")
def update_weights(
    folder: Annotated[str, typer.Argument(help="A checkpoint of the same shape.")],
    version: Annotated[
        str | None, typer.Option(help="What they are to be called. [default: its name]")
    ] = None,
    mode: Annotated[str, typer.Option(help="What becomes of open requests: abort, wait or keep.")] = "keep",
    beside: Annotated[bool, typer.Option(help="Load them first, if there is memory for both.")] = True,
    model: Model = "",
    topology: Which = None,
    keys: Keys = None,
) -> None:
    """Go on with the weights of another checkpoint."""
    request = UpdateWeights(
        replica=_replica(model),
        folder=str(Path(folder).absolute()),
        version=version,
        mode=_mode(mode),
        beside=beside,
    )
    print(_described(_ask(request, topology, keys, DRAIN_SECONDS)))


@model_app.command("reset-cache")
def reset_cache(
    reset_running: Annotated[bool, typer.Option(help="Running requests compute all again, too.")] = False,
    model: Model = "",
    topology: Which = None,
    keys: Keys = None,
) -> None:
    """Forget all cached prefixes."""
    reset = _ask(
        ResetModelCache(replica=_replica(model), reset_running=reset_running),
        topology,
        keys,
    )
    print(f"{reset.blocks} blocks, and {reset.blocks_below} below the device, are forgotten")


@model_app.command("add-adapter")
def add_adapter(
    adapter: Annotated[str, typer.Argument(metavar="NAME=FOLDER")],
    in_place: Annotated[bool, typer.Option(help="It may take the name of another.")] = False,
    model: Model = "",
    topology: Which = None,
    keys: Keys = None,
) -> None:
    """Load a low-rank adapter, which is served as a model of its name."""
    name, _, folder = adapter.partition("=")
    if not name or not folder:
        raise typer.BadParameter(f"found {adapter!r}; expected NAME=FOLDER", param_hint="ADAPTER")
    request = AddAdapter(
        replica=_replica(model), name=name, folder=str(Path(folder).absolute()), in_place=in_place
    )
    print(_described(_ask(request, topology, keys, DRAIN_SECONDS)))


@model_app.command("remove-adapter")
def remove_adapter(
    name: Annotated[str, typer.Argument()], model: Model = "", topology: Which = None, keys: Keys = None
) -> None:
    """Unload an adapter. Its requests end with an error."""
    print(_described(_ask(RemoveAdapter(replica=_replica(model), name=name), topology, keys)))


def _replica(model: str) -> str:
    return f"{model}/" if model else ""


def _mode(text: str) -> PauseMode:
    match text:
        case "abort" | "wait" | "keep":
            return text
    raise typer.BadParameter(f"found {text!r}; expected abort, wait or keep", param_hint="--mode")


def _described(found: ModelState) -> str:
    says = "awake" if not found.sleep_level else f"asleep (level {found.sleep_level})"
    says += "" if found.paused is None else f", paused ({found.paused})"
    says += f"; weights: {found.weight_version}"
    return f"{says}; adapters: {', '.join(found.adapters)}" if found.adapters else says


def _ask(
    request: Request[Any], topology: str | None, keys: str | None, seconds: float = ANSWER_SECONDS
) -> Any:
    """Ask, or say why not and end with 1."""
    from pageant.actors.runtime.loop import new_event_loop
    from pageant.actors.runtime.visiting import choose, visit

    async def ask(endpoint: str) -> Any:
        async with visit(endpoint, keys) as found:
            await found.look()
            return await found.node.ask(LIFECYCLE, request, seconds, again=True)

    try:
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            return runner.run(ask(choose(topology).endpoint))
    except PageantError as error:
        print(f"pageant: {error}", file=sys.stderr)
        raise typer.Exit(1) from None
