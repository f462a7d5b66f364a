"""A device's tensors whose memory is given back for a while, with what they hold kept in the host's memory."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

__all__ = ["Parked"]


class Parked:
    """Moves what tensors hold to the host, and back. The tensors, and all views of them, stay as they are otherwise.

    Meanwhile they have no memory: whoever reads them fails.

    Args:
        tensors: of one device. Those that share memory are moved once. Mutated.
    """

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        self._kept: list[tuple[torch.UntypedStorage, Tensor]] = []
        seen: set[int] = set()
        for tensor in tensors:
            storage = tensor.untyped_storage()
            if storage.nbytes() == 0 or storage.data_ptr() in seen:
                continue
            seen.add(storage.data_ptr())
            held = _bytes_of(storage, tensor.device)
            host = torch.empty(len(held), dtype=torch.uint8, pin_memory=tensor.is_cuda)
            host.copy_(held)
            del held
            self._kept.append((storage, host))
            storage.resize_(0)

    @property
    def num_bytes(self) -> int:
        """Bytes of the host's memory that this takes."""
        return sum(host.nbytes for _, host in self._kept)

    def restore(self) -> None:
        """Give the tensors their memory again, with what they held. The host's is free afterwards."""
        while self._kept:
            storage, host = self._kept.pop()
            storage.resize_(host.nbytes)
            _bytes_of(storage, storage.device).copy_(host)


def _bytes_of(storage: torch.UntypedStorage, device: torch.device) -> Tensor:
    """All of a storage, uint8 [bytes]."""
    return torch.empty(0, dtype=torch.uint8, device=device).set_(storage)
