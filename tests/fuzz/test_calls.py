"""Tests of arguments of `train` and `Policy.evaluate`.

Unambiguous values are accepted, others are refused, and nothing is written.
"""

import dataclasses
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rollax
from fuzz.conftest import Accepted, Answer
from rollax import DQNConfig, NetworkConfig, PPOConfig, RunOptions
from rollax.policy import Policy
from rollax.training.compile import program as programs
from rollax.training.spec import Spec, make_spec
from rollax.tree import to_arrays
from rollax.user_input.settings_validation import validate_settings
from support.runs import NETWORK, SMALL, Bad

DEFAULTS: dict[str, Any] = {"config": SMALL, "network": NETWORK, "quiet": True}


def train(algorithm: Any = "ppo", environment: Any = "probe/memory", **arguments: Any) -> Any:
    return rollax.train(algorithm, environment, **(DEFAULTS | arguments))


@pytest.fixture
def spec_of(nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Spec]:
    """Return a function that returns the specification that `train` makes of its arguments."""

    def made(**arguments: Any) -> Spec:
        taken: list[Spec] = []

        def take(spec: Spec, *_: Any, **__: Any) -> Any:
            taken.append(spec)
            raise Accepted

        monkeypatch.setattr(programs, "compile_program", take)
        with pytest.raises(Accepted):
            train(**arguments)
        return taken[0]

    return made


PICTURES = {"environment": "gymnax/Breakout-MinAtar"}


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ({"total_steps": 2048.0}, lambda spec: spec.options.total_steps == 2048),
        ({"total_steps": np.int64(2048)}, lambda spec: spec.options.total_steps == 2048),
        (
            {"seeds": 2.0, "seed": np.float32(3)},
            lambda spec: spec.num_members == 2 and spec.options.seed == 3,
        ),
        (
            {"sweep": {"gamma": np.array([0.5, 0.75])}},
            lambda spec: spec.sweep == {"gamma": (0.5, 0.75)},
        ),
        (
            {"sweep": {"gamma": (x / 4 for x in (2, 3))}},
            lambda spec: spec.sweep == {"gamma": (0.5, 0.75)},
        ),
        (
            {"sweep": {"gamma": jnp.array([0.5, 0.75])}},
            lambda spec: spec.sweep == {"gamma": (0.5, 0.75)},
        ),
        ({"sweep": {"gamma": 0.5}}, lambda spec: spec.sweep == {"gamma": (0.5,)}),
        (
            {"evolve": {"gamma": np.array([0.5, 0.75])}, "seeds": 4},
            lambda spec: spec.evolve["gamma"].high == 0.75,
        ),
        ({"network": {"hidden": 64}}, lambda spec: spec.network.hidden == (64,)),
        ({"network": {"hidden": [64, 32.0]}}, lambda spec: spec.network.hidden == (64, 32)),
        (PICTURES | {"network": {"filters": []}}, lambda spec: spec.network.filters == ()),
        (
            PICTURES | {"network": NetworkConfig(filters=[])},
            lambda spec: spec.network == NetworkConfig(filters=()),
        ),
        (
            PICTURES | {"network": {"filters": [[16, 3, 1]]}},
            lambda spec: spec.network.filters == ((16, 3, 1),),
        ),
        (
            {"config": {"num_envs": 8.0}},
            lambda spec: spec.config.num_envs == 8 and type(spec.config.num_envs) is int,
        ),
        ({"config": {"gamma": np.float64(1)}}, lambda spec: type(spec.config.gamma) is float),
        (
            {"config": {"learning_rate": jnp.float32(0.5)}},
            lambda spec: spec.config.learning_rate == 0.5,
        ),
        (
            {"config": {"max_grad_norm": float("inf")}},
            lambda spec: spec.config.max_grad_norm == float("inf"),
        ),
        ({"options": {"eval_count": 3}}, lambda spec: spec.options.eval_count == 3),
        (
            {"options": RunOptions(run_dir="here")},
            lambda spec: spec.options.run_dir == Path("here"),
        ),
        ({"arguments": {"delay": np.int32(5)}}, lambda spec: spec.arguments == {"delay": 5}),
        ({"environment": Bad()}, lambda spec: spec.own_environment),
        ({"imports": ["my_module"]}, lambda spec: spec.imports == ("my_module",)),
    ],
    ids=lambda given: str(given)[:50],
)
def test_unambiguous_arguments_are_converted(
    spec_of: Callable[..., Spec], given: dict[str, Any], read: Callable[[Spec], bool]
) -> None:
    assert read(spec_of(**given))


