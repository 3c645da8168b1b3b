"""Settings without effect raise errors before a run starts, and others are accepted."""

from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest

import rollax
from rollax import NetworkConfig, PPOConfig, make
from rollax.networks.interop import from_equinox, from_linen, from_nnx
from rollax.training import unused_settings
from rollax.training.compile import program as programs
from rollax.training.options import RunOptions
from rollax.training.spec import make_spec

TINY = {"num_envs": 4, "num_steps": 8, "num_minibatches": 2, "num_epochs": 1}


class Shared(eqx.Module):
    """Custom network whose policy and value share a layer."""

    hidden: eqx.nn.Linear
    output: eqx.nn.Linear

    def __init__(self, key: jax.Array) -> None:
        keys = jax.random.split(key)
        self.hidden, self.output = (
            eqx.nn.Linear(1, 4, key=keys[0]),
            eqx.nn.Linear(4, 3, key=keys[1]),
        )

    def __call__(self, obs: Any) -> Any:
        outputs = self.output(jnp.tanh(self.hidden(obs)))
        return outputs[:2], outputs[2]


def check(algorithm: str, environment: str, own: Any = None, **given: Any) -> None:
    """Check settings as at the start of a run."""
    names = ("config", "network", "sweep", "evolve")
    config, network, sweep, evolve = (given.pop(name, None) for name in names)
    options = RunOptions(**({"total_steps": 10_000, "seeds": 4 if evolve else 1} | given))
    spec = make_spec(algorithm, environment, {}, config, network, options, sweep, evolve=evolve)
    if own is not None:
        spec = programs.with_custom_objects(spec, None, own)
    unused_settings.check_unused_settings(programs.adapt_to_environment(spec), None, own)


NO_TEMPERATURE = {"warmup": 100, "learn_temperature": False}
REFUSED: list[tuple[str, str, dict[str, Any], str]] = [
    (
        "ppo",
        "probe/action-reward",
        {"config": TINY | {"value_clip": 0.1}},
        r"config.value_clip \(0.1\).*clip_values to true",
    ),
    (
        "ppo",
        "probe/action-reward",
        {"config": TINY, "sweep": {"value_clip": [0.1, 0.2]}},
        "config.value_clip",
    ),
    (
        "ppo",
        "probe/action-reward",
        {"config": TINY, "evolve": {"value_clip": (0.1, 0.2)}},
        "evolve value_clip",
    ),
    ("ppo", "probe/action-reward", {"config": TINY | {"sharing": "none"}}, "config.sharing"),
    (
        "ppo",
        "probe/action-reward",
        {"config": TINY, "network": {"core_size": 8}},
        r"network.core_size \(8\).*network.core",
    ),
    (
        "ppo",
        "probe/action-reward",
        {"config": TINY, "network": {"filters": ((8, 2, 1),)}},
        "network.filters",
    ),
    (
        "ppo",
        "probe/action-reward",
        {"config": TINY, "network": {"embedding": 4}},
        "network.embedding",
    ),
    ("ppo", "probe/action-reward", {"config": TINY, "network": {"squash": True}}, "network.squash"),
    (
        "ppo",
        "probe/action-reward",
        {"config": TINY, "network": {"initial_std": 0.5}},
        "network.initial_std",
    ),
    (
        "ppo",
        "probe/action-reward",
        {"config": TINY, "env_timeout": 3.0},
        "env_timeout .3.0. has no effect",
    ),
    (
        "ppo",
        "probe/action-reward",
        {"config": TINY, "eval_max_steps": 3},
        "eval_max_steps .3. has no effect.*time limit",
    ),
    (
        "impala",
        "probe/action-reward",
        {"config": {"priority_exponent": 0.5}},
        "config.priority_exponent.*prioritized",
    ),
    (
        "impala",
        "probe/action-reward",
        {"config": {"clip": 0.1}},
        "config.clip .*objective to clipped",
    ),
    (
        "dqn",
        "probe/action-reward",
        {"config": {"warmup": 100, "importance_exponent": 0.5}},
        "config.importance_exponent",
    ),
    (
        "sac",
        "probe/continuous",
        {"config": NO_TEMPERATURE | {"target_entropy": -2.0}},
        "config.target_entropy",
    ),
    ("map_elites", "task/sphere", {"config": {"batch_size": 8, "eta": 3.0}}, "config.eta"),
    (
        "map_elites",
        "task/sphere",
        {"config": {"batch_size": 8, "crossover": "simulated_binary"}},
        "config.crossover",
    ),
    (
        "map_elites",
        "task/sphere",
        {"config": {"batch_size": 8}, "network": {"hidden": (8,)}},
        "network.hidden",
    ),
    (
        "map_elites",
        "task/sphere",
        {"config": {"batch_size": 8}, "evolve": {"qd_offset": (0, 9, "linear")}},
        "evolve qd_offset",
    ),
]


