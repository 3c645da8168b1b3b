"""Continuation of a state under another network or another kind of optimizer.

Arrays are matched by their path in the state, as in a warm start. An array that has the same shape
is copied. The state of an optimizer is copied completely or not at all, because its count of steps
corrects the bias of all of its moments. All other arrays are initialized as in a new run.
"""

import dataclasses
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import jax

from rollax.algorithm import Algorithm
from rollax.config import CUSTOM, UserFunction
from rollax.training.checkpoints import compatibility
from rollax.training.checkpoints.leaves import LeafChanges, named_leaves
from rollax.training.checkpoints.summary import CheckpointSummary, LeafRecord
from rollax.training.checkpoints.warm_start import ArrayMatch, describe_outcomes
from rollax.training.run_folder import layout
from rollax.training.run_folder.phases import OPTIMIZER_SETTING, count_phases, undo_phases
from rollax.training.spec import Spec, get_algorithm_entry
from rollax.training.spec_file import parse_section
from rollax.types import Record, State

_COMPONENT = re.compile(r"(\['[^']*'\])*")  # keys before the state of an optimizer, by component


def with_checkpoint_structure(folder: Path, spec: Spec, checkpoint: str | int) -> Spec:
    """Return the specification with the network and the optimizer of a checkpoint.

    They differ from those of the run if a later phase changed them.

    Args:
        folder: Folder of the run.
        spec: Specification of the run.
        checkpoint: "last", "best" or a step.

    Raises:
        UsageError: If the checkpoint does not exist or cannot be read.
    """
    if not any(phase.changes_structure for phase in spec.phases):
        return spec
    with compatibility.open_checkpoints(folder, spec) as checkpoints:
        which = compatibility.parse_checkpoint(checkpoint, checkpoints)
        newest = next(checkpoints.readable_summaries(), None)
        if which == "last":
            return spec if newest is None else _with_earlier_structure(spec, newest.settings)
        settings = checkpoints.summary(checkpoints.find_step(which)).settings
        return _with_earlier_structure(spec, settings)


def _with_earlier_structure(spec: Spec, settings: Record) -> Spec:
    """Return the specification with the network and the optimizer in the settings of a checkpoint.

    Other settings of later phases stay, because they fit every checkpoint.
    """
    count = count_phases(settings)
    if not any(phase.changes_structure for phase in spec.phases[count:]):
        return spec
    earlier = undo_phases(layout.persistent_settings(spec), count)
    network = earlier["network"]
    if network != CUSTOM:
        network_class = get_algorithm_entry(spec.algorithm).network_config
        network = parse_section("network", network_class, network)
    spec = dataclasses.replace(spec, network=network)
    name = OPTIMIZER_SETTING.removeprefix("config.")
    if name not in earlier["config"]:
        return spec
    optimizer = earlier["config"][name]
    optimizer = UserFunction() if optimizer == CUSTOM else optimizer
    config = dataclasses.replace(spec.config, **{name: optimizer})
    return dataclasses.replace(spec, config=config)


def carry_over(
    algorithm: Algorithm,
    summary: CheckpointSummary,
    initial: State,
    message_fn: Callable[[str], None],
) -> LeafChanges:
    """Return the arrays of an initial state that a checkpoint does not have, and list them.

    Args:
        algorithm: Algorithm, vectorized over members if the state is of a population.
        summary: Summary of the checkpoint.
        initial: Initial state with the new network and optimizer.
        message_fn: Function that shows a line.
    """
    matches, restarted = match_state(algorithm, summary.leaves, initial)
    roots = tuple({path.partition("[")[0] for path in restarted})

    def is_optimizer(match: ArrayMatch) -> bool:
        return bool(roots) and match.name.startswith(roots)

    names = {outcome: [m for m in matches if m.outcome == outcome] for outcome in _OUTCOMES}
    listed = {
        outcome: [str(match) for match in names[outcome] if not is_optimizer(match)]
        for outcome in ("initialized", "unused")
    }
    components = sorted(set(restarted.values()))
    listed["initialized"] += [f"optimizer state{name and f' of {name}'}" for name in components]
    message_fn(f"The state at step {summary.step:,} continues with another network or optimizer")
    for line in describe_outcomes(len(names["copied"]), listed):
        message_fn(line)
    leaves = dict(named_leaves(initial))
    return LeafChanges(
        replaced={match.name: leaves[match.name] for match in names["initialized"]},
        unused=frozenset(match.name for match in names["unused"]),
    )


_OUTCOMES = ("copied", "initialized", "unused")


def match_state(
    algorithm: Algorithm, records: Sequence[LeafRecord], state: State
) -> tuple[list[ArrayMatch], dict[str, str]]:
    """Match the arrays of a state with those of a checkpoint.

    Args:
        algorithm: Algorithm, vectorized over members if the state is of a population.
        records: Descriptions of the leaves of the checkpoint.
        state: State with the new network and optimizer.

    Returns:
        The match of every array, and the component of each leaf of an optimizer state that is
        initialized, keyed by the path of the leaf.
    """
    saved, new = {record.path: record for record in records}, dict(named_leaves(state))
    matches = []
    for path in new | saved:
        match = ArrayMatch(
            path,
            source_shape=saved[path].shape if path in saved else None,
            target_shape=new[path].shape if path in new else None,
        )
        is_same_shape = match.source_shape == match.target_shape
        if is_same_shape and saved[path].dtype == str(new[path].dtype):
            match = match._replace(array=saved[path])
        matches.append(match)
    components = _optimizer_components(algorithm, state, list(new))
    incomplete = {
        components[match.name]
        for match in matches
        if match.outcome == "initialized" and match.name in components
    }
    restarted = {path: name for path, name in components.items() if name in incomplete}
    return [
        match._replace(array=None) if match.name in restarted else match for match in matches
    ], restarted


def _optimizer_components(algorithm: Algorithm, state: State, paths: list[str]) -> dict[str, str]:
    """Return the component of the agent, such as "actor", of each leaf of an optimizer state."""
    structure = jax.tree.structure(state)
    # `parts` only selects nodes, so it also selects the positions of leaves.
    parts = algorithm.parts(structure.unflatten(range(structure.num_leaves)))
    components = {}
    for path, position in jax.tree_util.tree_leaves_with_path(parts.get("optimizer")):
        match = _COMPONENT.match(jax.tree_util.keystr(path))
        names = re.findall(r"'([^']*)'", match[0] if match else "")
        components[paths[position]] = ".".join(names)
    return components
