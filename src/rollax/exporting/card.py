"""What a person should know of an exported policy: where it is from, how good it is, and how it is opened."""

import dataclasses
import datetime
import json
from pathlib import Path
from typing import Any

import numpy as np

from rollax.environments.core import agent_types
from rollax.errors import UsageError
from rollax.exporting.formats import Format
from rollax.exporting.parity import Parity
from rollax.exporting.policy import KEY, RESET, UNIFORM
from rollax.host import resuming, run_folder
from rollax.host.evaluation import digits
from rollax.host.record import read_evaluations
from rollax.host.run_folder import CUSTOM, ENVIRONMENT, EVALUATIONS
from rollax.host.settings import Spec, entry
from rollax.host.statistics import summarize
from rollax.version import __version__

Rows = list[tuple[str, int, dict[str, float]]]


def of_progress(policy: Any, folder: Path) -> list[str]:
    """What is said of a run that is not at its end: that a later checkpoint may follow."""
    spec = policy.spec
    end = spec.total_updates * spec.config.steps_per_update
    if policy.step >= end or not run_folder.is_held(folder):
        return []
    return [f"the run is still being trained: this is its checkpoint of step {policy.step:,} of {end:,}"]


def facts(policy: Any, folder: Path, greedy: bool) -> dict[str, Any]:
    """Where a policy is from, as plain values."""
    spec = policy.spec
    member = {} if policy.member is None else {"member": policy.member, **spec.members()[policy.member]}
    return {
        "algorithm": spec.algorithm,
        "environment": spec.environment,
        "arguments": {name: str(value) for name, value in spec.arguments.items()},
        "eval_arguments": {name: str(value) for name, value in spec.eval_arguments.items()},
        "actions": "greedy" if greedy else "sampled",
        "step": policy.step,
        "seed": spec.options.seed,
        **member,
        "run": folder.resolve().name,
        "rollax": __version__,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }


def write(policy: Any, folder: Path, document: dict[str, Any], kind: Format, parity: Parity) -> str:
    """The model card as Markdown."""
    spec = policy.spec
    parts = [
        f"# {spec.algorithm} on {spec.environment}",
        f"A policy trained with rollax {__version__}, exported on {document['date']} as `{document['file']}`: {kind.summary}. "
        f"It takes observations of the environment and gives {document['actions']} actions in the environment's units; "
        "`policy.json` has names, shapes, types and bounds.",
        table({"": ""} | about(policy, document)),
        "## Scores",
        scores(policy, folder),
        "## Settings that differ from the defaults",
        settings(spec),
        "## Inputs and outputs",
        signature(document),
        "## How to open it",
        f"In the folder of the files:\n\n```python\n{opening(document, kind)}```",
        f"Against `Policy.act` of rollax, {parity}.",
        "## Versions",
        versions(folder),
    ]
    return "\n\n".join(parts) + "\n"


def table(rows: dict[str, str]) -> str:
    (first, second), *rest = rows.items()
    return "\n".join([f"| {first} | {second} |", "|---|---|", *(f"| {name} | {_cell(value)} |" for name, value in rest)])


def about(policy: Any, document: dict[str, Any]) -> dict[str, str]:
    """Task and origin."""
    spec, environment = policy.spec, policy.environment
    arguments, evaluated = (
        ", ".join(f"{name} {value}" for name, value in document[kind].items()) for kind in ("arguments", "eval_arguments")
    )
    elite = [warning for warning in policy.warnings if warning.startswith("the elite")]
    return {
        "task": spec.environment + (f" ({arguments})" if arguments else ""),
        **({"evaluations differ in": evaluated} if evaluated else {}),
        "observations": str(environment.observation_space),
        "actions": str(environment.action_space),
        **({} if environment.num_agents is None else {"agents": ", ".join(agent_types(environment))}),
        "algorithm": f"{spec.algorithm}: {entry(spec.algorithm).summary}",
        "trained for": f"{policy.step:,} {entry(spec.algorithm).unit}",
        "seed": str(document["seed"]),
        **({} if policy.member is None else {"member": f"{policy.member} of {spec.num_members}"}),
        **({"elite": elite[-1]} if elite else {}),
        "run": document["run"],
    }


def scores(policy: Any, folder: Path) -> str:
    """A table of the run's last and best evaluation, and that of this checkpoint where it is another."""
    rows = evaluations(policy, folder)
    if not rows:
        return "The run has no evaluation that can be read."
    head = "| evaluation | step | episodes | mean return | std | interquartile mean, 95 % interval |\n|---|---|---|---|---|---|"
    lines = [
        f"| {name} | {step:,} | {values['count']:.0f} | {digits(values['mean'])} | {digits(values['std'])} | "
        f"{digits(values['iqm'])} [{digits(values['iqm_low'])}, {digits(values['iqm_high'])}] |"
        for name, step, values in rows
    ]
    note = (
        "The best checkpoint was chosen by these episodes, so that its numbers are too high for it; `rollax eval` plays others."
    )
    how = "sampled" if policy.spec.options.eval_stochastic else "greedy"
    return "\n".join([head, *lines, "", f"Whole episodes, {how} actions. {note}"])


