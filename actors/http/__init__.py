"""The HTTP server: OpenAI's and Anthropic's APIs on the engine's own frontend.

`server` is the actor, `app` its routes, `openai` and `anthropic` the shapes that clients know, `answers` collects what
a response says, and `errors` what clients get instead.
"""
