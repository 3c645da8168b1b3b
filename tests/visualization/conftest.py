"""Tiny runs of several kinds, shared by tests of figures."""

import shutil

import numpy as np
import pytest
import yaml

import rollax
from configuration import configured

SMALL = {"num_envs": 4, "num_steps": 32, "num_minibatches": 2, "num_epochs": 1}


@pytest.fixture(autouse=True, scope="module")
def _keys_used_again():
    """Disable the check against key reuse, because training tests include it."""
    with configured(jax_debug_key_reuse=False):
        yield


def train(folder, environment="gymnax/CartPole-v1", seeds=1, config=None, network=None, **more):
    options = rollax.RunOptions(
        total_steps=512,
        seeds=seeds,
        run_dir=folder,
        eval_episodes=4,
        eval_count=2,
        log_lines=8,
        tensorboard=False,
    )
    own = {
        "config": SMALL | (config or {}),
        "network": {"hidden": (8,)} | (network or {}),
        "options": options,
    }
    with configured(jax_debug_key_reuse=False):
        return rollax.train("ppo", environment, quiet=True, **own, **more).folder


@pytest.fixture(scope="session")
def run(tmp_path_factory):
    """Return the folder of a single run of CartPole."""
    return train(tmp_path_factory.mktemp("runs") / "single")


@pytest.fixture(scope="session")
def sweep(tmp_path_factory):
    """Return the folder of a run with two learning rates and two seeds each."""
    return train(
        tmp_path_factory.mktemp("runs") / "sweep", seeds=2, sweep={"learning_rate": [1e-4, 1e-3]}
    )


@pytest.fixture(scope="session")
def trials(tmp_path_factory):
    """Return the folder of a run with trials of three short episodes in a grid."""
    folder = tmp_path_factory.mktemp("runs") / "trials"
    arguments = {"max_steps": 8, "episodes": 3, "num_rulesets": 20}
    own = {"config": {"sequence_length": 1}, "network": {"core": "none", "filters": None}}
    with configured(jax_numpy_rank_promotion="allow"):  # the suite needs rank promotion
        return train(folder, "rl2/XLand-MiniGrid-R1-9x9", arguments=arguments, **own)


@pytest.fixture
def variant(run, tmp_path):
    """Return a function that copies the run with other metadata.

    Example: `variant("name", seed=3, environment=..., gamma=..., shift=...)`
    """

    def make(name, seed=0, environment="gymnax/CartPole-v1", shift=0.0, gamma=None):
        folder = tmp_path / name
        shutil.copytree(run, folder, ignore=shutil.ignore_patterns("checkpoints", "figures"))
        document = yaml.safe_load((folder / "config.yaml").read_text())
        document["environment"], document["options"]["seed"] = environment, seed
        if gamma is not None:
            document["config"]["gamma"] = gamma
        (folder / "config.yaml").write_text(yaml.safe_dump(document))
        with np.load(folder / "evaluations.npz") as file:
            arrays = dict(file)
        np.savez(folder / "evaluations.npz", **arrays | {"returns": arrays["returns"] + shift})
        return folder

    return make
