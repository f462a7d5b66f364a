"""Study: the search over candidates, by Optuna's tree-structured Parzen estimator (Bergstra et al., 2011)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any

from pageant.protocol.errors import ConfigurationError
from pageant.scripts.tuning.space import Candidate, Space


def study(
    space: Space, score: Callable[[Candidate], float], trials: int, seed: int = 0
) -> list[tuple[float, Candidate]]:
    """Search for the candidates with the highest scores. The same seed tries the same ones.

    The defaults are tried first. A space with no more candidates than trials is tried whole.

    Returns:
        Scores and candidates that were tried, the best first; each candidate once.

    Raises:
        ConfigurationError: Optuna is not installed.
    """
    optuna = _optuna()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    scores: dict[Candidate, float] = {}

    def objective(trial: Any) -> float:
        values = {
            name: choices[trial.suggest_categorical(name, range(len(choices)))]
            for name, choices in space.choices.items()
        }
        candidate = Candidate(**values)
        if candidate not in scores:
            scores[candidate] = score(candidate)
        return scores[candidate]

    search = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=seed))
    first = [space.defaults] if space_holds(space, space.defaults) else []
    for candidate in [*first, *(space.candidates() if len(space) <= trials else ())]:
        search.enqueue_trial(_places(space, candidate), skip_if_exists=True)
    search.optimize(objective, n_trials=min(trials, len(space)))
    return sorted(((score, one) for one, score in scores.items()), key=lambda pair: -pair[0])


def check_installed() -> None:
    """Refuse to go on without Optuna, before any work.

    Raises:
        ConfigurationError: it is not installed.
    """
    _optuna()


def space_holds(space: Space, candidate: Candidate) -> bool:
    """Tell whether a candidate is in a space."""
    return all(getattr(candidate, one.name) in space.choices[one.name] for one in fields(candidate))


def _places(space: Space, candidate: Candidate) -> dict[str, int]:
    """Return the place of each of a candidate's values among the choices."""
    return {name: list(choices).index(getattr(candidate, name)) for name, choices in space.choices.items()}


def _optuna() -> Any:
    try:
        import optuna
    except ImportError:
        raise ConfigurationError(
            "pageant tune searches with Optuna, which is not installed: pip install 'pageant[tune]'"
        ) from None
    return optuna
