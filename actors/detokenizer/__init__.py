"""The detokenizer: turns token ids into text, ends requests at stop strings, and sends frontends their outputs.

`decoding` and `stop_strings` handle one request's text. `core` holds the text of all requests. `delivery`
batches what goes to each frontend, and `actor` is the shell.
"""

from pageant.actors.detokenizer.actor import Detokenizer

__all__ = ["Detokenizer"]
