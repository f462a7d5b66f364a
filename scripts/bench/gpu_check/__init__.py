"""Checks and measures everything that runs on a GPU: `python3 -m pageant.scripts.bench.gpu_check --out FOLDER`.

The frame (`session`, `sections`, `cases`, `bars`, `table`) imports the standard library alone, so that it starts on a
machine that has torch and nothing of Pageant's. Each section runs in a process of its own (`child`) and appends a
line of JSON for each case when it is measured: whatever crashes or hangs later, what was measured before is kept.
"""
