"""Joining of a group's members: what each has, and whether that fits together.

Blocking functions, for a member's own thread. The leader asks each member what it has before they meet, so that what
does not fit is refused by its name, and nobody waits in an operation for a member that still loads.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from pageant.actors.executor.groups.meeting import host_id
from pageant.actors.executor.options import ExecutorOptions
from pageant.actors.runtime.devices import local_cores
from pageant.actors.runtime.transport.addresses import own_address
from pageant.actors.runtime.version import VERSION
from pageant.models.checkpoint import Checkpoint
from pageant.protocol.errors import ConfigurationError
from pageant.protocol.ranks import Fingerprint, RankReady

if TYPE_CHECKING:
    from pageant.actors.executor.runners.loaded_model import LoadedModel

__all__ = ["check_alike", "check_cores", "checkpoint_digest", "describe"]

log = logging.getLogger("pageant.executor")

HEADER_BYTES_MAX = 16 << 20
"""The part of a weight file that is compared, at most. The header of another format has no length."""

SAMPLES, SAMPLE_BYTES = 64, 4096
"""How many parts of each weight file are compared, evenly spread over it, and how long they are."""


def describe(options: ExecutorOptions, rank: int, loaded: LoadedModel, endpoints: Sequence[str]) -> RankReady:
    """Return what the leader is to know of a rank.

    Args:
        endpoints: those of the topology's nodes.
    """
    import torch

    level = getattr(loaded.kernels, "level", "")
    fingerprint = Fingerprint(
        pageant=VERSION,
        torch=str(torch.__version__),
        kernels=f"{loaded.kernels.name} {level}".rstrip(),
        dtype=str(loaded.decoder.dtype).removeprefix("torch."),
        quantization=" ".join(filter(None, (options.quantization, options.head_quantization))),
        checkpoint=checkpoint_digest(Path(options.model)),
        members=options.num_members,
    )
    return RankReady(
        rank=rank,
        fingerprint=fingerprint,
        host=host_id(),
        weight_bytes=loaded.num_bytes,
        address=own_address(endpoints),
    )


def checkpoint_digest(folder: Path) -> str:
    """Return a digest of a checkpoint: of its configuration, and of its weight files' headers, sizes and samples.

    Other weights of the same shape, such as another fine-tune's, differ in the samples. A single number that was
    changed may not be seen: each member reads its own share of the files alone, and would have to read all of them.
    """
    digest = blake2b(digest_size=16)
    if (folder / "config.json").exists():
        digest.update((folder / "config.json").read_bytes())
    for path in sorted(Checkpoint(folder).weight_files):
        size = path.stat().st_size
        digest.update(path.name.encode() + size.to_bytes(8, "little"))
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            digest.update(file.read(min(length, HEADER_BYTES_MAX)))
            for sample in range(SAMPLES):
                file.seek(size * sample // SAMPLES)
                digest.update(file.read(SAMPLE_BYTES))
    return digest.hexdigest()


def check_alike(ranks: Sequence[RankReady]) -> None:
    """Refuse a group whose members would compute different models, or different sums.

    Args:
        ranks: all members, the leader first.

    Raises:
        ConfigurationError: names the member and the field in which it differs from the leader.
    """
    first, *others = ranks
    for place, rank in enumerate(others, start=1):
        if rank.rank != place:
            raise ConfigurationError(
                f"executor/{place} says that it is rank {rank.rank}; expected rank {place}"
            )
        for name, expected in msgspec.structs.asdict(first.fingerprint).items():
            found = getattr(rank.fingerprint, name)
            if found != expected:
                raise ConfigurationError(
                    f"executor/{place} has {name} {found!r}; expected {expected!r}, which executor/0 has: all members "
                    "of a group compute one model with the same code"
                )


def check_cores(ranks: Sequence[RankReady], options: ExecutorOptions) -> None:
    """Warn of members that must share cores of the leader's host: they are slower together than one alone.

    Args:
        ranks: all members, the leader first.
    """
    near = sum(rank.host == ranks[0].host for rank in ranks)
    threads, cores = near * (options.num_threads or 1), len(local_cores())
    if options.cores is None and threads > cores:
        log.warning(
            "%d executors of a group have %d threads on the %d cores of this host, and wait for one another",
            *(near, threads, cores),
        )
