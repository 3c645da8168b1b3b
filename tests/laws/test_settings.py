"""Every traced setting affects the result, and every preset is valid."""

import dataclasses
import importlib.resources
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import yaml

import rollax.environments
from laws.programs import differs, fresh, network_of, plain
from laws.table import BY_NAME, LEARNERS, names
from rollax import (
    C51Config,
    DQNConfig,
    ImpalaConfig,
    IQNConfig,
    PPOConfig,
    PPORNDConfig,
    PQNConfig,
    QRDQNConfig,
    RainbowConfig,
    SACConfig,
    TD3Config,
    tree,
)
from rollax.config import traced_field_names
from rollax.learning import minibatches
from rollax.populations import population
from rollax.training import presets
from rollax.training.compile import program
from rollax.training.compile.segments import segment
from rollax.training.spec import RunOptions, make_spec
from support.parameters import mark_quick

# Learning from replay starts in the first update, and schedules end within four updates.
SHORT = {
    "learning_rate_final_fraction": 0.5,
    "total_updates": 4.0,
    "warmup": 20.0,
    "learning_starts": 48.0,
}
PPO = {
    "learning_rate_schedule": "kl",
    "clip_values": True,
    "value_clip": 0.05,
    "clip": 0.02,
    "learning_rate": 3e-2,
    "critic_learning_rate": 2e-2,
    "learning_rate_final_fraction": 0.5,
    "entropy_final_fraction": 0.5,
    "total_updates": 4.0,
    "entropy_coefficient": 0.1,
}
Q_LEARNING = {
    "prioritized": True,
    "epsilon": 0.9,
    "epsilon_final_fraction": 0.1,
    "max_grad_norm": 1e-3,
    "adam_epsilon": 0.1,
}
# For each config class: a row, settings under which all others have an effect, and changed values.
# The default change is half the value.
LIVE = {
    PPOConfig: ("ppo", PPO, {"target_kl": 1e-9, "learning_rate_kl": 1e-9}),
    PPORNDConfig: ("ppo_rnd", PPO, {"target_kl": 1e-9, "learning_rate_kl": 1e-9}),
    ImpalaConfig: (
        "impala",
        {
            "prioritized": True,
            "objective": "clipped",
            "sequence_length": 4,
            "learning_rate_schedule": "kl",
            "critic_learning_rate": 2e-2,
            "learning_rate_final_fraction": 0.5,
            "entropy_final_fraction": 0.5,
            "total_updates": 8.0,
            "max_grad_norm": 0.3,
            "adam_epsilon": 0.1,
            "rho_clip": 1.01,
            "c_clip": 1.01,
            "clip": 0.02,
        },
        {"target_kl": 1e-9, "learning_rate_kl": 1e-9},
    ),
    DQNConfig: (
        "dqn-rainbow",
        SHORT | Q_LEARNING | {"huber_delta": 0.1},
        {"target_update_period": 2.0},
    ),
    C51Config: ("c51", SHORT | Q_LEARNING, {"target_update_period": 2.0}),
    QRDQNConfig: (
        "qr_dqn",
        SHORT | Q_LEARNING | {"huber_delta": 0.1},
        {"target_update_period": 2.0},
    ),
    IQNConfig: (
        "iqn",
        SHORT | Q_LEARNING | {"huber_delta": 0.1},
        {"target_update_period": 2.0},
    ),
    RainbowConfig: ("rainbow", SHORT | Q_LEARNING, {"target_update_period": 2.0}),
    PQNConfig: (
        "pqn",
        {
            "learning_rate_final_fraction": 0.5,
            "total_updates": 4.0,
            "max_grad_norm": 1e-3,
            "adam_epsilon": 0.1,
            "epsilon_final_fraction": 0.3,
        },
        {},
    ),
    TD3Config: (
        "td3",
        SHORT
        | {
            "noise_correlation": 0.5,
            "target_noise_clip": 0.1,
            "max_grad_norm": 1e-3,
            "critic_learning_rate": 2e-2,
        },
        {},
    ),
    SACConfig: (
        "sac-mixed",
        SHORT
        | {"critic_learning_rate": 2e-2, "temperature_learning_rate": 2e-2}
        | {
            "noise_correlation": 0.5,
            "max_grad_norm": 0.5,
            "adam_epsilon": 0.1,
            "initial_temperature": 0.1,
        },
        {"policy_delay": 2.0},
    ),
}

# tests/networks/test_gsde.py shows its effect, which only some continuous policies have.
OF_CONTINUOUS_NOISE = ("sde_sample_freq",)


PRESETS = [
    (path.stem, environment)
    for path in sorted(Path(str(importlib.resources.files("rollax.presets"))).glob("*.yaml"))
    for environment in yaml.safe_load(path.read_text())
]


@pytest.mark.parametrize(("algorithm", "environment"), PRESETS)
def test_every_preset_is_valid(algorithm: str, environment: str) -> None:
    """Settings are known, within their ranges, consistent, and divide.

    Environment arguments are known.
    """
    spec = make_spec(algorithm, environment, {}, None, None, RunOptions(), {})
    config = spec.config
    assert not spec.arguments or set(spec.arguments) <= set(
        rollax.environments.default_arguments(environment)
    )
    if hasattr(config, "num_minibatches"):
        minibatches.make_layout(
            config.num_steps, config.num_envs, config.sequence_length, config.num_minibatches
        )


