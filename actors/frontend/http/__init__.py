"""The HTTP server: OpenAI's API on the engine's own frontend.

`server` is the actor, `app` its routes, `requests` and `responses` the shapes that clients know, `answers`
what turns one into the other, and `errors` what they get instead.
"""
