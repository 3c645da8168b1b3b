"""Description of environments as text and as HTML, for interactive sessions."""

from rollax.environments.environment import Environment
from rollax.runtime.notebook import format_html_table
from rollax.spaces import describe_space

MAX_SPACE_TEXT_LENGTH = 80  # characters per space


def format_environment(environment: Environment) -> str:
    """Format the class, name and spaces of an environment as text for `__repr__`."""
    facts = _describe_environment(environment)
    texts = [f"{name}={value}" for name, value in facts.items() if value is not None]
    return f"{type(environment).__name__}({', '.join([repr(environment.name), *texts])})"


def format_environment_html(environment: Environment) -> str:
    """Format the name, spaces and time limit of an environment as HTML for `_repr_html_`."""
    limit = {"time_limit": environment.time_limit}
    return format_html_table(environment.name, _describe_environment(environment) | limit)


def _describe_environment(environment: Environment) -> dict[str, object]:
    """Return the spaces and the number of agents in a form for display, keyed by label."""
    spaces = {
        "observations": describe_space(environment.observation_space),
        "actions": describe_space(environment.action_space),
    }
    texts = {
        name: text if len(text) <= MAX_SPACE_TEXT_LENGTH else f"{text[:MAX_SPACE_TEXT_LENGTH]}..."
        for name, text in spaces.items()
    }
    return {**texts, "num_agents": environment.num_agents}
