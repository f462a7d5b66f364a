"""Detokenizers that end their own process, by signals: during an answer, or while it starts."""

from __future__ import annotations

import asyncio
import os
import signal

from pageant.actors.detokenizer.actor import Detokenizer
from pageant.actors.runtime import receives
from pageant.protocol.outputs import TokenBatch


class Interrupting(Detokenizer):
    """Does as it should, but for one signal to its own process, by the second of its batches."""

    batches = 0

    @receives
    def tokens(self, batch: TokenBatch) -> None:
        super().tokens(batch)
        self.batches += 1
        if self.batches == 2:
            os.kill(os.getpid(), signal.SIGINT)


class NeverStarting(Detokenizer):
    """Asks its process to end, and waits for that."""

    async def on_start(self) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.Event().wait()
