"""A rank in a process of its own: `python -m tests.kernels.collectives.a_rank ADDRESS RANK DEADLINE`.

It takes part in sums until one fails, prints "joined" first and the failure last.
"""

from __future__ import annotations

import sys

import torch

from pageant.kernels.collectives.base import GroupBroken
from pageant.kernels.collectives.shared_memory import SharedMemory


def main() -> None:
    """Sum ones, for as long as it goes."""
    address, rank, deadline = sys.argv[1:]
    group = SharedMemory(address, int(rank), float(deadline))
    parts, out = torch.ones(1, 16, 64), torch.empty(16, 64)
    print("joined", flush=True)
    try:
        while True:
            group.all_reduce(parts, out)
            assert bool((out == group.size).all())
    except GroupBroken as error:
        print(f"{error.rank}: {error}", flush=True)


if __name__ == "__main__":
    main()