class Raw:
    """Object that looks like an environment of Gymnax."""

    name = "CartPole-v1"
    __module__ = "gymnax.environments.classic_control.cartpole"

    def reset(self) -> None: ...
    def step(self) -> None: ...


Strange = type("Strange", (Raw,), {"name": "Unknown-v0", "__module__": "gymnax.more"})
Gym = type("Gym", (Raw,), {"__module__": "gymnasium.envs"})


@pytest.mark.parametrize(
    ("given", "part"),
    [
        (
            {"total_steps": 2048.5},
            "total_steps (2048.5) must be an integer or None. Use 2048 or 2049",
        ),
        (
            {"total_steps": "2048"},
            "total_steps ('2048') must be an integer or None, not a string. Write 2048 "
            "without quotes",
        ),
        ({"total_steps": True}, "total_steps (True) must be an integer"),
        ({"total_steps": float("inf")}, "total_steps (inf) must be an integer"),
        ({"total_steps": 10**400}, "total_steps (a number of about 400 digits)"),
        (
            {
                "total_steps": 10**15,
                "config": {"num_envs": 1, "num_steps": 1, "num_minibatches": 1},
            },
            "which is 2147483647 updates of",
        ),
        ({"seeds": [0, 1]}, "seeds ([0, 1]) must be an integer"),
        ({"seeds": 10**9}, "1000000000 members"),
        ({"sweep": {"gamma": "0.9"}}, "sweep over gamma ('0.9')"),
        ({"sweep": {"gamma": ["0.9"]}}, "sweep over gamma (['0.9'])"),
        ({"sweep": {"gamma": np.zeros((2, 2))}}, "sweep over gamma"),
        ({"sweep": {"gamma": []}}, "sweep over gamma must have at least one value, got none"),
        ({"sweep": {"gamma": iter(int, 1)}}, "sweep over gamma"),
        ({"sweep": {"gamma": None}}, "sweep over gamma (None)"),
        ({"sweep": ["gamma"]}, "sweep (['gamma']) must be a dictionary"),
        ({"sweep": {5: [1]}}, "sweep ({5: [1]}) must be a dictionary with string keys"),
        (
            {"evolve": {"gamma": 0.9}, "seeds": 4},
            "evolve gamma must be (low, high) or (low, high, scale), got",
        ),
        (
            {"evolve": {"gamma": "12"}, "seeds": 4},
            "evolve gamma must be (low, high) or (low, high, scale), got",
        ),
        ({"evolve": 5}, "evolve (5) must be a dictionary"),
        (
            {"options": RunOptions(evolve_every=2000)},
            "evolve_every (2000) has no effect without settings that evolve",
        ),
        (
            {"config": {"num_envs": "8"}},
            "num_envs ('8') must be an integer, not a string. Write 8 without quotes",
        ),
        ({"config": {"num_envs": 2.5}}, "num_envs (2.5) must be an integer. Use 2 or 3"),
        ({"config": {"num_envs": None}}, "num_envs (None) must be an integer"),
        ({"config": {"clip_values": "no"}}, "clip_values ('no') must be True or False"),
        ({"config": {"clip_values": 1}}, "clip_values (1) must be True or False"),
        ({"config": {"learning_rate": None}}, "learning_rate (None) must be a number"),
        ({"config": {"learning_rate": [1e-3]}}, "learning_rate ([0.001]) must be a number"),
        ({"config": {"learning_rate": True}}, "learning_rate (True) must be a number"),
        (
            {"config": {"learning_rate": 1e300}},
            "learning_rate (1e+300) must be at least 0 and finite",
        ),
        ({"config": {"learning_rate": jnp.ones(2)}}, "learning_rate ("),
        (
            {"config": {"total_updates": 5}},
            "total_updates must not be set, because it follows from total_steps",
        ),
        ({"config": {5: 1}}, "config ({5: 1}) must be a dictionary with string keys"),
        (
            {"config": DQNConfig()},
            "config must be PPOConfig or a dictionary of its settings, got DQNConfig",
        ),
        ({"config": 5}, "config must be PPOConfig"),
        ({"config": PPOConfig}, "config must be PPOConfig"),
        ({"network": {"hidden": 64.5}}, "network.hidden (64.5)"),
        ({"network": {"hidden": "64"}}, "network.hidden ('64')"),
        (
            {"network": {"hidden": [10**12]}},
            "network.hidden (1000000000000) must be at most 2147483647",
        ),
        ({"network": {"filters": (32, 3, 1)}}, "network.filters ((32, 3, 1))"),
        ({"network": {"shared": "yes"}}, "network.shared ('yes') must be True or False"),
        ({"network": {"initial_std": float("nan")}}, "network.initial_std (nan) must be finite"),
        (
            {"network": 5},
            "network must be settings, a dictionary of settings, or a function from a "
            "key to a network, got 5",
        ),
        ({"network": rollax.SACConfig()}, "network must be NetworkConfig"),
        ({"metrics": 5}, "metrics must be a function or None, got 5"),
        ({"options": 5}, "options must be RunOptions"),
        (
            {"options": {"eval_episodes": 2.5}},
            "eval_episodes (2.5) must be an integer or None. Use 2 or 3",
        ),
        (
            {"options": {"eval_episode": 2}},
            "unknown setting 'eval_episode': did you mean eval_episodes",
        ),
        ({"options": {"tensorboard": "no"}}, "tensorboard ('no') must be True or False"),
        ({"options": {"checkpoint_minutes": float("inf")}}, "checkpoint_minutes (inf) must be"),
        ({"options": {"run_dir": "x" * 300}}, "is too long"),
        ({"options": {"run_dir": "a\0b"}}, "must not contain zero bytes"),
        ({"options": {"run_dir": 5}}, "run_dir (5) must be the path of a file or folder or None"),
        ({"arguments": ["delay"]}, "arguments (['delay']) must be a dictionary"),
        (
            {"arguments": {"delay": object}},
            "arguments.delay must be a number, a string, an array or a list of them, "
            "got <class 'object'> (type)",
        ),
        ({"arguments": {"delay": float("nan")}}, "delay must be an integer"),
        (
            {"arguments": {"delay": 2**31}},
            "delay must be finite, and an integer must be smaller than 2^31, got 2147483648",
        ),
        ({"eval_arguments": 5}, "eval_arguments (5) must be a dictionary"),
        ({"opponents": {"agent": 5}}, "opponents['agent'] (5)"),
        ({"opponents": "run"}, "opponents ('run') must be a dictionary"),
        ({"imports": 5.5}, "imports (5.5) must be a sequence"),
        (
            {"run_dir": "x"},
            "unknown keyword 'run_dir': it is a setting of options. Pass options={'run_dir': ...}",
        ),
        (
            {"num_envs": 8},
            "unknown keyword 'num_envs': it is a setting of config. Pass config={'num_envs': ...}",
        ),
        (
            {"hidden": 8},
            "unknown keyword 'hidden': it is a setting of network. Pass network={'hidden': ...}",
        ),
        ({"n_stack": 4}, "unknown keyword 'n_stack': rollax calls it frame_stack"),
        ({"delay": 5, "sede": 1}, "arguments={'delay': ...}.\nunknown keyword 'sede': did you"),
        ({"algorithm": 5}, "algorithm (5) must be a string"),
        ({"algorithm": ["ppo"]}, "algorithm (['ppo']) must be a string"),
        ({"algorithm": rollax.ppo}, "algorithm ("),
        ({"environment": None}, "environment (None) must be an id such as"),
        ({"environment": 5}, "environment (5) must be an id such as"),
        (
            {"environment": Bad},
            "environment must be an instance, got the class Bad. Pass an instance, such as Bad()",
        ),
        ({"environment": Raw()}, "Pass its id 'gymnax/CartPole-v1'"),
        ({"environment": (Raw(), None)}, "Pass its id 'gymnax/CartPole-v1'"),
        ({"environment": Strange()}, "rollax.list_environments('gymnax')"),
        ({"environment": Gym()}, "rollax.from_gymnasium(make)"),
        (
            {"environment": Bad(), "arguments": {"good": 5}},
            "arguments and eval_arguments are for environments made from their id",
        ),
        ({"environment": "\0"}, "unknown environment"),
    ],
    ids=lambda given: str(given)[:60],
)
def test_invalid_arguments_are_refused(answer: Answer, given: dict[str, Any], part: str) -> None:
    message = answer(lambda: train(**given))
    assert message is not None and part in message, message


