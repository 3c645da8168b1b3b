"""Environments of suites that a user made, as environments of rollax: the same adapters as those behind ids.

Each takes the object as its suite makes it and plays its raw dynamics. `name` is that of the folder of runs.
"""

from typing import Any, Literal

from rollax.environments.core import AgentsEnvironment, Environment


def from_gymnax(environment: Any, params: Any = None, *, name: str | None = None) -> Environment:
    """An environment of gymnax 1.0 with its parameters, by default its own: `from_gymnax(*gymnax.make("CartPole-v1"))`.

    The fields of `params` are leaves. `max_steps_in_episode` is the time limit, which truncates.

    Raises: UsageError for what is no environment of gymnax.
    """
    from rollax.environments.suites import gymnax

    return gymnax.wrapped(name or f"own/{getattr(environment, 'name', type(environment).__name__)}", environment, params)


def from_brax(environment: Any, *, max_steps: int = 1000, name: str | None = None) -> Environment:
    """An environment of brax without its wrappers, cut off after `max_steps`. Raises UsageError for what is none."""
    from rollax.environments.suites import brax

    return brax.wrapped(name or _own(environment), environment, max_steps)


def from_jumanji(environment: Any, *, name: str | None = None) -> Environment:
    """An environment of Jumanji, whose `time_limit` truncates. Raises UsageError for what is none."""
    from rollax.environments.suites.jumanji import adapter

    return adapter.wrapped(name or _own(environment), environment)


def from_pgx(
    environment: Any, *, opponent: Literal["agents", "random", "greedy"] = "agents", name: str | None = None
) -> AgentsEnvironment:
    """A game of Pgx, whose players are agents. Raises UsageError for what is none, and for a game of one player."""
    from rollax.environments.suites import pgx

    return pgx.wrapped(name or _own(environment), environment, opponent)


def from_playground(environment: Any, *, episode_length: int | None = None, name: str | None = None) -> Environment:
    """An environment of MuJoCo Playground, cut off after `episode_length` steps, by default those of its configuration.

    Raises: UsageError for what is none.
    """
    from rollax.environments.suites import playground

    return playground.wrapped(name or _own(environment), environment, episode_length)


def _own(environment: Any) -> str:
    return f"own/{type(getattr(environment, 'unwrapped', environment)).__name__}"
