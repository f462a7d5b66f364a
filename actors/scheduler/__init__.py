"""The scheduler: decides which tokens of which requests are computed next.

`request` holds one request's state. `policies` order requests and choose victims of preemption. `core` decides
each step. `outputs` turns sampled tokens into the detokenizer's stream. `actor` is the shell around them.
"""
