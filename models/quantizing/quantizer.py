"""Quantises a checkpoint: `quantize`, which `pageant quantize` calls."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from torch import Tensor

from pageant.models.checkpoint import Checkpoint, resolve
from pageant.models.errors import CheckpointError
from pageant.models.mapped_files import MappedFiles
from pageant.models.quantizing.calibration import Calibration, read_sequences
from pageant.models.quantizing.folder import appearing_whole, copy_others, refuse_existing
from pageant.models.quantizing.layerwise import Solving, round_by_layers
from pageant.models.quantizing.packing import pack, part_layouts
from pageant.models.quantizing.rounded import Rounded, check_finite, round_off
from pageant.models.quantizing.rounding import choose_scales, round_to_codes
from pageant.models.quantizing.schemes import Scheme, choose_scheme, quantization_config
from pageant.models.quantizing.shards import SHARD_BYTES, Layout, ShardWriter
from pageant.models.quantizing.targets import Selection, Target, select

__all__ = ["Progress", "Quantized", "quantize"]

Progress = Callable[[int, int, str], None]
"""Called with the matrices that are done, their number, and the module at hand."""


@dataclass(frozen=True, slots=True)
class Quantized:
    """A checkpoint that was written."""

    path: Path
    scheme: Scheme
    matrices: int
    """Linear maps that were quantised."""
    num_bytes: int
    """Bytes of its tensors."""
    num_bytes_before: int
    """Bytes of the original's tensors."""
    error: float
    """Norm of all that rounding changed, as a share of the norm of all weights that were quantised."""
    tokens: int | None
    """The most tokens of calibration that a matrix saw; None without calibration."""
    unseen: int
    """Experts that saw none of them: their weights were rounded to the nearest."""

    @property
    def description(self) -> str:
        """Return one line for a user."""
        size = self.scheme.group_size
        scales = "each row" if size is None else f"{size} inputs"
        how = "rounded to the nearest" if self.tokens is None else f"by GPTQ with {self.tokens} tokens"
        unseen = f"; {self.unseen} matrices of experts saw none of them" if self.unseen else ""
        return (
            f"{self.path}: {self.matrices} matrices in {self.scheme.bits} bits with a scale for {scales}, "
            f"{how}{unseen}; "
            f"{self.num_bytes / 1e6:.1f} MB of weights, from {self.num_bytes_before / 1e6:.1f} MB; "
            f"weights are off by {self.error:.2%} of their norm"
        )


