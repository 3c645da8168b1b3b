"""Optimizers and schedules that the user passes as objects and functions of optax."""

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import yaml

import rollax
from rollax.config import UserFunction
from rollax.errors import UsageError
from rollax.learning.optimizers import make_optimizer, scheduled_rate
from rollax.training.run_folder.reproduction import format_train_script

CARTPOLE = "gymnax/CartPole-v1"
SIZES = {"num_envs": 4, "num_steps": 16, "num_minibatches": 2, "total_updates": 8.0}
RUN_SIZES = {"num_envs": 4, "num_steps": 16, "num_minibatches": 2}


def clipped_lion(learning_rate: Any) -> optax.GradientTransformation:
    return optax.chain(optax.clip(0.1), optax.lion(learning_rate))


def train(folder: Path, **arguments: Any) -> rollax.Result:
    settings: dict[str, Any] = {"config": RUN_SIZES, "total_steps": 256, "quiet": True}
    settings["options"] = {"run_dir": str(folder), "eval_episodes": 2}
    return rollax.train("ppo", CARTPOLE, **(settings | arguments))


@pytest.mark.quick
@pytest.mark.parametrize("passed", [clipped_lion, clipped_lion(1e-3)])
def test_a_step_is_that_of_optax_after_clipping_by_norm(passed: Any) -> None:
    config = rollax.PPOConfig(**SIZES, optimizer=passed, max_grad_norm=0.3)
    params = {"w": jnp.array([1.0, -2.0, 3.0])}
    gradient = {"w": jnp.array([3.0, -4.0, 0.1])}
    optimizer = make_optimizer(config, 1e-3, 0.0)
    expected = optax.chain(optax.clip_by_global_norm(0.3), clipped_lion(1e-3))
    first, second = (each.init(params) for each in (optimizer, expected))
    for _ in range(3):
        found, first = optimizer.update(gradient, first, params)
        wanted, second = expected.update(gradient, second, params)
        np.testing.assert_allclose(found["w"], wanted["w"], rtol=1e-6)


@pytest.mark.quick
def test_weight_decay_applies_to_functions_of_the_learning_rate() -> None:
    config = rollax.PPOConfig(**SIZES, optimizer=optax.sgd, weight_decay=0.1)
    optimizer = make_optimizer(config, 0.5, 0.0)
    params = {"w": jnp.array([2.0])}
    update, _ = optimizer.update({"w": jnp.array([0.0])}, optimizer.init(params), params)
    np.testing.assert_allclose(update["w"], -0.5 * 0.1 * 2.0, rtol=1e-6)


@pytest.mark.quick
@pytest.mark.parametrize("updates", [0, 3, 8])
def test_a_schedule_receives_environment_steps(updates: int) -> None:
    config = rollax.PPOConfig(**SIZES, learning_rate_schedule=optax.linear_schedule(1.0, 0.0, 512))
    rate = scheduled_rate(config, 123.0, updates / 8)
    np.testing.assert_allclose(rate, 1 - updates * 64 / 512, atol=1e-6)


@pytest.mark.quick
def test_equal_functions_share_a_program_and_others_do_not() -> None:
    def structure(function: Any) -> Any:
        return jax.tree.structure(rollax.PPOConfig(optimizer=function))

    assert structure(optax.lion) == structure(optax.lion) != structure(optax.sgd)
    assert UserFunction(optax.lion) == UserFunction(optax.lion)


