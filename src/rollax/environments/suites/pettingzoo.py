"""Detection of PettingZoo environments, which rollax does not support."""

PETTINGZOO_MESSAGE = (
    "environment must not be one of PettingZoo, which rollax does not support. Write the game in "
    "JAX with num_agents (see docs/own/environment.md), use one of "
    "rollax.list_environments('jaxmarl') or ('pgx'), or wrap one agent's view of it as a "
    "gymnasium.Env and pass rollax.from_gymnasium(...)."
)


def is_pettingzoo(environment: object) -> bool:
    """Return whether an object or a class looks like a PettingZoo environment."""
    kind = environment if isinstance(environment, type) else type(environment)
    if any(base.__module__.split(".")[0] == "pettingzoo" for base in kind.__mro__):
        return True
    return hasattr(environment, "possible_agents") and callable(
        getattr(environment, "observation_space", None)
    )