def quantize(
    model: str | Path,
    out: str | Path,
    scheme: str,
    *,
    group_size: int | None = None,
    ignore: Sequence[str] = (),
    calibrate: Calibration | str | Path | None = None,
    solving: Solving | None = None,
    shard_bytes: int = SHARD_BYTES,
    progress: Progress | None = None,
) -> Quantized:
    """Write a quantised checkpoint of a model into a new folder, in compressed-tensors' format.

    Each weight is rounded to the nearest code, or by GPTQ where there are texts to calibrate by.
    Embeddings, heads and routers stay as they are. One matrix is in memory at a time, or one layer and the texts'
    hidden states. The folder appears when it is whole.

    Args:
        model: A checkpoint's folder, or a model's id on the hub, of an architecture in `models/architectures`.
        out: The new folder.
        scheme: "w4a16", "w8a16", "w8a8", "int8" or "int4".
        group_size: Inputs that share a scale; -1 is a whole row, and None the scheme's own.
        ignore: Modules to leave as they are, by name, or as regular expressions after "re:".
        calibrate: A file of texts like those that the model will see; see `calibration`.
        solving: Settings of GPTQ.
        shard_bytes: The most bytes of tensors in a file.

    Raises:
        CheckpointError: The model cannot be read or quantised, or the folder cannot be written.
        ArgumentError: Another argument makes no sense.
    """
    target = Path(out).expanduser().absolute()
    refuse_existing(target)
    checkpoint = Checkpoint(resolve(str(model)))
    if checkpoint.is_gguf:
        raise CheckpointError(
            Path(model), "a GGUF file", "a checkpoint of safetensors", "Quantise the original checkpoint."
        )
    checkpoint.check()
    selection = select(checkpoint, ignore)
    chosen = choose_scheme(scheme, group_size, selection.targets)
    found = _to_nearest(selection.targets, chosen)
    solving = solving or Solving()
    if calibrate is not None:
        if not checkpoint.spec().is_causal:
            raise CheckpointError(
                checkpoint.path,
                "an encoder, whose tokens see those that follow",
                "a decoder, where texts calibrate",
                "Leave calibrate out.",
            )
        sequences = _sequences(checkpoint, calibrate)
        found = round_by_layers(checkpoint, selection, chosen, sequences, solving)
    units = list(_units(checkpoint, selection, chosen))
    num_bytes = sum(layout.num_bytes for unit in units for layout in unit)
    tally = _Tally(len(selection.targets), progress)
    with appearing_whole(target, num_bytes) as folder:
        copy_others(checkpoint.path, folder)
        with ShardWriter(folder, units, shard_bytes) as writer:
            _copy_dense(checkpoint, selection, writer)
            for rounded in tally.counted(found):
                for name, part in pack(rounded.target.name, rounded.codes, rounded.scales, chosen).items():
                    writer.write(name, part)
            writer.finish()
        # A folder without a configuration is no checkpoint: it comes last.
        act_order = calibrate is not None and solving.act_order
        section = quantization_config(chosen, selection.ignored, act_order=act_order)
        config = {**checkpoint.config, "quantization_config": section}
        (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    sizes = (num_bytes, checkpoint.num_bytes)
    return Quantized(target, chosen, tally.total, *sizes, tally.error, tally.tokens, tally.unseen)


def _sequences(checkpoint: Checkpoint, calibrate: Calibration | str | Path) -> list[list[int]]:
    """Read the texts of calibration: token ids of each."""
    if not isinstance(calibrate, Calibration):
        calibrate = Calibration(Path(calibrate).expanduser())
    spec = checkpoint.spec()
    calibrate = replace(calibrate, length=min(calibrate.length, spec.max_model_len))
    return read_sequences(calibrate, checkpoint.path, spec.vocab_size)


def _units(checkpoint: Checkpoint, selection: Selection, scheme: Scheme) -> Iterator[list[Layout]]:
    """Yield the tensors of the new files, those of a module together."""
    targets = selection.by_tensor
    for name, info in checkpoint.saved_tensors.items():
        target = targets.get(name)
        if target is None:
            yield [Layout(name, info.dtype, info.shape)]
        else:
            yield part_layouts(target.name, target.outputs, target.inputs, scheme)


def _copy_dense(checkpoint: Checkpoint, selection: Selection, writer: ShardWriter) -> None:
    targets = selection.by_tensor
    for name, info in checkpoint.saved_tensors.items():
        if name not in targets:
            writer.copy(info)


def _to_nearest(targets: Iterable[Target], scheme: Scheme) -> Iterator[Rounded]:
    """Round matrices to the nearest codes, one after another."""
    for target in targets:
        weight = _read(target)
        scales = choose_scales(weight, scheme)
        yield round_off(target, weight, round_to_codes(weight, scales, scheme), scales)


def _read(target: Target) -> Tensor:
    """Return a matrix of a checkpoint, float32 [outputs, inputs]. Raises CheckpointError."""
    with MappedFiles() as files:
        weight = files.read(target.info)
        check_finite(target.info, weight)
        return (weight.T if target.place.transposed else weight).float().contiguous()


class _Tally:
    """Counts matrices and errors, and reports progress."""

    def __init__(self, total: int, progress: Progress | None) -> None:
        self.total = total
        self._progress = progress
        self._done, self._error, self._norm = 0, 0.0, 0.0
        self.tokens: int | None = None
        self.unseen = 0

    def counted(self, found: Iterable[Rounded]) -> Iterator[Rounded]:
        """Yield all, each counted when it has been used."""
        for rounded in found:
            yield rounded
            self._done += 1
            self._error += rounded.error
            self._norm += rounded.norm
            if rounded.tokens is not None:
                self.tokens = max(self.tokens or 0, rounded.tokens)
                self.unseen += rounded.tokens == 0
            if self._progress is not None:
                self._progress(self._done, self.total, rounded.target.name)

    @property
    def error(self) -> float:
        """See `Quantized.error`."""
        return float((self._error / self._norm) ** 0.5) if self._norm else 0.0