def test_a_member_equals_its_run_alone_and_a_resume_is_bit_identical(tmp_path: Path) -> None:
    functions = {
        "optimizer": clipped_lion,
        "learning_rate_schedule": optax.cosine_decay_schedule(1e-3, 256),
    }
    whole = train(tmp_path / "whole", seeds=2, **functions)
    part = train(tmp_path / "part", seeds=2, total_steps=128, **functions)
    rollax.resume(part.folder, total_steps=256, quiet=True, **functions)
    alone = train(tmp_path / "alone", seed=1, **functions)
    networks = [
        rollax.load(folder, member=member).state.train.network
        for folder, member in ((whole.folder, 1), (part.folder, 1), (alone.folder, None))
    ]
    whole_leaves, part_leaves, alone_leaves = map(jax.tree.leaves, networks)
    assert all(map(np.array_equal, whole_leaves, part_leaves))
    for left, right in zip(whole_leaves, alone_leaves, strict=True):
        np.testing.assert_allclose(left, right, atol=1e-5)
    rates = [row["learning_rate"][0] for row in read_metrics(whole.folder)]
    steps = 64 * np.arange(4)
    np.testing.assert_allclose(rates, 1e-3 * (1 + np.cos(np.pi * steps / 256)) / 2, rtol=1e-5)


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    rows = [yaml.safe_load(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [row for row in rows if "learning_rate" in row]


def test_a_run_folder_records_the_function_and_needs_it_to_continue(tmp_path: Path) -> None:
    result = train(tmp_path / "run", optimizer=optax.lion(1e-4))
    assert not read_metrics(result.folder), "the learning rate of this optimizer is not known"
    config = yaml.safe_load((result.folder / "config.yaml").read_text())["config"]
    assert config["optimizer"] == "custom"
    policy = rollax.load(result.folder)
    assert policy.step == 256 and np.isfinite(result.evaluate(2)["return_mean"])
    script = format_train_script(policy.spec, str(result.folder))
    assert "optimizer=optimizer" in script and '"optimizer"' not in script
    with pytest.raises(UsageError, match="used a custom optimizer. Pass it again as optimizer="):
        rollax.resume(result.folder, total_steps=512, quiet=True)
    assert rollax.resume(result, total_steps=512, quiet=True).steps == 512


def test_a_resume_replaces_a_setting_by_a_function(tmp_path: Path) -> None:
    """The change begins a phase. Afterwards, the function is needed to continue."""
    result = train(tmp_path / "run")
    first = read_metrics(result.folder)[-1]["learning_rate"]
    resumed = rollax.resume(
        result.folder,
        total_steps=512,
        optimizer=clipped_lion,
        learning_rate_schedule=lambda step: 0.25 * step / 512,
        quiet=True,
    )
    assert resumed.status == "done"
    assert first < 0.01 and read_metrics(resumed.folder)[-1]["learning_rate"] > 0.2
    document = yaml.safe_load((resumed.folder / "config.yaml").read_text())
    assert document["config"]["optimizer"] == "custom"
    assert document["phases"][0]["changes"] == {
        "config.optimizer": ["adam", "custom"],
        "config.learning_rate_schedule": ["linear", "custom"],
    }
    assert np.isfinite(resumed.evaluate(2)["return_mean"])
    with pytest.raises(UsageError, match="used a custom optimizer. Pass it again as optimizer="):
        rollax.resume(resumed.folder, total_steps=768, quiet=True)
    with pytest.raises(UsageError, match="must be the object that this run was started with"):
        rollax.resume(resumed, total_steps=768, optimizer="adam", quiet=True)


def test_a_resume_with_another_function_names_the_optimizer(tmp_path: Path) -> None:
    result = train(tmp_path / "run", optimizer=clipped_lion)
    with pytest.raises(UsageError, match="does not match the optimizer. Use the optimizer that"):
        rollax.resume(result, total_steps=512, optimizer=optax.adamw, quiet=True)
    assert rollax.resume(result, total_steps=512, quiet=True).status == "done"


def test_a_warm_start_copies_the_moments_of_a_custom_optimizer(tmp_path: Path) -> None:
    source = train(tmp_path / "source", optimizer=clipped_lion)
    parts = {"init_parts": ["networks", "optimizer"], "eval_episodes": 2}
    started = train(
        tmp_path / "run",
        optimizer=clipped_lion,
        init_from=source,
        options={"run_dir": str(tmp_path / "run"), **parts},
    )
    record = json.loads((started.folder / "warm_start.json").read_text())
    assert any(name.startswith("optimizer") and ".mu" in name for name in record["copied"])
    assert not record["initialized"] and not record["unused"]
    with pytest.raises(UsageError, match="its result if it used a custom optimizer"):
        train(tmp_path / "other", init_from=source.folder, options=parts)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"optimizer": "liom"}, "must be one of adam.*did you mean lion"),
        ({"optimizer": 3}, "must be one of adam"),
        ({"optimizer": lambda rate: optax.sgd(float(rate))}, "its call raised Concretization"),
        ({"optimizer": object}, "optimizer must be a function of one traced number"),
        ({"learning_rate_schedule": lambda step: 1 / 0}, "its call raised ZeroDivisionError"),
        ({"learning_rate_schedule": lambda step: "fast"}, "must return one number .* got 'fast'"),
        ({"learning_rate_schedule": lambda step: jnp.ones(3)}, "must return one number"),
        ({"optimizer": lambda rate: 3}, "must return an optimizer of optax"),
        ({"optimizer": optax.lion, "config": {"optimizer": "adam"}}, "optimizer is given twice"),
        (
            {"optimizer": optax.lion(1e-4), "learning_rate_schedule": "kl"},
            "kl requires an optimizer that takes the learning rate",
        ),
        *(
            (
                {"optimizer": optax.lion(1e-4), "config": RUN_SIZES | {name: value}},
                f"config.{name} .* has no effect",
            )
            for name, value in (
                ("learning_rate", 0.01),
                ("weight_decay", 0.01),
                ("adam_epsilon", 0.01),
                ("learning_rate_warmup_fraction", 0.5),
            )
        ),
        (
            {
                "learning_rate_schedule": optax.constant_schedule(1e-3),
                "sweep": {"learning_rate": [1e-3, 1e-4]},
            },
            "learning_rate .* has no effect",
        ),
    ],
)
def test_wrong_values_and_settings_without_effect_are_refused(
    arguments: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=message):
        train(tmp_path / "run", **arguments)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("schedule", ["kl", "cosine"])
def test_functions_combine_with_schedules_sweeps_and_accumulation(
    schedule: Any, tmp_path: Path
) -> None:
    result = train(
        tmp_path / "run",
        optimizer=optax.adamw,
        learning_rate_schedule=schedule,
        config=RUN_SIZES | {"gradient_accumulation": 2},
        sweep={"learning_rate": [1e-3, 1e-4]},
    )
    rates = read_metrics(result.folder)[0]["learning_rate"]
    assert rates[0] != rates[1]


def test_sac_and_td3_take_functions(tmp_path: Path) -> None:
    sizes = {
        "num_envs": 4,
        "num_steps": 8,
        "capacity": 500,
        "batch_size": 16,
        "replay_ratio": 0.5,
        "warmup": 32,
    }
    for algorithm in ("sac", "td3"):
        result = rollax.train(
            algorithm,
            "gymnax/Pendulum-v1",
            total_steps=128,
            config=sizes,
            network={"hidden": (8,)},
            optimizer=optax.adabelief,
            learning_rate_schedule=optax.linear_schedule(1e-3, 0.0, 128),
            options={"run_dir": str(tmp_path / algorithm), "eval_episodes": 2},
            quiet=True,
        )
        rates = [row["learning_rate"] for row in read_metrics(result.folder)]
        np.testing.assert_allclose(rates, 1e-3 * (1 - np.arange(4) / 4), rtol=1e-5)
