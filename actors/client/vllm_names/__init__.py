"""The names that vLLM's users type, and what each means here: Python arguments, command line flags and YAML keys.

One table, in modules by where a name is typed: `engine` (arguments of the engine), `server` (further flags of
`vllm serve`), `requests` (parameters of requests) and `methods` (classes and their members). `docs/from-vllm.md` is
written from it.
"""
