"""Words that the command line takes and gives: options whose names it cannot know beforehand, such as `--env.NAME VALUE` or
`--sweep.NAME VALUES`; and what an evaluation is in words.
"""

from typing import Any

from rollax.errors import UsageError

MOST_NUMBERS = 50  # of a curve in a line


def take(arguments: list[str], prefix: str) -> tuple[list[str], dict[str, list[str]]]:
    """Splits off `--env.NAME VALUE` and the like, also written `--env.NAME=VALUE`; dashes in names are underscores."""
    rest: list[str] = []
    taken: dict[str, list[str]] = {}
    position = 0
    while position < len(arguments):
        word = arguments[position]
        position += 1
        if not word.startswith(prefix):
            rest.append(word)
            continue
        name, equals, value = word.removeprefix(prefix).partition("=")
        values = [value] if equals else []
        while not equals and position < len(arguments) and not arguments[position].startswith("--"):
            values.append(arguments[position])
            position += 1
        if not values:
            raise UsageError(f"{word} needs a value")
        taken[name.replace("-", "_")] = values
    return rest, taken


def single(taken: dict[str, list[str]]) -> dict[str, Any]:
    """One value as itself, several as a list."""
    return {name: values[0] if len(values) == 1 else values for name, values in taken.items()}


def number(name: str, value: str) -> float:
    try:
        return float(value)
    except ValueError:
        raise UsageError(f"--sweep.{name.replace('_', '-')} takes numbers, not {value!r}") from None


def of_evaluation(given: Any, policy: Any, numbers: dict[str, Any], episodes: Any) -> str:
    """An evaluation as a person reads it."""
    from rollax.environments.core import agent_types
    from rollax.host.evaluation import further

    by_agents = ["return_agents", "return_team", *(f"return_{kind}" for kind in dict.fromkeys(agent_types(policy.environment)))]
    low, high = numbers["return_iqm_low"], numbers["return_iqm_high"]
    member = "" if policy.member is None else f", member {policy.member}"
    elsewhere = ", ".join(f"{name} {value}" for name, value in policy.spec.eval_arguments.items())
    figures = "  ".join(f"{name} {numbers[f'return_{name}']:.3f}" for name in ("mean", "std", "min", "p20", "median", "max"))
    ends = f"{numbers['terminated']:.0%} terminated, {numbers['truncated']:.0%} truncated"
    lines = [
        f"{given.run} at step {policy.step:,}{member}: {given.episodes} episodes{f' (with {elsewhere})' if elsewhere else ''}",
        f"  return   {figures}",
        f"           interquartile mean {numbers['return_iqm']:.3f}, 95 % interval [{low:.3f}, {high:.3f}]",
        f"  length   mean {numbers['length_mean']:.1f}; {ends}",
        *(f"  {words}" for words in further([*by_agents, *episodes.info], numbers, MOST_NUMBERS)),
    ]
    if "descriptor_mean" in numbers:
        lines.append(f"  descriptor mean [{', '.join(f'{value:.3f}' for value in numbers['descriptor_mean'])}]")
    return "\n".join(lines)