@pytest.mark.parametrize(
    ("call", "part"),
    [
        (lambda: rollax.train(), "got no algorithm and no environment"),
        (lambda: rollax.train("ppo"), "train must be called with algorithm and environment"),
        (lambda: rollax.train(environment="gymnax/CartPole-v1"), "got no algorithm"),
    ],
)
def test_missing_arguments_are_named(answer: Answer, call: Callable[[], Any], part: str) -> None:
    message = answer(call)
    assert message is not None and part in message, message


@pytest.mark.quick
@pytest.mark.parametrize(
    "make",
    [
        lambda: PPOConfig(num_envs="8"),
        lambda: RunOptions(seeds="2"),
        lambda: PPOConfig(clip_values="no"),
    ],
)
def test_invalid_settings_are_refused_at_construction(
    answer: Answer, make: Callable[[], Any]
) -> None:
    """The error comes when the settings are created, not when they are used."""
    assert answer(make) is not None


def test_traced_settings_may_be_any_pytree() -> None:
    """Settings that are data store any leaf of a pytree unchanged."""
    config = jax.tree.map(lambda leaf: jnp.full(3, leaf), PPOConfig(num_envs=8.0))
    assert config.num_envs == 8 and config.gamma.shape == (3,)
    assert dataclasses.asdict(validate_settings(PPOConfig())) == dataclasses.asdict(PPOConfig())


