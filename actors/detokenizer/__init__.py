"""The detokenizer: token ids become text, stop strings end requests, and frontends get their outputs.

`decoding` and `stop_strings` are about one request's text, `core` holds all requests', `delivery` batches
what goes to each frontend, and `actor` is the shell.
"""

from pageant.actors.detokenizer.actor import Detokenizer

__all__ = ["Detokenizer"]