def evaluations(policy: Any, folder: Path) -> Rows:
    """Summaries of returns, of agents their mean; of a population those of its member."""
    spec, path = policy.spec, folder / EVALUATIONS
    try:
        arrays = read_evaluations(path) if path.exists() else None
        with resuming.checkpoints_of(folder, spec) as checkpoints:
            best = checkpoints.best()
    except UsageError:
        return []
    if arrays is None or not len(arrays["step"]):
        return []
    steps = [int(step) for step in arrays["step"]]
    wanted = {"last": steps[-1], "best": best, "this checkpoint": policy.step}
    rows: Rows = []
    for name, step in wanted.items():
        if step in steps and (name != "this checkpoint" or step not in [row[1] for row in rows]):
            assert step is not None
            returns = arrays["returns"][len(steps) - 1 - steps[::-1].index(step)]
            returns = returns if policy.member is None else returns[policy.member]
            rows.append((name, step, summarize(np.asarray(returns, float).reshape(len(returns), -1).mean(axis=1))))
    return rows


def settings(spec: Spec) -> str:
    """Those of the algorithm and the network, by name."""
    kinds = entry(spec.algorithm)
    changed = differing("config", spec.config, kinds.config())
    if spec.network == CUSTOM:
        changed["network"] = "of the user's own"
    else:
        changed |= differing("network", spec.network, kinds.network_config())
    return table({"setting": "value"} | changed) if changed else "None."


def differing(prefix: str, given: Any, defaults: Any) -> dict[str, str]:
    """The fields of a dataclass that are not as in another. How long training is, a run sets itself."""
    values = {field.name: getattr(given, field.name) for field in dataclasses.fields(given) if field.name != "total_updates"}
    return {f"{prefix}.{name}": str(value) for name, value in values.items() if value != getattr(defaults, name)}


def signature(document: dict[str, Any]) -> str:
    lines = ["| | name | shape | type | |", "|---|---|---|---|---|"]
    for side in ("inputs", "outputs"):
        for one in document[side]:
            shape, meaning = ", ".join(map(str, one["shape"])), one.get("meaning", "")
            lines.append(f"| {side[:-1]} | `{one['name']}` | [{shape}] | {one['dtype']} | {meaning} |")
    return "\n".join(lines)


def opening(document: dict[str, Any], kind: Format) -> str:
    """A program that opens the policy and acts once, as it stands."""
    names = [one["name"] for one in document["inputs"]]
    size = 1 if document["batch"] == "any" else document["batch"]
    lines = [
        "import json\nfrom pathlib import Path\n\nimport numpy as np\n",
        'description = json.loads(Path("policy.json").read_text())',
        kind.opening,
        "inputs = {}",
        'for one in description["inputs"]:',
        f'    shape = [{size} if side == "batch" else side for side in one["shape"]]  # here go observations',
        '    inputs[one["name"]] = np.zeros(shape, one["dtype"])',
    ]
    if RESET in names:
        lines.append('inputs["reset"][:] = True  # where an episode begins')
    if KEY in names:
        lines.append('inputs["key"][:] = np.random.default_rng().integers(2**32, size=inputs["key"].shape, dtype=np.uint32)')
    for name in names:
        if name.startswith(UNIFORM):
            lines.append(f'inputs["{name}"] = np.random.default_rng().random(inputs["{name}"].shape, np.float32)')
    lines += ["outputs = act(inputs)", 'print(np.asarray(outputs["action"]))']
    if RESET in names:
        lines += [
            "# For the next step the memory goes in again.",
            'inputs |= {name[5:]: memory for name, memory in outputs.items() if name.startswith("next_")}',
        ]
    return "\n".join(lines) + "\n"


def versions(folder: Path) -> str:
    """What the run was trained with, as far as its folder says."""
    try:
        found = json.loads((folder / ENVIRONMENT).read_text())
        packages = {"python": found["python"], **found["packages"]}
        rows = {str(name): str(version) for name, version in packages.items()} | {"trained on": str(found["date"])[:10]}
    except (OSError, ValueError, KeyError, TypeError):
        rows = {"rollax": __version__}
    return table({"package": "version"} | rows)


def _cell(text: str) -> str:
    """A text in a row of a table; long ones cut."""
    flat = " ".join(text.split()).replace("|", "\\|")
    return flat if len(flat) <= 300 else f"{flat[:300]} ..."