@pytest.mark.parametrize(("algorithm", "environment", "given", "message"), REFUSED)
def test_settings_without_effect_raise_usage_error(
    algorithm: str, environment: str, given: dict[str, Any], message: str
) -> None:
    with pytest.raises(rollax.UsageError, match=message):
        check(algorithm, environment, **given)


ACCEPTED: list[tuple[str, str, dict[str, Any]]] = [
    ("ppo", "probe/action-reward", {"config": PPOConfig(**TINY), "network": NetworkConfig()}),
    ("ppo", "probe/action-reward", {"config": TINY | {"clip_values": True, "value_clip": 0.1}}),
    (
        "ppo",
        "probe/action-reward",
        {"config": TINY | {"critic_learning_rate": 0.1, "critic_epochs": 3}},
    ),
    (
        "ppo",
        "probe/action-reward",
        {"config": TINY | {"gamma": 0.5}, "sweep": {"learning_rate": [0.1, 0.2]}},
    ),
    ("ppo", "probe/continuous", {"config": TINY, "network": {"squash": True, "initial_std": 0.5}}),
    (
        "ppo",
        "probe/memory",
        {"config": TINY | {"sequence_length": 8}, "network": {"core": "gru", "core_size": 8}},
    ),
    (
        "ppo",
        "probe/two-agents",
        {"config": TINY | {"sharing": "none"}, "network": {"agent_id": True}},
    ),
    (
        "sac",
        "probe/continuous",
        {"config": {"warmup": 100, "target_entropy": -2.0, "initial_temperature": 0.5}},
    ),
    (
        "map_elites",
        "task/sphere",
        {"config": {"batch_size": 8, "iso_sigma": 0.1, "grid": (4, 4), "qd_offset": 1.0}},
    ),
    (
        "map_elites",
        "task/sphere",
        {"config": {"batch_size": 8, "variation": "polynomial", "eta": 3.0}},
    ),
]


@pytest.mark.parametrize(("algorithm", "environment", "given"), ACCEPTED)
def test_settings_with_an_effect_are_accepted(
    algorithm: str, environment: str, given: dict[str, Any]
) -> None:
    check(algorithm, environment, **given)


