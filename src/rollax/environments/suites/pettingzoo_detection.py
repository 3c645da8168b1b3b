"""Detection of PettingZoo environments, without importing PettingZoo."""

PETTINGZOO_MESSAGE = (
    "environment must not be an object or a class of PettingZoo. Pass "
    "rollax.from_pettingzoo(make), where make is the class or a function that makes the "
    "environment (see docs/pettingzoo.md)."
)
AEC_MESSAGE = (
    "The AEC API of PettingZoo is not supported. Convert the environment with "
    "pettingzoo.utils.aec_to_parallel if its agents act at the same time, or choose one of "
    "rollax.list_environments('pgx') for games with turns."
)


def is_pettingzoo(environment: object) -> bool:
    """Return whether an object or a class looks like a PettingZoo environment."""
    kind = environment if isinstance(environment, type) else type(environment)
    if any(base.__module__.split(".")[0] == "pettingzoo" for base in kind.__mro__):
        return True
    return hasattr(environment, "possible_agents") and callable(
        getattr(environment, "observation_space", None)
    )


def is_aec(environment: object) -> bool:
    """Return whether an environment has the AEC API of PettingZoo, where agents take turns."""
    return callable(getattr(environment, "agent_iter", None)) and callable(
        getattr(environment, "last", None)
    )