@pytest.mark.quick
def test_presets_have_environment_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    """They apply unless others are given, also in evaluations, but not to an environment object."""
    tuned = {"control/point-maze": {"env": {"time_limit": 7, "step_size": 0.1}}}
    monkeypatch.setattr(presets, "_load_builtin_presets", lambda algorithm: tuned)

    def run(**arguments):
        return make_spec("td3", "control/point-maze", arguments, None, None, RunOptions(), {})

    assert run().arguments == {"time_limit": 7, "step_size": 0.1}
    assert run(step_size=0.2).arguments == {"time_limit": 7, "step_size": 0.2}
    assert program.with_custom_objects(run(), object(), None).arguments == {}
    assert (
        program.build_algorithm_and_environment(run())[1].time_limit
        == program.evaluation_environment(run(), None).time_limit
        == 7
    )


def test_the_preset_of_the_riddle_has_memory() -> None:
    """The task needs memory of previous days, and agents that know their index."""
    spec = make_spec("ppo", "jaxmarl/switch_riddle", {}, None, None, RunOptions(), {})
    assert spec.network.core == "gru" and spec.network.agent_id and spec.config.sequence_length >= 6
    assert spec.options.total_steps == 1_500_000


@pytest.mark.quick
def test_every_config_class_is_tested() -> None:
    assert set(LIVE) == {type(BY_NAME[name].config) for name in LEARNERS}


@pytest.mark.parametrize("kind", mark_quick(LIVE, PQNConfig), ids=lambda kind: kind.__name__)
def test_every_number_changes_the_result(kind: type) -> None:
    """One member per traced setting differs from the unchanged member after three updates."""
    name, settings, changes = LIVE[kind]
    settings = settings | {"weight_decay": 0.1, "learning_rate_warmup_fraction": 0.5}
    config = tree.to_arrays(dataclasses.replace(BY_NAME[name].config, **settings))
    fields = [name for name in traced_field_names(kind) if name not in OF_CONTINUOUS_NOISE]
    members = [config] + [
        dataclasses.replace(
            config, **{field: jnp.asarray(changes.get(field, getattr(config, field) / 2))}
        )
        for field in fields
    ]
    assert all(differs(member, config) for member in members[1:]), (
        "every member differs in one setting"
    )
    algorithm = BY_NAME[name].make(BY_NAME[name].environment)
    init = jax.jit(algorithm.init)
    states = jax.tree.map(
        lambda *x: jnp.stack(x), *[init(jax.random.key(0), member) for member in members]
    )
    step = jax.jit(population(algorithm).step)
    for _ in range(3):
        states, _ = step(fresh(states))
    network = plain(network_of(states))
    own = [jax.tree.map(lambda x, i=i: x[i], network) for i in range(len(members))]
    dead = [
        field for field, result in zip(fields, own[1:], strict=True) if not differs(result, own[0])
    ]
    assert not dead


# Settings that others of an archive need to have an effect, and changed values of some.
POLYNOMIAL = {"variation": "polynomial", "crossover": "simulated_binary", "mutation_fraction": 0.5}
NEEDED: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("eta", "mutation_fraction", "crossover_fraction"), POLYNOMIAL),
    # With enough iterations, solutions fall into cells whose thresholds have changed.
    "archive_learning_rate": {"num_iterations": 10},
}
CHANGED = {"threshold_start": 95.0, "archive_learning_rate": 1.0}
ONLY_SCORES = ("qd_offset", "total_updates")


@pytest.mark.parametrize("name", names("archive"))
def test_every_number_changes_the_archive(name: str) -> None:
    """Each traced setting changes the archive or the emitter.

    `qd_offset` changes only the score.
    """
    row = BY_NAME[name]
    algorithm = row.make(row.environment)
    init, run = jax.jit(algorithm.init), jax.jit(segment(algorithm, 4))

    def outcome(settings: dict[str, Any]) -> tuple[list[Any], Any]:
        config = dataclasses.replace(row.config, **settings)
        state, metrics = run(init(jax.random.key(0), config), jnp.int32(4))
        archive, archive_state = algorithm.archived.archive(state)
        found = archive.elites(archive_state).solutions.fitness
        return [found, *jax.tree.leaves(state.emitter)], metrics.values

    plain_run, dead = outcome({}), []
    for field in traced_field_names(type(row.config)):
        needed = NEEDED.get(field, {})
        changed = CHANGED.get(field, getattr(row.config, field) * 0.5 + 0.2)
        before, values = outcome(needed) if needed else plain_run
        if field not in ONLY_SCORES:
            after, _ = outcome(needed | {field: changed})
            dead += [field] * all(map(jnp.array_equal, before, after))
        elif field == "qd_offset":
            other = outcome({field: changed})[1]
            expected = values["qd_score"] + changed * values["coverage"] * 25
            np.testing.assert_allclose(other["qd_score"], expected, rtol=1e-5)
    assert not dead
