from __future__ import annotations

import json
import subprocess
import sys


def test_every_process_logs_as_json_and_a_request_that_ended_is_a_line_with_its_figures(checkpoint):
    result = subprocess.run(
        [
            *(sys.executable, "-m", "pageant", "run", "hello", "--raw", "--max-tokens", "3"),
            *("--model", checkpoint.path, "--log-level", "info", "--log-format", "json"),
            *("--set", "nodes={front: {}, back: {process: true}}", "--set", "actors.executor.node=back"),
            *("--set", "threads=1", "--set", "num_blocks=64", "--set", "max_num_seqs=4"),
        ],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert result.returncode == 0, result.stderr
    lines = [json.loads(line) for line in result.stderr.splitlines() if line.startswith("{")]
    by_logger = {line["logger"]: line for line in lines}
    assert (
        by_logger["pageant.executor"]["node"] == "back" and by_logger["pageant.executor"]["level"] == "info"
    )
    ended = by_logger["pageant.requests"]
    assert ended["node"] == "front" and "ended with" in ended["message"]
    assert ended["prompt_tokens"] == 5 and ended["finish_reasons"] in (["length"], ["stop"])
    assert 0 < ended["first_token_seconds"] <= ended["seconds"] and ended["error"] is None
