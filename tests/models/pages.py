"""A miniature executor: runs sequences through a decoder, with their KV cache in scattered blocks."""

from __future__ import annotations

from itertools import chain

import torch
from torch import Tensor

from pageant.kernels.base import AttentionBatch
from pageant.models.decoder import Decoder, Embedded, Wanted


class Pages:
    """A cache of scattered blocks, and the steps of sequences through it."""

    def __init__(self, decoder: Decoder, block_size: int = 4, num_blocks: int = 96) -> None:
        self.decoder = decoder
        self.block_size = block_size
        self.caches = decoder.allocate_kv_caches(num_blocks, block_size)
        self.tables: dict[str, list[int]] = {}
        self.computed: dict[str, int] = {}
        order = torch.randperm(num_blocks, generator=torch.Generator().manual_seed(5))
        self._free = order.tolist()

    @torch.inference_mode()
    def step(self, tokens: dict[str, list[int]]) -> dict[str, Tensor]:
        """Run each sequence's next tokens together; return each one's logits, [tokens, vocab_size]."""
        hidden = self._forward(tokens)
        lengths = [len(new) for new in tokens.values()]
        logits = torch.split_with_sizes(self.decoder.logits(hidden), lengths)
        return dict(zip(tokens, logits, strict=True))

    @torch.inference_mode()
    def last_of(self, names: list[str], tokens: dict[str, list[int]]) -> dict[str, Tensor]:
        """Run each sequence's next tokens together; return the logits of the last of some, [1, vocab_size] each."""
        hidden = self._forward(tokens, names)
        if not names:
            assert hidden.shape[0] == 0
            return {}
        return dict(zip(names, self.decoder.logits(hidden).split(1), strict=True))

    @torch.inference_mode()
    def step_of_rows(self, name: str, rows: Tensor) -> Tensor:
        """Run embeddings [tokens, hidden_size] in place of a sequence's next tokens; return their logits."""
        embedded = Embedded(torch.arange(len(rows)), rows.to(self.decoder.dtype))
        return self.decoder.logits(self._forward({name: [0] * len(rows)}, embedded=embedded))

    def _forward(
        self,
        tokens: dict[str, list[int]],
        last_of: list[str] | None = None,
        embedded: Embedded | None = None,
    ) -> Tensor:
        positions = {name: self._advance(name, len(new)) for name, new in tokens.items()}
        flat, batch = torch.tensor(list(chain(*positions.values()))), self._batch(positions)
        wanted = None
        if last_of is not None:
            sequences = torch.tensor([list(tokens).index(name) for name in last_of], dtype=torch.int64)
            wanted = Wanted.of(batch.query_starts[1:][sequences].long() - 1, sequences, batch)
        token_ids = torch.tensor(list(chain(*tokens.values())))
        return self.decoder.forward(token_ids, flat, batch, self.caches, wanted, embedded)

    def _advance(self, name: str, count: int) -> list[int]:
        start = self.computed.get(name, 0)
        self.computed[name] = start + count
        table = self.tables.setdefault(name, [])
        while len(table) * self.block_size < start + count:
            table.append(self._free.pop())
        return list(range(start, start + count))

    def _batch(self, positions: dict[str, list[int]]) -> AttentionBatch:
        lengths = [len(places) for places in positions.values()]
        contexts = [self.computed[name] for name in positions]
        width = max(len(self.tables[name]) for name in positions) + 2
        tables = [self.tables[name] + [-1] * (width - len(self.tables[name])) for name in positions]
        slots = [self._slot(name, place) for name, places in positions.items() for place in places]
        return AttentionBatch(
            query_starts=torch.tensor([0, *lengths]).cumsum(0).int(),
            context_lengths=torch.tensor(contexts).int(),
            block_tables=torch.tensor(tables).int(),
            slots=torch.tensor(slots),
            positions=torch.tensor(list(chain(*positions.values()))),
            max_query_length=max(lengths),
            max_context_length=max(contexts),
        )

    def _slot(self, name: str, position: int) -> int:
        block, offset = divmod(position, self.block_size)
        return self.tables[name][block] * self.block_size + offset