ANY = [
    None,
    True,
    -1,
    0,
    1,
    2.5,
    8.0,
    10**12,
    10**400,
    float("nan"),
    float("inf"),
    "",
    "8",
    "no",
    [],
    [1],
    (),
    {},
    {"gamma": 1},
]
ANY += [
    np.int64(4),
    np.zeros(2),
    np.zeros((2, 2)),
    jnp.ones(()),
    jnp.ones(3),
    object(),
    len,
    Path("x"),
    b"8",
    {1, 2},
    1j,
    Bad,
]


@pytest.mark.parametrize("seed", range(6))
def test_random_arguments(answer: Answer, nowhere: Path, seed: int) -> None:
    """Any value for any argument is accepted or refused with a UsageError."""
    draw = random.Random(seed)
    names = [
        "total_steps",
        "seed",
        "seeds",
        "config",
        "network",
        "arguments",
        "eval_arguments",
        "sweep",
        "opponents",
        "evolve",
    ]
    names += ["options", "metrics", "imports", "environment", "algorithm"]
    inner = {
        "config": [field.name for field in dataclasses.fields(PPOConfig)],
        "network": [field.name for field in dataclasses.fields(NetworkConfig)],
        "options": [
            field.name
            for field in dataclasses.fields(RunOptions)
            if field.name not in ("wandb", "trackio")
        ],
        "arguments": ["delay", "x"],
        "sweep": ["gamma", "learning_rate", "num_envs"],
        "evolve": ["gamma"],
    }
    for _ in range(30):
        name = draw.choice([*names, *inner, *inner])
        value = draw.choice(ANY)
        value = (
            {draw.choice(inner[name]): value} if name in inner and draw.random() < 0.8 else value
        )
        if not (
            name == "network" and callable(value)
        ):  # errors of a custom function are the user's
            answer(lambda name=name, value=value: train(**{name: value}))
        for left in nowhere.iterdir():
            shutil.rmtree(left)


@pytest.fixture(scope="module")
def policy() -> Policy:
    """Return the policy of an untrained network."""
    spec = make_spec("ppo", "probe/memory", {}, SMALL, NETWORK, RunOptions(), {})
    algorithm, environment = programs.build_algorithm_and_environment(spec)
    state = jax.jit(algorithm.init)(jax.random.key(0), to_arrays(SMALL))
    return Policy(spec, environment, 0, algorithm.acting_state(state), algorithm, [])


KEY = jax.random.key(0)


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        ((0, KEY), "episodes must be between 1 and 2147483647, got 0"),
        ((-1, KEY), "episodes must be between 1 and 2147483647, got -1"),
        ((2.5, KEY), "episodes (2.5) must be an integer. Use 2 or 3"),
        (("8", KEY), "episodes ('8') must be an integer, not a string. Write 8 without quotes"),
        ((10**9, KEY), "an evaluation of 1000000000 episodes at once needs"),
        ((10**11, KEY), "episodes must be between 1 and 2147483647, got 100000000000"),
        ((8, 0), "key must be one key, got 0. Pass jax.random.key(0)"),
        ((8, None), "key must be one key, got None"),
        ((8, jax.random.split(KEY)), "must be one key"),
        ((8, KEY, "yes"), "greedy ('yes') must be True or False"),
        ((8, KEY, True, None, 5), "metrics must be a function or None, got 5"),
        ((8, KEY, True, "final"), "descri"),
        ((8, KEY, True, 5), "descri"),
    ],
    ids=lambda given: str(given)[:40],
)
def test_invalid_arguments_of_evaluate_are_refused(
    policy: Policy, answer: Answer, arguments: tuple[Any, ...], part: str
) -> None:
    message = answer(lambda: policy.evaluate(*arguments))
    assert message is not None and part in message, message


def test_valid_arguments_of_evaluate_are_converted(policy: Policy) -> None:
    """Integers of other types and old-style keys are accepted."""
    numbers, episodes = policy.evaluate(np.float32(4), KEY)
    assert episodes.length.shape == (4,)
    assert policy.evaluate(4, jax.random.PRNGKey(0))[0] == numbers
