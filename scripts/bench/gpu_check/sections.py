"""The sections of a session, in order, and the time that each may take."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["SECTIONS", "Section", "choose_sections"]


@dataclass(frozen=True)
class Section:
    """One process's part of a session.

    `seconds` is the most that it may run. `least` is kept for it while earlier sections run, so that a slow one
    takes no time from those behind it. `tests` are sections whose failures are the session's.
    """

    name: str
    seconds: float
    least: float
    tests: bool = False
    on_demand: bool = False


SECTIONS = (
    Section("facts", 20, 8),
    Section("warm", 60, 20),
    Section("kernels", 120, 60, tests=True),
    Section("models", 60, 35, tests=True),
    Section("limits", 15, 10),
    Section("attention", 40, 25),
    Section("rows", 10, 6),
    Section("products", 40, 25),
    Section("sampling", 20, 12),
    Section("shape8b", 40, 30),
    Section("engine", 60, 45),
    Section("tune", 120, 20, on_demand=True),
)


def choose_sections(only: str | None) -> tuple[Section, ...]:
    """Return the sections that a comma-separated list names, or all but those on demand.

    Raises ValueError, with the known names, where one is unknown.
    """
    if not only:
        return tuple(section for section in SECTIONS if not section.on_demand)
    names = [name.strip() for name in only.split(",") if name.strip()]
    known = {section.name: section for section in SECTIONS}
    for name in names:
        if name not in known:
            raise ValueError(f"--only names a section {name!r}; expected some of {', '.join(known)}")
    return tuple(section for section in SECTIONS if section.name in names)