@pytest.mark.parametrize("setting", ["critic_learning_rate", "critic_epochs"])
@pytest.mark.parametrize("algorithm", ["ppo", "ppo_rnd", "impala"])
def test_critic_settings_need_a_separate_critic(algorithm: str, setting: str) -> None:
    """The same error is raised with `network.shared`."""
    environment = make("probe/action-observation")
    config = {"num_envs": 4, "num_steps": 32, setting: 3 if setting == "critic_epochs" else 0.1}
    own = from_equinox(Shared, environment)
    with pytest.raises(rollax.UsageError, match=f"config.{setting} .*no effect.*critic"):
        check(algorithm, "probe/action-observation", own, config=config)
    config.pop(setting)
    check(algorithm, "probe/action-observation", own, config=config)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"evolve_every": 0, "evolve_fraction": 0.5},
            "evolve_fraction .0.5. has no effect with evolve_every 0",
        ),
        (
            {"evolve_every": 0, "evolve_metric": "entropy"},
            "evolve_metric .entropy. has no effect with evolve_every 0",
        ),
        (
            {"evolve_step": 0.5},
            "evolve_step .0.5. has no effect, because no setting evolves in a linear range",
        ),
    ],
)
def test_evolve_options_without_effect_raise_usage_error(
    changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(rollax.UsageError, match=message):
        check(
            "ppo",
            "probe/action-reward",
            config=TINY,
            evolve={"learning_rate": (1e-3, 1e-1)},
            **changes,
        )


@pytest.mark.quick
def test_num_steps_of_replay_on_the_host(tmp_path: Path) -> None:
    """An update has one cycle there, so num_steps must be 1 or the default."""
    pytest.importorskip("gymnasium")
    with pytest.raises(
        rollax.UsageError,
        match="config.num_steps must be 1 for sac in gymnasium/Pendulum-v1, got 25",
    ):
        check("sac", "gymnasium/Pendulum-v1", config={"num_steps": 25, "warmup": 10})
    check("sac", "gymnasium/Pendulum-v1", config={"num_steps": 1, "warmup": 10})
    check("sac", "gymnasium/Pendulum-v1", config={"warmup": 10})


def linen() -> Any:
    """Return a network of flax.linen whose policy and value share a layer."""
    nn = pytest.importorskip("flax.linen")

    class SharedLinen(nn.Module):
        @nn.compact
        def __call__(self, obs: Any) -> Any:
            outputs = nn.Dense(3)(jnp.tanh(nn.Dense(4)(obs)))
            return outputs[:2], outputs[2]

    return from_linen(SharedLinen(), make("probe/action-observation"))


def nnx() -> Any:
    """Return a network of flax.nnx whose policy and value share a layer."""
    nn = pytest.importorskip("flax.nnx")

    class SharedNnx(nn.Module):
        def __init__(self, rngs: Any) -> None:
            self.hidden, self.output = nn.Linear(1, 4, rngs=rngs), nn.Linear(4, 3, rngs=rngs)

        def __call__(self, obs: Any) -> Any:
            outputs = self.output(jnp.tanh(self.hidden(obs)))
            return outputs[:2], outputs[2]

    return from_nnx(lambda rngs: SharedNnx(rngs), make("probe/action-observation"))


PPO = ("ppo", "probe/action-observation")


@pytest.mark.parametrize(
    ("names", "make_network", "config", "message"),
    [
        (PPO, None, TINY | {"value_clip": 0.1}, "value_clip"),
        (
            PPO,
            lambda: from_equinox(Shared, make(PPO[1])),
            TINY | {"critic_learning_rate": 0.1},
            "critic_learning_rate",
        ),
        (PPO, linen, TINY | {"critic_learning_rate": 0.1}, "critic_learning_rate"),
        (PPO, nnx, TINY | {"critic_epochs": 3}, "critic_epochs"),
        (
            ("sac", "gymnasium/Pendulum-v1"),
            None,
            {"num_envs": 2, "num_steps": 25, "warmup": 50},
            "num_steps",
        ),
    ],
    ids=["value_clip", "equinox", "linen", "nnx", "num_steps"],
)
def test_no_folder_is_created_for_unused_settings(
    names: tuple[str, str], make_network: Any, config: dict[str, Any], message: str, tmp_path: Path
) -> None:
    network = None if make_network is None else make_network()
    options = {"run_dir": tmp_path / "run", "total_steps": 100, "eval_count": 0, "eval_episodes": 1}
    with pytest.raises(rollax.UsageError, match=message):
        rollax.train(*names, config=config, network=network, options=options, quiet=True)
    assert not (tmp_path / "run").exists()
