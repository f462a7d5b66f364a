"""The rules of a tokenizer, asked as the frontend asks it, on the packaged demo model."""

from __future__ import annotations

import asyncio
from typing import Any

from pageant.actors.runtime import Actor
from pageant.models.tokenization import Tokenization
from pageant.protocol.arrays import int32
from pageant.protocol.roles import TOKENIZER as ROLE
from pageant.protocol.tokenizing import (
    ChatMessage,
    Detokenize,
    NotTokenized,
    Tokenize,
    TokenizeChat,
    Tokenized,
)
from pageant.scripts.conformance.rules import Rules, explain_role
from pageant.scripts.conformance.stage import Stage
from pageant.scripts.engine_options import DEMO_MODEL

TAKES_ROLE = "it takes the role of tokenizer"
IDS = "token ids are those of the vocabulary, and the text comes back with them"
SAME = "the same text has the same tokens, whatever was asked before and at the same time"
CHAT = "a conversation is rendered and tokenized as one prompt"
REFUSED = "a text that has more tokens than are taken is refused with a reason"
BACK = "detokenizing gives one text for each output, in order"
TEXTS = ("A list is mutable.", "naïve café ☕ 🐍", "x = [1, 2]\n\treturn x", "", "a " * 600)


def check_tokenizer(cls: type[Actor], **options: Any) -> tuple[str, ...]:
    """Hold a tokenizer against the rules; return those that it kept.

    Its Options have the default one's `model`; the demo model's folder is given.

    Raises:
        BrokenRule: names the rule, and what happened.
    """
    rules = Rules()
    rules.must(TAKES_ROLE, getattr(cls, "role", None) is ROLE, explain_role(cls, ROLE))
    asyncio.run(_check(cls, {"model": str(DEMO_MODEL), **options}, rules))
    return rules.kept


async def _check(cls: type[Actor], options: dict[str, Any], rules: Rules) -> None:
    size = Tokenization.from_checkpoint(DEMO_MODEL).vocab_size
    async with Stage() as stage:
        await stage.enter("tokenizer", cls(cls.Options(**options)))
        first = [await stage.ask("tokenizer", Tokenize(text=text)) for text in TEXTS]
        for text, found in zip(TEXTS, first, strict=True):
            is_known = isinstance(found, Tokenized) and all(
                0 <= one < size for one in found.token_ids.tolist()
            )
            rules.must(IDS, is_known, f"{text[:40]!r} became {found!r:.200}")
        again = await asyncio.gather(
            *(stage.ask("tokenizer", Tokenize(text=text)) for text in reversed(TEXTS))
        )
        for text, one, other in zip(TEXTS, first, reversed(again), strict=True):
            rules.must(SAME, _ids(one) == _ids(other), f"{text[:40]!r}: {_ids(one)}, then {_ids(other)}")
        message = ChatMessage(role="user", content="What is a list?")
        chat = await stage.ask("tokenizer", TokenizeChat(messages=(message,)))
        is_whole = isinstance(chat, Tokenized) and len(chat.token_ids) > 0
        rules.must(CHAT, is_whole, f"it became {chat!r:.200}")
        refused = await stage.ask("tokenizer", Tokenize(text="word " * 100_000, tokens_max=8))
        has_reason = isinstance(refused, NotTokenized) and bool(refused.reason)
        rules.must(REFUSED, has_reason, f"100,000 words with tokens_max=8 became {refused!r:.200}")
        outputs = [_ids(first[0]), _ids(first[2])]
        tokens = int32([token for output in outputs for token in output])
        back = await stage.ask(
            "tokenizer", Detokenize(counts=int32([len(output) for output in outputs]), token_ids=tokens)
        )
        rules.must(BACK, len(back.texts) == 2 and all(back.texts), f"two outputs became {back!r:.200}")


def _ids(found: Tokenized | NotTokenized) -> list[int]:
    return found.token_ids.tolist() if isinstance(found, Tokenized) else []
