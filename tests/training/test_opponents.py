"""Tests of agents that follow the policy of another run instead of learning."""

import dataclasses
import os
import shutil
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rollax
from rollax import RunOptions, UsageError, load, resume, train
from rollax.environments import make
from rollax.environments.wrappers import FixedOpponents
from rollax.training.opponents import RunOpponents, copy_opponents
from rollax.training.run_folder.layout import read_spec

SMALL = {"num_envs": 4, "num_steps": 8, "num_minibatches": 2, "num_epochs": 1, "sharing": "type"}
NETWORK = rollax.NetworkConfig(hidden=(8,))
HUNT = {"arguments": {"time_limit": 5}, "network": {"hidden": (8,)}, "config": SMALL, "quiet": True}


def hunted(folder: Path, **more: Any) -> Path:
    options = RunOptions(
        total_steps=3 * 32, run_dir=folder, eval_episodes=4, eval_count=1, tensorboard=False
    )
    return train("ppo", "hunting/2-players", options=options, **{**HUNT, **more}).folder


@pytest.fixture(scope="module")
def hunts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return three runs: one that trains both, a prey against the first predator, and a predator.

    The predator is trained against that prey.
    """
    root = tmp_path_factory.mktemp("hunts")
    both = hunted(root / "both")
    prey = hunted(root / "prey", opponents={"predator": both})
    return {
        "both": both,
        "prey": prey,
        "predator": hunted(root / "predator", opponents={"prey": prey}),
    }


def test_the_learning_agents_are_the_agents_of_the_environment(hunts: dict[str, Path]) -> None:
    both, prey, predator = (load(hunts[name]) for name in ("both", "prey", "predator"))
    assert (
        both.environment.num_agents,
        prey.environment.num_agents,
        predator.environment.num_agents,
    ) == (2, 1, 1)
    assert prey.environment.agent_types == ("prey",) and predator.environment.agent_types == (
        "predator",
    )
    assert set(both.state.train) == {"prey", "predator"}
    numbers, episodes = prey.evaluate(4, jax.random.key(0))
    assert episodes.returns.shape == (4, 1) and len(numbers["return_agents"]) == 1
    assert "return_prey" in both.evaluate(4, jax.random.key(0))[0]


def test_the_opponent_follows_its_policy(hunts: dict[str, Path]) -> None:
    """A step equals that of the inner environment with the action of the other policy."""
    against = load(hunts["prey"]).environment
    assert isinstance(against, FixedOpponents)
    opponent, inner = load(hunts["both"]), make("hunting/2-players", time_limit=5)
    state, obs = against.reset(jax.random.key(0))
    own = jnp.asarray([[0.3, 0.4]])
    after = against.step(jax.random.key(1), state, own)
    env_key, act_key = jax.random.split(jax.random.key(1))
    seen = state[1]
    theirs, _ = opponent.algorithm.act(
        opponent.state, seen, opponent.initial_carry(), act_key, False
    )
    expected = inner.step(env_key, state[0], jnp.concatenate([own, theirs[1:]]))
    np.testing.assert_allclose(after.obs, expected.obs[:1], atol=1e-6)
    np.testing.assert_allclose(after.state[1], expected.obs, atol=1e-6)
    np.testing.assert_allclose(obs[0], seen[0])


def test_a_run_stores_its_opponents(hunts: dict[str, Path], tmp_path: Path) -> None:
    """It is resumed and loaded after the runs of its opponents were moved.

    This includes opponents that have opponents.
    """
    moved = tmp_path / "moved"
    shutil.copytree(hunts["predator"], moved)
    for name in ("both", "prey"):
        shutil.move(hunts[name], tmp_path / name)
    try:
        before = load(moved)
        after = resume(moved, total_steps=6 * 32, quiet=True)
        assert after.status == "done" and load(moved).step == 6 * 32
        kept = [
            jax.tree.leaves(jax.device_get(p.environment.opponents["prey"].train.network))
            for p in (before, load(moved))
        ]
        assert all(np.array_equal(a, b) for a, b in zip(*kept, strict=True)), (
            "an opponent does not learn"
        )
    finally:
        for name in ("both", "prey"):
            shutil.move(tmp_path / name, hunts[name])


def test_no_folder_is_copied_that_is_not_of_an_opponent(
    hunts: dict[str, Path], tmp_path: Path
) -> None:
    """A run from somebody else may link to private files as if they were its opponents."""
    received = shutil.copytree(hunts["both"], tmp_path / "received")
    (tmp_path / "private").mkdir()
    (tmp_path / "private" / "precious").touch()
    (received / "opponents").symlink_to(tmp_path / "private")
    (tmp_path / "run").mkdir()
    spec = dataclasses.replace(read_spec(hunts["prey"]), opponents={"predator": str(received)})
    copy_opponents(tmp_path / "run", spec, RunOpponents({"predator": load(received)}))
    assert (tmp_path / "run" / "opponents" / "predator" / "checkpoints").is_dir()
    assert not list((tmp_path / "run").rglob("precious"))


@pytest.mark.skipif(os.name != "posix", reason="links and pipes are of POSIX")
@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_odd_files_among_stored_opponents(
    kind: str, hunts: dict[str, Path], tmp_path: Path
) -> None:
    """They are refused before a new run folder is created, by a fork and by another run."""
    received = shutil.copytree(hunts["prey"], tmp_path / "received")
    odd = received / "opponents" / "predator" / "odd"
    if kind == "link":
        (tmp_path / "precious").touch()
        odd.symlink_to(tmp_path / "precious")
    else:
        os.mkfifo(odd)
    message = "odd must (not be a link|be a regular file)"
    with pytest.raises(UsageError, match=message):
        resume(received, fork=tmp_path / "fork", total_steps=6 * 32, quiet=True)
    with pytest.raises(UsageError, match=message):
        hunted(tmp_path / "new", opponents={"prey": received})
    assert not (tmp_path / "fork").exists() and not (tmp_path / "new").exists()


def test_an_opponent_from_any_checkpoint(hunts: dict[str, Path], tmp_path: Path) -> None:
    """The suffix "@CHECKPOINT" of the run selects it.

    The new run stores the opponent without the parts of its state that only learning needs.
    """
    for chosen, updates in (("0", 0), ("last", 3)):
        prey = hunted(tmp_path / chosen, opponents={"predator": f"{hunts['both']}@{chosen}"})
        opponent = load(prey).environment.opponents["predator"]
        assert int(opponent.updates) == updates and opponent.actor is None
        assert [path.name for path in (prey / "opponents/predator/checkpoints").iterdir()] == [
            f"step_{updates * 32:012d}"
        ]
    odd = shutil.copytree(hunts["both"], tmp_path / "odd@0")
    assert (
        int(
            load(hunted(tmp_path / "prey", opponents={"predator": odd}))
            .environment.opponents["predator"]
            .updates
        )
        == 3
    )
    with pytest.raises(UsageError, match="must be last, best or one of the steps"):
        hunted(tmp_path / "wrong", opponents={"predator": f"{hunts['both']}@worst"})


def test_opponents_with_custom_objects(tmp_path: Path) -> None:
    """They use the objects of the run that they are part of, also when it is resumed."""
    env = make("hunting/2-players", time_limit=5)
    own = {"environment": env, "network": lambda key: rollax.actor_critic(env, NETWORK, key)}

    def trained(name: str, **given: Any) -> Path:
        options = RunOptions(
            total_steps=32,
            run_dir=tmp_path / name,
            eval_episodes=4,
            eval_count=1,
            tensorboard=False,
        )
        return train(
            "ppo", config=SMALL | {"sharing": "all"}, options=options, quiet=True, **given
        ).folder

    both = trained("both", **own)
    prey = trained("prey", **own, opponents={"predator": both})
    shutil.rmtree(both)
    assert resume(prey, total_steps=2 * 32, quiet=True, **own).status == "done"
    assert load(prey, **own).environment.agent_types == ("prey",)
    with pytest.raises(
        UsageError, match="was trained with a network function. Pass it as network="
    ):
        trained("other", environment=env, opponents={"prey": prey})
    with pytest.raises(UsageError, match="was trained in hunting/2-players, and this run uses"):
        trained(
            "other",
            **own | {"environment": make("hunting/3-players")},
            opponents={"predator": prey},
        )


@pytest.mark.parametrize("kind", ["player_0", "player_1"])
def test_a_game_against_the_policy_of_another_run(kind: str, tmp_path: Path) -> None:
    """Evaluations and the best checkpoint are those of the learning player.

    The opponent is that policy, not a random one.
    """
    pytest.importorskip("pgx")

    def played(name: str, **more: Any) -> rollax.Policy:
        options = RunOptions(
            total_steps=32,
            run_dir=tmp_path / name,
            eval_episodes=4,
            eval_count=1,
            tensorboard=False,
        )
        config = SMALL | {"sharing": "all"}
        trained = train(
            "ppo",
            "pgx/tic_tac_toe",
            config=config,
            network=NETWORK,
            options=options,
            quiet=True,
            **more,
        )
        assert trained.status == "done"
        return load(trained.folder, checkpoint="best")

    both = played("both")
    assert (
        both.spec.eval_arguments == {"opponent": "random"}
        and both.spec.options.best_metric == "return_player_0"
    )
    one = played("one", opponents={kind: tmp_path / "both"})
    assert one.spec.eval_arguments == {} and one.spec.options.best_metric == "return_mean"
    assert isinstance(one.environment, FixedOpponents) and kind not in one.environment.agent_types
    assert one.environment.env.opponent == "agents"


def test_invalid_opponents_raise_usage_error(hunts: dict[str, Path], tmp_path: Path) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"opponents": {"predtor": hunts["both"]}}, "predator"),
        ({"opponents": {"prey": hunts["both"], "predator": hunts["both"]}}, "leave no agent"),
        (
            {"opponents": {"predator": hunts["prey"]}},
            "must have been trained as predator, got a policy for prey",
        ),
        ({"opponents": {"predator": tmp_path}}, "is not a run"),
        (
            {"opponents": {"predator": hunts["both"]}, "eval_arguments": {"time_limit": 9}},
            "cannot be combined",
        ),
    ]
    for number, (more, words) in enumerate(cases):
        with pytest.raises(UsageError, match=words):
            hunted(tmp_path / str(number), **more)
        assert not (tmp_path / str(number)).exists()
    with pytest.raises(UsageError, match="cannot be combined"):
        load(hunts["predator"], eval_arguments={"time_limit": 9})
    with pytest.raises(
        UsageError, match="the name of the environment must be that of the opponent"
    ):
        options = RunOptions(total_steps=32, run_dir=tmp_path / "other")
        train(
            "ppo",
            "hunting/3-players",
            options=options,
            opponents={"predator": hunts["both"]},
            quiet=True,
        )
