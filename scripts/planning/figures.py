"""Figures of outcomes, as tables show them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pageant.scripts.spread import Spread


def verdict(broken: Mapping[str, float]) -> str:
    """Say whether a service level holds, and what of it does not."""
    return (
        "yes" if not broken else "no: " + ", ".join(f"{name} {ratio:.2f}x" for name, ratio in broken.items())
    )


def medians_and_p99s(*spreads: Spread | None) -> Iterator[str]:
    """Yield medians and 99th percentiles in milliseconds; dashes where there are none."""
    for spread in spreads:
        for seconds in (None, None) if spread is None else (spread.p50, spread.p99):
            yield "-" if seconds is None else f"{seconds * 1e3:,.1f} ms"
