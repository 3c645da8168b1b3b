"""Model card of an exported policy: origin, scores, settings and code to load it."""

import dataclasses
import datetime
import json
from pathlib import Path

import numpy as np

from rollax.environments.capabilities import capabilities
from rollax.errors import UsageError
from rollax.exporting.formats import ExportFormat
from rollax.exporting.parity import Parity
from rollax.exporting.policy_function import KEY, RESET, UNIFORM
from rollax.policy import Policy
from rollax.runtime.printing import escape_control_characters
from rollax.training.checkpoints import compatibility
from rollax.training.checkpoints.warm_start import summarize_warm_start
from rollax.training.console.messages import (
    describe_opponent_pool,
    describe_varied_parameters,
)
from rollax.training.evaluation.metrics import format_number
from rollax.training.evaluation.statistics import summarize
from rollax.training.run_folder import layout
from rollax.training.run_folder.files import MAX_SMALL_FILE_BYTES, read_regular_file
from rollax.training.run_folder.layout import CUSTOM, ENVIRONMENT_FILE, EVALUATIONS_FILE
from rollax.training.run_folder.recorder import read_evaluations
from rollax.training.spec import Spec, get_algorithm_entry
from rollax.types import Record, Settings
from rollax.version import __version__

EvaluationRows = list[tuple[str, int, dict[str, float]]]


def unfinished_run_warnings(policy: Policy, folder: Path) -> list[str]:
    """Return a list with one warning if the run is still training, otherwise an empty list."""
    spec = policy.spec
    end = spec.total_updates * spec.config.steps_per_update
    if policy.step >= end or not layout.is_folder_locked(folder):
        return []
    return [
        f"The run is still training. This is its checkpoint at step {policy.step:,} of {end:,}."
    ]


def policy_metadata(policy: Policy, folder: Path, greedy: bool) -> Record:
    """Return metadata of a policy as JSON values: run, algorithm, environment, step and seed."""
    spec = policy.spec
    member = (
        {} if policy.member is None else {"member": policy.member, **spec.members()[policy.member]}
    )
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


def format_model_card(
    policy: Policy, folder: Path, document: Record, export_format: ExportFormat, parity: Parity
) -> str:
    """Return the model card as Markdown.

    Args:
        policy: Exported policy.
        folder: Folder of the run.
        document: Content of policy.json.
        export_format: Export format.
        parity: Comparison of the exported files with the policy.
    """
    spec = policy.spec
    started_from = summarize_warm_start(folder)
    warm_start = {"started from": started_from} if started_from else {}
    sections = [
        f"# {spec.algorithm} on {spec.environment}",
        f"A policy trained with rollax {__version__}, exported on {document['date']} as "
        f"`{document['file']}`: {export_format.summary}. It maps observations of the environment "
        f"to {document['actions']} actions in the environment's units. "
        "`policy.json` lists names, shapes, types and bounds.",
        format_table({"": ""} | origin_rows(policy, document) | warm_start),
        "## Scores",
        format_scores(policy, folder),
        "## Settings that differ from the defaults",
        format_settings(spec),
        "## Inputs and outputs",
        format_signature(document),
        "## Load the policy",
        "In the folder of the files:\n\n"
        f"```python\n{format_loading_code(document, export_format)}```",
        f"Compared with `Policy.act` of rollax, {parity}.",
        "## Versions",
        format_versions(folder),
    ]
    return "\n\n".join(sections) + "\n"


def format_table(rows: dict[str, str]) -> str:
    """Return a Markdown table with one row per entry. The first entry is the header."""
    (first, second), *rest = rows.items()
    return "\n".join(
        [
            f"| {first} | {second} |",
            "|---|---|",
            *(f"| {name} | {_format_cell(value)} |" for name, value in rest),
        ]
    )


