"""Errors of grammars."""


class GrammarError(ValueError):
    """Error of a grammar that cannot be followed; says why."""


class GrammarKills(GrammarError):
    """The grammar ended the process that compiled it, for the first time."""
