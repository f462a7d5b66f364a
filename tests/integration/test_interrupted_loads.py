"""Ctrl-C while weights load: the server ends in order, and nothing of it is left."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from pageant.scripts.server_process import free_port

# The life of a process is what is tested.
pytestmark = pytest.mark.usefixtures("real_processes")

HERE = Path(__file__).parent
END_SECONDS_MAX = 600.0
"""Ends take a second; other tests use the machine too."""
CASES = {
    "alone, in the server's process": (["--placement", "one"], [0]),
    "alone": ([], [0]),
    "both ranks": (["--tensor-parallel", "2"], [0, 1]),
    "the first of two stages": (["--pipeline-parallel", "2"], [1]),
}
"""Options of the server, and the ranks that load until they are told to end."""


@pytest.fixture
def files() -> Iterator[Path]:
    """A folder for temporary files with a short name: sockets are in it, whose paths have at most 107 bytes."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


@pytest.mark.parametrize("case", CASES)
def test_ctrl_c_while_weights_load_ends_a_server_in_order(case: str, files: Path) -> None:
    options, ranks = CASES[case]
    port = free_port()
    command = ["serve", "--port", str(port), "--set", "threads=1", "--set", "num_blocks=512", *options]
    endless = ["--set", "actors.executor.class=endless_loads:EndlessExecutor"]
    with subprocess.Popen(
        [sys.executable, "-m", "pageant", *command, *endless],
        stderr=subprocess.PIPE,
        text=True,
        cwd=HERE,
        env=os.environ | {"ENDLESS_RANKS": ",".join(map(str, ranks)), "TMPDIR": str(files)},
        start_new_session=True,
        # Whoever runs the tests in the background of a shell has it ignored, and so would this.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as server:
        try:
            assert server.stderr is not None
            loading, lines = {f"executor/{rank} loads" for rank in ranks}, []
            while loading:
                lines.append(server.stderr.readline())
                assert lines[-1], f"it has ended: {lines}"
                loading.discard(lines[-1].strip())
            others = psutil.Process(server.pid).children(recursive=True)
            server.send_signal(signal.SIGINT)
            _, said = server.communicate(timeout=END_SECONDS_MAX)
        finally:
            server.kill()
    assert server.returncode == 0
    assert sorted(said.splitlines()) == [f"executor/{rank} loads no more" for rank in ranks], "and no error"
    assert not [one for one in others if one.is_running()]
    assert {path.relative_to(files) for path in files.rglob("*")} <= {Path(f"pageant-{os.getuid()}")}, (
        "of pageant ps"
    )
    socket.create_server(("127.0.0.1", port)).close()
