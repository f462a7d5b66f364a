"""What is wrong with a grammar."""


class GrammarError(ValueError):
    """It cannot be followed, and says why."""
