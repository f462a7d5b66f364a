"""Commands about topologies that run, or are to run: check, show, draw, keys, node, swap and ps."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from pageant.scripts.command_line.shared import Json, find_classes_here
from pageant.scripts.engine_options import with_engine_options


@with_engine_options
def topology_check(engine: dict[str, Any]) -> None:
    """Find what is wrong with a topology, before anything loads."""
    from pageant.scripts.commands import topology as command

    command.check(engine)


@with_engine_options
def topology_show(engine: dict[str, Any]) -> None:
    """Print a topology whole, as YAML, with every default filled in."""
    from pageant.scripts.commands import topology as command

    command.show(engine)


@with_engine_options
def topology_draw(engine: dict[str, Any]) -> None:
    """Draw which actors live on which node, and who talks to whom."""
    from pageant.scripts.commands import topology as command

    command.draw(engine)


@with_engine_options
def kubernetes(
    engine: dict[str, Any],
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="The topology; the same as --topology.")
    ] = None,
    name: Annotated[str, typer.Option(help="What the names of all objects begin with.")] = "pageant",
    image: Annotated[
        str, typer.Option(help="An image of Pageant, with the classes that the topology names.")
    ] = "pageant:latest",
    claim: Annotated[
        str | None, typer.Option(help="A PersistentVolumeClaim with the models, mounted read-only.")
    ] = None,
    claim_path: Annotated[str, typer.Option(help="Where its content is in the pods.")] = "/models",
    memory: Annotated[str | None, typer.Option(help="Memory that each pod asks for, such as 16Gi.")] = None,
    patience: Annotated[
        int, typer.Option(help="Seconds that requests have to end where they are, when a replica is drained.")
    ] = 30,
    key_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The topology's key, made by `pageant keys`. [default: a new key]"),
    ] = None,
) -> None:
    """Print a topology's manifests for Kubernetes: a pod for the root, and one for each node that computes."""
    from pageant.scripts.commands import kubernetes as command
    from pageant.scripts.kubernetes.manifests import Wanted

    wanted = Wanted(name, image, claim=claim, claim_path=claim_path, memory=memory, patience=patience)
    print(command.manifests(engine, file, wanted, key_file), end="")


def protocol() -> None:
    """Print the protocol's schema: JSON Schema of every message, the envelope and the handshake."""
    import json

    from pageant.protocol.schema import schema

    print(json.dumps(schema(), indent=1))


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

    find_classes_here()
    given = {
        **{"join": join, "name": name, "keys": keys, "endpoint": endpoint, "seed": seed},
        **{"rejoin-seconds": rejoin_seconds, "log-level": log_level, "log-format": log_format},
    }
    arguments = [f"--{option}={value}" for option, value in given.items() if value is not None]
    arguments += ["--wire-always"] * wire_always
    raise typer.Exit(run_node([*arguments, "--detached"]))


def swap(
    actor: Annotated[str, typer.Argument(metavar="ACTOR", help="Such as scheduler, or executor/0.")],
    cls: Annotated[
        str, typer.Argument(metavar="CLASS", help="module:Class; without it the class stays.")
    ] = "",
    options: Annotated[str, typer.Option(help="A JSON object, laid over the present options.")] = "",
    topology: Annotated[
        str | None,
        typer.Option(
            help="Its name or process id, where several run here; elsewhere its address, as tcp://10.0.0.1:5700."
        ),
    ] = None,
    keys: Annotated[str | None, typer.Option(help="The file with the topology's key, if it has one.")] = None,
) -> None:
    """Go on with another class or other options of an actor while it serves; no request is lost."""
    from pageant.scripts.commands import swap as command

    if not command.swap(actor, cls, options, topology, keys):
        raise typer.Exit(1)


def ps(json: Json = False) -> None:
    """List the topologies that run here: nodes and actors, with processes, incarnations and restarts."""
    from pageant.scripts.commands import ps as command

    command.ps(as_json=json)
