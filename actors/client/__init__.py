"""The client library: `Engine` (async), `LLM` and `LLMEngine` (sync), and what users hand to them and get from them.

`session` starts a topology in the background of the user's process; `cast` is the default topology; `vllm_names` is the
table of the names that vLLM's users type.
"""
