"""Phases of a run, which begin where a resume changes settings."""

import copy
import dataclasses
from collections.abc import Sequence
from typing import Any

from rollax.errors import UsageError
from rollax.synonyms.lookup import UnknownSettingError
from rollax.types import Record
from rollax.user_input.coercion import coerce, format_value

# Settings that determine the result of an evaluation. Evaluations before and after a change of
# them cannot be compared.
EVALUATION_SETTINGS = ("arguments", "options.eval_seed")
OPTIMIZER_SETTING = "config.optimizer"
UNSET = "default"  # text of a value that is not set


@dataclasses.dataclass(frozen=True)
class Phase:
    """Part of a run that begins with changed settings.

    Attributes:
        step: Environment steps at which the phase begins.
        changes: `(old, new)` of each changed value, keyed by its path in config.yaml, such as
            "config.clip" or "arguments".
        run: Folder of the run that this run continues, or None if the run itself was resumed.
    """

    step: int
    changes: dict[str, tuple[Any, Any]]
    run: str | None = None

    @property
    def config_names(self) -> list[str]:
        """Names of the changed settings of the algorithm."""
        return [path.removeprefix("config.") for path in self.changes if path.startswith("config.")]

    @property
    def changes_structure(self) -> bool:
        """Whether the network or the kind of optimizer changes, so that arrays may not fit."""
        return any(map(_is_structure, self.changes))

    def describe(self) -> str:
        """Return text such as "step 4,096: clip 0.2 -> 0.1"."""
        origin = [] if self.run is None else [f"continues {self.run}"]
        return f"step {self.step:,}: {', '.join(origin + self._describe_changes())}"

    def _describe_changes(self) -> list[str]:
        """Return the changes as text, with one entry per setting or argument."""
        entries = []
        for path, (old, new) in self.changes.items():
            if path == "arguments":
                names = [name for name in old | new if old.get(name) != new.get(name)]
                values = [(name, old.get(name), new.get(name)) for name in names]
            else:
                values = [(path.rpartition(".")[2], old, new)]
            entries += [
                f"{name} {_format_setting(before)} -> {_format_setting(after)}"
                for name, before, after in values
            ]
        return entries


def _is_structure(path: str) -> bool:
    return path == OPTIMIZER_SETTING or path.partition(".")[0] == "network"


def _format_setting(value: object) -> str:
    if value is None:
        return UNSET
    if isinstance(value, dict):  # the settings of a network that a function replaces
        return "settings"
    return value if isinstance(value, str) else format_value(value)


def parse_phases(values: object) -> tuple[Phase, ...]:
    """Convert the phases in config.yaml.

    Raises:
        UsageError: If a key is missing or unknown, or a value has the wrong type.
    """
    phases = []
    for index, entry in enumerate(coerce("phases", values, tuple[dict[str, Any], ...])):
        name = f"phases[{index}]"
        if set(entry) != {"step", "changes", "run"}:
            raise UsageError(
                f"{name} must have the keys step, changes and run, got {format_value(entry)}. "
                "Restore an earlier version of the file."
            )
        pairs = coerce(f"{name}.changes", entry["changes"], dict[str, tuple[Any, Any]])
        for path in pairs:
            is_setting = path.startswith("config.") or _is_structure(path)
            if path not in EVALUATION_SETTINGS and not is_setting:
                raise UnknownSettingError(f"setting in {name}.changes", path, EVALUATION_SETTINGS)
        for part in pairs.get("arguments", ()):
            coerce(f"{name}.changes.arguments", part, dict[str, Any])
        phases.append(
            Phase(
                step=coerce(f"{name}.step", entry["step"], int),
                changes=pairs,
                run=coerce(f"{name}.run", entry["run"], str | None),
            )
        )
    return tuple(phases)


def best_phase_starts(phases: Sequence[Phase]) -> tuple[int, ...]:
    """Return the steps after which a new best checkpoint is selected, ascending.

    A phase has a separate best checkpoint if its evaluations cannot be compared with earlier ones,
    or if it has another network or another kind of optimizer.
    """
    return tuple(
        sorted(
            phase.step
            for phase in phases
            if phase.changes_structure or phase.changes.keys() & set(EVALUATION_SETTINGS)
        )
    )


def count_phases(settings: Record) -> int:
    """Return the number of phases in the settings of a checkpoint. 0 for older checkpoints."""
    phases = settings.get("phases")
    return len(phases) if isinstance(phases, list) else 0


def undo_phases(settings: Record, count: int) -> Record:
    """Return the settings of a run before its phases after the first `count`.

    Args:
        settings: Settings of the run as JSON values.
        count: Number of phases to keep.
    """
    earlier = copy.deepcopy(settings)
    phases = earlier.get("phases", [])
    for phase in reversed(phases[count:]):
        for path, (old, _) in phase["changes"].items():
            section, _, name = path.partition(".")
            if not name:
                earlier[section] = old
            elif name in earlier[section]:  # checkpoints do not store all options
                earlier[section][name] = old
    return earlier | {"phases": phases[:count]}


def with_starts(phases: Sequence[Phase], count: int, step: int) -> tuple[Phase, ...]:
    """Return the phases, with later starts than `step` set to `step` after the first `count`.

    A resumed run may continue from an older checkpoint than the one at which a phase began.
    """
    return tuple(
        phase if index < count else dataclasses.replace(phase, step=min(phase.step, step))
        for index, phase in enumerate(phases)
    )
