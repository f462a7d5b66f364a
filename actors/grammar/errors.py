"""What is wrong with a grammar."""


class GrammarError(ValueError):
    """It cannot be followed, and says why."""


class GrammarKills(GrammarError):
    """The grammar ended the process that compiled it, for the first time."""
