"""The faces of the engine in a user's own process: `Engine` (async) and `LLM` (sync).

`frontend` is the actor that speaks for them, `session` what both stand on, `cast` the default topology.
"""
