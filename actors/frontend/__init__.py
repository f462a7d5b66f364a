"""The frontend: the actor that carries requests into a topology, and their outputs out of it.

`frontend` is the actor; `requests` are those that are open; `preparing` checks and tokenizes them before they
are submitted. The client library and the HTTP server stand on it.
"""
