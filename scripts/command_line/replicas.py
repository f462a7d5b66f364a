"""`pageant replicas ls | add | drain | remove`: the parameters of each."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from pageant.scripts.help_text import Commands, PlainCommand

replicas_app = typer.Typer(
    cls=Commands,
    rich_markup_mode=None,
    help="Add, drain and remove replicas of a model that is served here.",
    no_args_is_help=True,
)
Name = Annotated[str, typer.Argument(metavar="REPLICA", help="Such as replica-1.")]
Model = Annotated[str | None, typer.Option(help="Its name, where the topology has several models.")]
Where = Annotated[
    str | None,
    typer.Option(
        "--topology",
        help="Its name or process id, where several run here; elsewhere its address, as tcp://10.0.0.1:5700.",
    ),
]
Keys = Annotated[str | None, typer.Option(help="The file with the topology's key, if it has one.")]
Force = Annotated[bool, typer.Option("--force", help="Also the last replica: requests wait for another.")]


@replicas_app.command("ls", cls=PlainCommand)
def ls(model: Model = None, topology: Where = None, keys: Keys = None) -> None:
    """List the replicas, with their states and open requests."""
    from pageant.protocol.replicas import GetReplicas
    from pageant.scripts.commands.replicas import prefix_of

    _carry_out(GetReplicas(model=prefix_of(model)), topology, keys)


@replicas_app.command("add", cls=PlainCommand)
def add(
    name: Annotated[
        str,
        typer.Argument(
            metavar="REPLICA", help="Such as replica-1. [default: the lowest number that is free]"
        ),
    ] = "",
    wait: Annotated[
        bool, typer.Option(help="Return when it takes requests, or as soon as it is being started.")
    ] = True,
    model: Model = None,
    topology: Where = None,
    keys: Keys = None,
) -> None:
    """Start another replica, if there is none of that name; returns when it takes requests."""
    from pageant.protocol.replicas import AddReplica
    from pageant.scripts.commands.replicas import prefix_of

    _carry_out(AddReplica(model=prefix_of(model), name=name, wait=wait), topology, keys)


@replicas_app.command("drain", cls=PlainCommand)
def drain(
    name: Name,
    patience: Annotated[
        float, typer.Option(help="Seconds after which its open requests move to other replicas.")
    ] = 30.0,
    force: Force = False,
    model: Model = None,
    topology: Where = None,
    keys: Keys = None,
) -> None:
    """Give a replica no new requests, and remove it when it has none; no request is lost."""
    from pageant.protocol.replicas import DrainReplica
    from pageant.scripts.commands.replicas import prefix_of

    drained = DrainReplica(model=prefix_of(model), name=name, patience=patience, force=force)
    _carry_out(drained, topology, keys)


@replicas_app.command("remove", cls=PlainCommand)
def remove(
    name: Name, force: Force = False, model: Model = None, topology: Where = None, keys: Keys = None
) -> None:
    """Remove a replica at once; its requests go on at others."""
    from pageant.protocol.replicas import RemoveReplica
    from pageant.scripts.commands.replicas import prefix_of

    _carry_out(RemoveReplica(model=prefix_of(model), name=name, force=force), topology, keys)


def _carry_out(request: Any, topology: str | None, keys: str | None) -> None:
    from pageant.scripts.commands.replicas import carry_out

    if not carry_out(request, topology, keys):
        raise typer.Exit(1)
