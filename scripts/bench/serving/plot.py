"""A load's latencies and its throughput as a plot (SVG)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pageant.scripts.bench.serving.figures import LATENCIES, Results

WIDTH, HEIGHT, LEFT, TOP, GAP = 320, 160, 46, 30, 40
INK, LINE, GRID = "#24292f", "#2f6f4f", "#d0d7de"
POINTS = 200  # of a curve

Curve = Sequence[tuple[float, float]]


def svg(results: Results) -> str:
    """Draw for each latency the share of answers (or tokens) within it, up to the 99.9th percentile; and output tokens
    per second over time."""
    panels = [
        _panel(f"{title}, ms", _shares(getattr(results, name)), "%", index)
        for index, (name, title) in enumerate(LATENCIES.items())
        if len(getattr(results, name))
    ]
    panels.append(_panel("output tokens/s by the second", _rates(results), "", len(panels)))
    columns, rows = 2, (len(panels) + 1) // 2
    width, height = columns * (LEFT + WIDTH + GAP), rows * (TOP + HEIGHT + GAP)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" '
        f'font-size="11" fill="{INK}">\n<rect width="100%" height="100%" fill="white"/>\n'
        + "\n".join(panels)
        + "\n</svg>\n"
    )


def _shares(seconds: Sequence[float]) -> Curve:
    ranks = np.linspace(0, 99.9, POINTS)
    return [
        (1e3 * float(value), float(rank))
        for value, rank in zip(np.percentile(seconds, ranks), ranks, strict=True)
    ]


def _rates(results: Results) -> Curve:
    """An answer's tokens count at its end."""
    if not results.ends:
        return [(0.0, 0.0)]
    edges = np.arange(0, max(results.ends) + 1)
    counts, _ = np.histogram(results.ends, bins=[*edges, edges[-1] + 1], weights=results.output_tokens)
    return [(float(second), float(count)) for second, count in zip(edges, counts, strict=True)]


def _panel(title: str, curve: Curve, unit: str, index: int) -> str:
    x = LEFT + index % 2 * (LEFT + WIDTH + GAP)
    y = TOP + index // 2 * (TOP + HEIGHT + GAP)
    widest = max(point[0] for point in curve) or 1.0
    highest = max(point[1] for point in curve) or 1.0
    points = " ".join(f"{x + WIDTH * a / widest:.1f},{y + HEIGHT * (1 - b / highest):.1f}" for a, b in curve)
    lines = [f'<text x="{x}" y="{y - 10}" font-weight="bold">{title}</text>']
    for part in (0.0, 0.5, 1.0):
        level = y + HEIGHT * (1 - part)
        lines += [
            f'<line x1="{x}" x2="{x + WIDTH}" y1="{level}" y2="{level}" stroke="{GRID}"/>',
            f'<text x="{x - 4}" y="{level + 4}" text-anchor="end">{highest * part:.4g}{unit}</text>',
            f'<text x="{x + WIDTH * part}" y="{y + HEIGHT + 15}" text-anchor="middle">{widest * part:.4g}</text>',
        ]
    lines.append(f'<polyline points="{points}" fill="none" stroke="{LINE}" stroke-width="1.5"/>')
    return "\n".join(lines)