def origin_rows(policy: Policy, document: Record) -> dict[str, str]:
    """Return the rows of a table about task, spaces, algorithm and run, keyed by label."""
    spec, environment = policy.spec, policy.environment
    arguments, evaluated = (
        ", ".join(f"{name} {value}" for name, value in document[kind].items())
        for kind in ("arguments", "eval_arguments")
    )
    pool = describe_opponent_pool(spec)
    varied = describe_varied_parameters(spec)
    elite = [warning for warning in policy.warnings if warning.startswith("the elite")]
    return {
        "task": spec.environment + (f" ({arguments})" if arguments else ""),
        **({"evaluations differ in": evaluated} if evaluated else {}),
        **({"training parameters": ". ".join(varied)} if varied else {}),
        **({"opponent pool": ". ".join(pool)} if pool else {}),
        "observations": str(environment.observation_space),
        "actions": str(environment.action_space),
        **(
            {}
            if environment.num_agents is None
            else {"agents": ", ".join(capabilities(environment).agent_types)}
        ),
        "algorithm": f"{spec.algorithm}: {get_algorithm_entry(spec.algorithm).summary}",
        "trained for": f"{policy.step:,} {get_algorithm_entry(spec.algorithm).unit}",
        "seed": str(document["seed"]),
        **({} if policy.member is None else {"member": f"{policy.member} of {spec.num_members}"}),
        **({"elite": elite[-1]} if elite else {}),
        **({"phases": "; ".join(phase.describe() for phase in spec.phases)} if spec.phases else {}),
        "run": document["run"],
    }


def format_scores(policy: Policy, folder: Path) -> str:
    """Return a Markdown table of the last, the best and the exported checkpoint's evaluation."""
    rows = summarize_evaluations(policy, folder)
    if not rows:
        return "The run has no readable evaluation."
    head = (
        "| evaluation | step | episodes | mean return | std | interquartile mean, 95 % interval |\n"
        "|---|---|---|---|---|---|"
    )
    lines = [
        f"| {name} | {step:,} | {_format_episode_count(values)} | {format_number(values['mean'])} "
        f"| {format_number(values['std'])} | {format_number(values['iqm'])} "
        f"[{format_number(values['iqm_low'])}, {format_number(values['iqm_high'])}] |"
        for name, step, values in rows
    ]
    note = (
        "The best checkpoint was selected by these episodes, so its scores are biased upwards. "
        "`rollax eval` evaluates it on new episodes."
    )
    sampling = "sampled" if policy.spec.options.eval_stochastic else "greedy"
    return "\n".join([head, *lines, "", f"Complete episodes, {sampling} actions. {note}"])


def _format_episode_count(values: dict[str, float]) -> str:
    """Format the number of episodes and, if positive, the number of non-finite returns."""
    count, total = int(values["count"]), int(values["total"])
    return f"{total}" if count == total else f"{count} of {total} ({total - count} not finite)"


def summarize_evaluations(policy: Policy, folder: Path) -> EvaluationRows:
    """Summarize episode returns of the last, the best and the exported checkpoint's evaluation.

    Returns of several agents are averaged. For a population, only the policy's member is used.

    Returns:
        One (name, step, statistics) tuple per evaluation. Empty if no evaluation can be read.
    """
    spec, path = policy.spec, folder / EVALUATIONS_FILE
    try:
        arrays = read_evaluations(path) if path.exists() else None
        with compatibility.open_checkpoints(folder, spec) as checkpoints:
            best = checkpoints.best()
    except UsageError:
        return []
    if arrays is None or not len(arrays["step"]):
        return []
    steps = [int(step) for step in arrays["step"]]
    step_by_label = {"last": steps[-1], "best": best, "this checkpoint": policy.step}
    rows: EvaluationRows = []
    for name, step in step_by_label.items():
        if step in steps and (name != "this checkpoint" or step not in [row[1] for row in rows]):
            assert step is not None
            returns = arrays["returns"][len(steps) - 1 - steps[::-1].index(step)]
            returns = returns if policy.member is None else returns[policy.member]
            numbers = summarize(np.asarray(returns, float).reshape(len(returns), -1).mean(axis=1))
            rows.append((name, step, numbers | {"total": len(returns)}))
    return rows


