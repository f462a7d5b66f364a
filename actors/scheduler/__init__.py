"""The scheduler: which tokens of which requests are computed next.

`request` is one request's state, `policies` say who goes first and who gives way, `core` decides each step,
`outputs` turns what was drawn into the detokenizer's stream, and `actor` is the shell around them.
"""
