"""Philox4x32-10, the counter-based random generator, in torch.

A word is a pure function of a key and a counter, so that a random number belongs to a place (a seed, a
position, a token id) and not to the order in which anything was computed. Words are unsigned 32-bit
numbers held in int64 tensors: torch has no unsigned arithmetic, and an int64 product of two words wraps
modulo 2**64, which keeps all 64 bits of it.

Salmon, Moraes, Dror, Shaw: Parallel random numbers: as easy as 1, 2, 3 (SC 2011); Random123.
"""

from __future__ import annotations

from torch import Tensor

__all__ = ["philox4x32"]

Words4 = tuple[Tensor, Tensor, Tensor, Tensor]

_ROUNDS = 10
_WORD = 0xFFFFFFFF
# Both multipliers are taken modulo 2**64 as signed numbers; they are below 2**32, so as they are.
_MULTIPLIER_0 = 0xD2511F53
_MULTIPLIER_1 = 0xCD9E8D57
_WEYL_0 = 0x9E3779B9
_WEYL_1 = 0xBB67AE85


def philox4x32(counter: Words4, key: tuple[Tensor, Tensor]) -> Words4:
    """Return the four random words of each counter under its key.

    All are int64 tensors of values in [0, 2**32) that broadcast against one another, and so are the four
    results, of the broadcast shape [...]. Words of the counter and the key come least significant first.
    """
    word_0, word_1, word_2, word_3 = counter
    key_0, key_1 = key
    for _ in range(_ROUNDS):
        product_0 = word_0 * _MULTIPLIER_0
        product_1 = word_2 * _MULTIPLIER_1
        # The shift drags the sign along: the mask after the xor removes it.
        word_0 = ((product_1 >> 32) ^ (word_1 ^ key_0)).bitwise_and_(_WORD)
        word_2 = ((product_0 >> 32) ^ (word_3 ^ key_1)).bitwise_and_(_WORD)
        word_1 = product_1.bitwise_and_(_WORD)
        word_3 = product_0.bitwise_and_(_WORD)
        key_0 = (key_0 + _WEYL_0) & _WORD
        key_1 = (key_1 + _WEYL_1) & _WORD
    return word_0, word_1, word_2, word_3
