"""A new run starts from the state of another one: what fits is copied, and the rest is named."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rollax
from rollax import NetworkConfig, Transition
from rollax.algorithm import Algorithm
from rollax.cli.main import main
from rollax.networks.action_values.q_networks import QNetworkConfig, q_network
from rollax.networks.actor_critic import actor_critic
from rollax.networks.critics import (
    ActorCriticsConfig,
    StochasticActorCriticsConfig,
    make_deterministic_actor_critics,
    make_stochastic_actor_critics,
)
from rollax.spaces import Box, Dict, Discrete, MultiDiscrete, Space, make_zeros
from rollax.training.checkpoints.axis_labels import label_axes
from rollax.training.checkpoints.warm_start import (
    SourceParts,
    apply_warm_start,
    plan_warm_start,
    summarize_warm_start,
)
from rollax.training.run_folder.layout import read_spec
from support.runs import (
    FRAMES,
    NETWORK,
    SMALL,
    SMALL_WORDS,
    Script,
    bits,
    evaluations,
    options,
    whole_state,
)


class Signal(eqx.Module):
    """The action is right where the first of `size` random numbers is positive."""

    size: int = eqx.field(static=True)

    name = "signal"
    action_space = Discrete(2)
    num_agents = None
    time_limit = 4

    @property
    def observation_space(self) -> Box:
        return Box(-1.0, 1.0, (self.size,))

    def reset(self, key: jax.Array) -> tuple[Any, Any]:
        obs = self.observe(key)
        return obs[0], obs

    def observe(self, key: jax.Array) -> jax.Array:
        """The first three numbers do not depend on how many there are."""
        parts = [jax.random.fold_in(key, i) for i in range(self.size)]
        return jnp.stack([jax.random.uniform(part, minval=-1.0) for part in parts])

    def step(self, key: jax.Array, state: Any, action: Any) -> Transition:
        obs, no = self.observe(key), jnp.zeros((), bool)
        reward = jnp.where((state > 0) == (action == 1), 1.0, 0.0)
        return Transition(obs[0], obs, reward, no, no, {})


def with_spaces(observation_space: Space, action_space: Space) -> Any:
    """What a network needs of an environment."""
    return SimpleNamespace(
        observation_space=observation_space, action_space=action_space, num_agents=None
    )


HIDDEN = NetworkConfig(hidden=(8, 8))
PAIRS = {
    "numbers": (Box(-1, 1, (3,)), Box(-1, 1, (4,))),
    "keys": (
        Dict({"b": Box(-1, 1, (2,)), "d": Discrete(3)}),
        Dict(
            {
                "a": Box(-1, 1, (3,)),
                "b": Box(-1, 1, (2,)),
                "c": MultiDiscrete((2, 3)),
                "d": Discrete(4),
            }
        ),
    ),
    "channels": (Box(0, 1, (6, 6, 2)), Box(0, 1, (6, 6, 3))),
}
ACTIONS = {"discrete": Discrete(3), "continuous": Box(-1, 1, (2,))}
NETWORKS = {
    "actor-critic": lambda env, key: actor_critic(env, HIDDEN, key),
    "td3": lambda env, key: make_deterministic_actor_critics(env, ActorCriticsConfig((8,)), key),
    "sac": lambda env, key: make_stochastic_actor_critics(
        env, StochasticActorCriticsConfig((8,)), key
    ),
    "dqn": lambda env, key: q_network(env, QNetworkConfig((8,)), key),
}
CONTINUOUS = ("td3", "sac")


def widen(old: Any, new: Any, value: Any) -> Any:
    """The same observation in the wider space, with numbers that the old network has not seen."""
    if isinstance(new, Dict):
        return {
            key: widen(old.spaces[key], part, value[key])
            if key in old.spaces
            else jnp.ones_like(make_zeros(part))
            for key, part in new.items
        }
    if isinstance(new, Discrete):
        return value
    missing = new.shape[-1] - value.shape[-1]
    return jnp.concatenate([value, jnp.ones((*value.shape[:-1], missing))], axis=-1)


def outputs(name: str, network: Any, obs: Any, action: Any) -> Any:
    if name in CONTINUOUS:
        return network.actor(obs), [critic(obs, action) for critic in network.critic]
    return network(obs) if name == "dqn" else network(network.initial_carry(), obs)


def start(source: Any, target: Any, chosen: Any = (), strict: bool = False) -> Any:
    """The target with the arrays of the source, both as the state of an algorithm."""
    none: Any = None
    algorithm = Algorithm(none, none, none, none, parts=lambda state: {"networks": state})
    parts = SourceParts("run", "ppo", "env", 8, 1, {"networks": source})
    shapes = jax.eval_shape(lambda: target)
    plan = plan_warm_start(parts, {"networks": shapes}, chosen, 1, strict)
    return apply_warm_start(plan, algorithm, target), plan


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("name", NETWORKS)
def test_new_inputs_do_not_change_the_outputs(name: str, pair: str) -> None:
    old, new = PAIRS[pair]
    space = ACTIONS["continuous" if name in CONTINUOUS else "discrete"]
    source = NETWORKS[name](with_spaces(old, space), jax.random.key(0))
    target = NETWORKS[name](with_spaces(new, space), jax.random.key(1))
    started, plan = start(source, target)
    obs = old.sample(jax.random.key(2))
    action = space.sample(jax.random.key(3))
    before, after = (
        jax.tree.leaves(outputs(name, network, each, action))
        for network, each in ((source, obs), (started, widen(old, new, obs)))
    )
    for a, b in zip(before, after, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)
    assert plan.names("adapted") and not plan.names("initialized")
    if pair == "channels" and name == "actor-critic":
        assert any("convolutions['']" in text for text in plan.names("adapted"))


@pytest.mark.parametrize("kind", ["discrete", "continuous"])
def test_new_actions_keep_their_initial_outputs(kind: str) -> None:
    wider = {"discrete": Discrete(5), "continuous": Box(-1, 1, (3,))}[kind]
    obs = PAIRS["numbers"][0]
    source = actor_critic(with_spaces(obs, ACTIONS[kind]), HIDDEN, jax.random.key(0))
    target = actor_critic(with_spaces(obs, wider), HIDDEN, jax.random.key(1))
    started, plan = start(source, target)
    old = source.actor.head.layer.weight
    head = started.actor.head.layer.weight
    np.testing.assert_array_equal(head[: len(old)], old)
    np.testing.assert_array_equal(head[len(old) :], target.actor.head.layer.weight[len(old) :])
    assert f"networks.actor.head.layer.weight [{len(old)}, 8] -> [{len(head)}, 8]" in plan.names(
        "adapted"
    )
    fewer, _ = start(started, source)
    np.testing.assert_array_equal(fewer.actor.head.layer.weight, old)


def test_heads_of_other_kinds_are_not_mixed() -> None:
    obs = PAIRS["numbers"][0]
    source = actor_critic(with_spaces(obs, Discrete(2)), HIDDEN, jax.random.key(0))
    target = actor_critic(with_spaces(obs, Box(-1, 1, (2,))), HIDDEN, jax.random.key(1))
    started, plan = start(source, target)
    np.testing.assert_array_equal(started.actor.head.layer.weight, target.actor.head.layer.weight)
    assert "networks.actor.head.layer.weight [2, 8]" in plan.names("initialized")
    with pytest.raises(rollax.UsageError, match=r"3 of 13 .*head.layer.weight \[2, 8\]"):
        start(source, target, strict=True)


def test_nothing_fits() -> None:
    spaces = with_spaces(PAIRS["numbers"][0], Discrete(2))
    source = actor_critic(spaces, NetworkConfig(hidden=(4,)), jax.random.key(0))
    target = q_network(spaces, QNetworkConfig((8,)), jax.random.key(1))
    with pytest.raises(rollax.UsageError, match=r"No weights of run \(ppo\) fit .* -> absent"):
        start(source, target)


def test_biases_alone_are_not_enough() -> None:
    spaces = with_spaces(PAIRS["numbers"][0], Discrete(2))
    source, target = (
        actor_critic(spaces, NetworkConfig(hidden=(size,)), jax.random.key(0)) for size in (4, 8)
    )
    with pytest.raises(rollax.UsageError, match=r"No weights .*weight \[3, 4\] -> \[3, 8\]"):
        start(source, target)


def train(folder: Path, environment: Any = "probe/memory", **words: Any) -> Any:
    given = {"config": SMALL, "network": NETWORK, "show": Script()} | words
    algorithm = given.pop("algorithm", "ppo")
    changes = given.pop("options", {})
    return rollax.train(
        algorithm, environment, options=options(folder, **{"updates": 1} | changes), **given
    )


def test_a_fourth_observation(tmp_path: Path) -> None:
    """The return before training is that of the source, on the same episodes."""
    source = train(tmp_path / "three", Signal(3), options={"updates": 4})
    show = Script()
    result = train(tmp_path / "four", Signal(4), init_from=source, checkpoint="last", show=show)
    assert 0 < evaluations(source.folder)["returns"][-1].mean() < 4
    np.testing.assert_array_equal(
        evaluations(source.folder)["returns"][-1], evaluations(result.folder)["returns"][0]
    )
    assert "adapted      networks.actor.encoder.dense.layers[0].weight [3, 8] -> [4, 8];" in (
        show.text
    )
    assert summarize_warm_start(result.folder) == (
        f"{source.folder} at step 128 (ppo, signal): 6 arrays copied, 2 adapted, 0 initialized"
    )
    stored = read_spec(result.folder).options
    assert (stored.init_from, stored.init_checkpoint) == (str(source.folder), "last")
    with pytest.raises(rollax.UsageError, match=r"init_from=rollax.load\(.*, environment=\.\.\."):
        train(tmp_path / "x", Signal(4), init_from=source.folder)
    policy = source.policy()
    with pytest.raises(rollax.UsageError, match=r"2 of 8 arrays .*\[3, 8\] -> \[4, 8\]"):
        train(tmp_path / "x", Signal(4), init_from=policy, strict=True)
    with pytest.raises(rollax.UsageError, match="checkpoint .best. has no effect if init_from is"):
        train(tmp_path / "x", Signal(4), init_from=policy, checkpoint="best")
    assert not (tmp_path / "x").exists()


def test_members(undisturbed: Path, tmp_path: Path) -> None:
    """A single source feeds all members, and as many sources feed one to one."""

    def last(folder: Path) -> Any:
        return whole_state(folder).train.network

    source = last(undisturbed)
    frozen = {"config": {**vars(SMALL), "learning_rate": 0.0}}
    many = train(tmp_path / "many", init_from=undisturbed, checkpoint="last", seeds=2, **frozen)
    members = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), source)
    assert bits(last(many.folder)) == bits(members)
    again = train(tmp_path / "again", init_from=many, checkpoint="last", seeds=2, **frozen)
    assert bits(last(again.folder)) == bits(members)
    with pytest.raises(
        rollax.UsageError, match="must have 1 or 3 members .*, got 2. Set seeds to 2"
    ):
        train(tmp_path / "x", init_from=many, seeds=3)


def test_other_algorithm_and_optimizer(undisturbed: Path, tmp_path: Path) -> None:
    sizes = {"num_envs": 4, "num_steps": 8}
    parts = {"updates": 1, "init_parts": ["networks", "optimizer"]}
    result = train(
        tmp_path / "impala",
        algorithm="impala",
        config=sizes | {"sequence_length": 8, "learning_rate": 0.0},
        init_from=undisturbed,
        checkpoint="last",
        options=parts,
    )
    state, source = whole_state(result.folder), whole_state(undisturbed)
    assert bits(state.train.network) == bits(source.train.network)
    record = json.loads((result.folder / "warm_start.json").read_text())
    assert (record["algorithm"], record["step"]) == ("ppo", 12 * FRAMES)
    assert any("optimizer['actor']" in name and ".mu" in name for name in record["copied"])
    with pytest.raises(rollax.UsageError, match="No weights of .* fit this run"):
        train(tmp_path / "x", algorithm="pqn", config=sizes, network={}, init_from=undisturbed)
    with pytest.raises(rollax.UsageError, match="init_parts must be parts of both .* got replay"):
        train(tmp_path / "x", init_from=undisturbed, options={"init_parts": ["replay"]})


def test_replay(tmp_path: Path) -> None:
    config = {"num_envs": 2, "num_steps": 16, "capacity": 128, "batch_size": 8, "warmup": 8.0}
    words = {"algorithm": "dqn", "config": config, "network": {"hidden": (8,)}}
    source = train(tmp_path / "source", **words)
    parts = {"init_parts": ["networks", "replay"]}
    show = Script()
    train(tmp_path / "new", init_from=source, **words, options=parts, show=show, total_steps=32)
    assert "initialized" not in show.text and "copied" in show.text
    words["config"] = config | {"capacity": 256}
    show = Script()
    train(tmp_path / "wider", init_from=source, **words, options=parts, show=show)
    assert "initialized  replay" in show.text


def test_archive(tmp_path: Path) -> None:
    config = {"batch_size": 8, "num_iterations": 1, "grid": (4, 4)}
    words = {"algorithm": "map_elites", "config": config, "network": {}}
    source = train(tmp_path / "source", "task/sphere", **words)
    result = train(tmp_path / "new", "task/sphere", init_from=source, **words)
    record = json.loads((result.folder / "warm_start.json").read_text())
    assert record["copied"] and not record["initialized"]
    before, after = (
        rollax.read(run).history()["coverage"].dropna().tolist() for run in (source, result)
    )
    assert after[0] == before[-1] > 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"init_from": "nowhere"}, "nowhere is not a run"),
        ({"checkpoint": "last"}, "init_checkpoint .* has no effect without init_from"),
        ({"options": {"init_parts": ["network"]}}, "did you mean networks"),
    ],
)
def test_refused(words: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(rollax.UsageError, match=message):
        train(tmp_path / "x", **words)
    assert not (tmp_path / "x").exists()


def test_command_line(undisturbed: Path, tmp_path: Path) -> None:
    words = ["train", "ppo", "probe/memory", *SMALL_WORDS, "--total-steps", str(FRAMES)]
    words += ["--init-checkpoint", "last", "--init-parts", "networks", "--run-dir"]
    assert main([*words, str(tmp_path / "x"), "--init-from", str(tmp_path / "missing")]) == 2
    assert not (tmp_path / "x").exists()
    assert main([*words, str(tmp_path / "new"), "--init-from", str(undisturbed)]) == 0
    assert summarize_warm_start(tmp_path / "new").endswith(
        "8 arrays copied, 0 adapted, 0 initialized"
    )


def test_a_missing_checkpoint_and_a_link(undisturbed: Path, tmp_path: Path) -> None:
    with pytest.raises(rollax.UsageError, match="step|checkpoint"):
        train(tmp_path / "x", init_from=undisturbed, checkpoint=7)
    with pytest.raises(rollax.UsageError, match="must be last, best or one of the steps"):
        train(tmp_path / "x", init_from=undisturbed, checkpoint="latest")
    (tmp_path / "warm_start.json").symlink_to(undisturbed / "config.yaml")
    assert summarize_warm_start(tmp_path) == ""


def test_a_damaged_record_has_no_summary(tmp_path: Path) -> None:
    counts = '"copied": [], "adapted": [], "initialized": []'
    record = f'{{"run": "r", "algorithm": "a", "environment": "e", "step": Infinity, {counts}}}'
    (tmp_path / "warm_start.json").write_text(record)
    assert summarize_warm_start(tmp_path) == ""


def test_inputs_of_pixels_and_floats_have_different_labels() -> None:
    """Encoders divide pixels by 255, so their weights have another scale."""
    labels = [
        label_axes(actor_critic(with_spaces(space, Discrete(2)), HIDDEN, jax.random.key(0)))
        for space in (Box(0, 255, (3,), "uint8"), Box(0, 1, (3,)))
    ]
    changed = [path for path in labels[0] if labels[0][path] != labels[1][path]]
    assert changed
    for path in changed:
        assert not {*labels[0][path][0].labels} & {*labels[1][path][0].labels}