def format_settings(spec: Spec) -> str:
    """Return a Markdown table of algorithm and network settings that differ from the defaults."""
    kinds = get_algorithm_entry(spec.algorithm)
    changed = changed_settings("config", spec.config, kinds.config())
    if spec.network == CUSTOM:
        changed["network"] = "custom"
    else:
        changed |= changed_settings("network", spec.network, kinds.network_config())
    return format_table({"setting": "value"} | changed) if changed else "None."


def changed_settings(prefix: str, settings: Settings, defaults: Settings) -> dict[str, str]:
    """Return the fields that differ from the defaults as strings, keyed by "prefix.field".

    `total_updates` is left out because each run derives it from `total_steps`.
    """
    values = {
        field.name: getattr(settings, field.name)
        for field in dataclasses.fields(settings)
        if field.name != "total_updates"
    }
    return {
        f"{prefix}.{name}": str(value)
        for name, value in values.items()
        if value != getattr(defaults, name)
    }


def format_signature(document: Record) -> str:
    """Return a Markdown table of inputs and outputs."""
    lines = ["| | name | shape | type | |", "|---|---|---|---|---|"]
    for direction in ("inputs", "outputs"):
        for array in document[direction]:
            shape, meaning = ", ".join(map(str, array["shape"])), array.get("meaning", "")
            lines.append(
                f"| {direction[:-1]} | `{array['name']}` | [{shape}] | {array['dtype']} | "
                f"{meaning} |"
            )
    return "\n".join(lines)


def format_loading_code(document: Record, export_format: ExportFormat) -> str:
    """Return a complete Python program that loads the policy and computes one action."""
    names = [array["name"] for array in document["inputs"]]
    size = 1 if document["batch"] == "any" else document["batch"]
    lines = [
        "import json\nfrom pathlib import Path\n\nimport numpy as np\n",
        'description = json.loads(Path("policy.json").read_text())',
        export_format.loading_code,
        "inputs = {}",
        'for one in description["inputs"]:',
        f'    shape = [{size} if side == "batch" else side for side in one["shape"]]\n'
        "    # Replace the zeros by observations.",
        '    inputs[one["name"]] = np.zeros(shape, one["dtype"])',
    ]
    if RESET in names:
        lines.append('inputs["reset"][:] = True  # at the first step of an episode')
    if KEY in names:
        lines.append(
            'inputs["key"][:] = np.random.default_rng().integers('
            '2**32, size=inputs["key"].shape, dtype=np.uint32)'
        )
    for name in names:
        if name.startswith(UNIFORM):
            lines.append(
                f'inputs["{name}"] = '
                f'np.random.default_rng().random(inputs["{name}"].shape, np.float32)'
            )
    lines.append("outputs = act(inputs)")
    lines += [
        f'print(np.asarray(outputs["{output["name"]}"]))'
        for output in document["outputs"]
        if not output["name"].startswith("next_")
    ]
    if RESET in names:
        lines += [
            "# Pass the memory to the next step.",
            "inputs |= {name[5:]: memory for name, memory in outputs.items() "
            'if name.startswith("next_")}',
        ]
    return "\n".join(lines) + "\n"


def format_versions(folder: Path) -> str:
    """Return a Markdown table of the package versions that the run recorded."""
    try:
        machine = json.loads(read_regular_file(folder / ENVIRONMENT_FILE, MAX_SMALL_FILE_BYTES))
        packages = {"python": machine["python"], **machine["packages"]}
        rows = {str(name): str(version) for name, version in packages.items()} | {
            "trained on": str(machine["date"])[:10]
        }
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        rows = {"rollax": __version__}
    return format_table({"package": "version"} | rows)


def _format_cell(text: str) -> str:
    """Return text escaped for a cell of a Markdown table, truncated to 300 characters."""
    flat = (
        escape_control_characters(" ".join(text.split())).replace("|", "\\|").replace("<", "&lt;")
    )  # Markdown may contain HTML
    return flat if len(flat) <= 300 else f"{flat[:300]} ..."
