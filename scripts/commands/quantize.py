"""`pageant quantize`: a model's weights in 8 or 4 bits, in files that other engines read too."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer

from pageant.models.errors import CheckpointError
from pageant.protocol.errors import ArgumentError

__all__ = ["quantize"]

_OPTIONS = {
    "sequences": "sequences",
    "length": "sequence-length",
    "act_order": "act-order",
    "damping": "damping",
}
"""The command's names of fields."""
_LINES = 10  # of progress, where it is not shown in place


def quantize(
    model: str,
    out: str,
    scheme: str,
    calibrate: Path | None,
    reading: Mapping[str, Any],
    solving: Mapping[str, Any],
    **options: Any,
) -> None:
    """Quantise, with progress on standard error; say why not and end with 1.

    reading: fields of `Calibration`, None where one was not given; solving: those of `Solving`. options: see
    `quantizer.quantize`.
    """
    from pageant.models.quantizing.calibration import Calibration
    from pageant.models.quantizing.layerwise import Solving
    from pageant.models.quantizing.quantizer import quantize as write

    progress = _Progress()
    given = {name: value for name, value in reading.items() if value is not None}
    settings = {name: value for name, value in solving.items() if value is not None}
    try:
        if calibrate is None and (given or settings):
            name = _OPTIONS[next(iter(given | settings))]
            raise ArgumentError(name, "found without calibrate; expected a file of texts beside it")
        if calibrate is not None:
            options |= {"calibrate": Calibration(calibrate, **given), "solving": Solving(**settings)}
        written = write(model, out, scheme, progress=progress, **options)
    except (CheckpointError, ArgumentError) as error:
        progress.end()
        print(f"pageant: {error}", file=sys.stderr)
        raise typer.Exit(1) from None
    progress.end()
    print(written.description)


class _Progress:
    """Says how far it is: in place on a terminal, or in a few lines."""

    def __init__(self) -> None:
        self._in_place = sys.stderr.isatty()
        self._open = False

    def __call__(self, done: int, total: int, name: str) -> None:
        """Take that `done` of `total` matrices are written, `name` the last."""
        text = f"{done} of {total} matrices, {name}"
        if self._in_place:
            print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)
            self._open = True
        elif done * _LINES // total > (done - 1) * _LINES // total:
            print(text, file=sys.stderr, flush=True)

    def end(self) -> None:
        """End the line, if one is open."""
        if self._open:
            print(file=sys.stderr)
            self._open = False
