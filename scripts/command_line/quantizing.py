"""The command that writes a quantised checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


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
