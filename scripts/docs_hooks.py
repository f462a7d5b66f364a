"""A hook of mkdocs: shows the reference's reader the packages, and nothing else of the repository.

The repository's root is itself the package. griffe would follow it into virtual environments and caches, and through
their links into itself.
"""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parent.parent
VIEW = ROOT / "build" / "reference" / "pageant"
"""A folder of links. mkdocs.yml names its parent as the place where packages are."""
SHOWN = ("__init__.py", "actors", "protocol", "kernels", "models", "scripts")


def on_startup(command: str, dirty: bool) -> None:
    """Make the links that are not there."""
    VIEW.mkdir(parents=True, exist_ok=True)
    for name in SHOWN:
        link = VIEW / name
        if not link.is_symlink():
            link.symlink_to(ROOT / name)
