"""Starts the servers that vLLM's tests start, with their flags as written but for the port."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pageant.scripts.dropin.hub import Hub
from pageant.scripts.dropin.running import NotServed, Outcome, is_of_table, serving
from pageant.scripts.dropin.stand_ins import HUB
from pageant.scripts.server_process import free_port

READ_SECONDS = 300


def read_launches(sources: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the servers that vLLM's tests start, and the files that start one which cannot be read from them."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "launches.json"
        command = [
            sys.executable,
            "-m",
            "pageant.scripts.dropin.recording",
            str(sources / "tests"),
            str(file),
        ]
        subprocess.run(
            command, check=True, timeout=READ_SECONDS, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        found = json.loads(file.read_text())
    return found["launches"], found["unread"]


def run_launch(launch: dict[str, Any], hub: Hub) -> Outcome:
    """Start a server and end it when it is ready."""
    flags = [_local(flag, hub) for flag in _without_port(launch["flags"])]
    model = _local(launch["model"], hub)
    hub.add_all(" ".join(f' "{one}" ' for one in (model, *flags)))
    began = time.monotonic()
    why = ""
    with tempfile.TemporaryDirectory() as folder:
        variables = {**launch["environment"], **hub.variables()}
        try:
            with serving(["pageant", "serve", model, *flags], free_port(), folder, variables):
                pass
        except NotServed as error:
            why = str(error)
    return Outcome(
        launch_name(launch), not why, why, bool(why) and is_of_table(why), round(time.monotonic() - began, 1)
    )


def launch_name(launch: dict[str, Any]) -> str:
    """Return the file of a launch and its command line."""
    return " ".join([f"{launch['file']}:", launch["model"], *launch["flags"]])


def _without_port(flags: Sequence[str]) -> list[str]:
    """Flags without the port, which is ours to choose."""
    found = list(flags)
    while "--port" in found:
        place = found.index("--port")
        del found[place : place + 2]
    return found


def _local(text: str, hub: Hub) -> str:
    """A text with the folder of a stand-in for each snapshot that a test downloads."""
    return re.sub(rf"{HUB}([\w./-]+)", lambda match: str(hub.add(match[1]) or match[1]), text)
