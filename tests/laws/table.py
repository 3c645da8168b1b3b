"""Table of algorithms with small settings. Each row runs through all tests of this folder."""

from collections.abc import Iterable
from typing import Any

import pytest

from laws.rows import (
    DISCRETE,
    Family,
    actor_critics_row,
    archive_row,
    bc_row,
    dqn_row,
    impala_row,
    ppo_rnd_row,
    ppo_row,
    pqn_row,
)
from laws.walk import Walk
from rollax.environments.native.control.platforms import Platforms

# Two memories, whose outputs are summed, followed by heads with two layers.
MINGRU = {
    "core": "mingru",
    "core_layers": 2,
    "core_output": "sum",
    "head_hidden": (16,),
    "shared": True,
}
TRANSFORMER = {"core": "gtrxl", "core_layers": 2, "core_heads": 2, "core_memory": 6, "shared": True}
BLOCKS = {"core": "mingru", "core_layers": 2, "core_output": "residual", "shared": True}

ROWS = (
    ppo_row("ppo", DISCRETE),
    ppo_row("ppo-shared", ("action-observation",), network={"shared": True}),
    ppo_row(
        "ppo-gru", ("two-steps", "two-agents", "memory"), network={"core": "gru"}, sequence_length=4
    ),
    ppo_row("ppo-lstm", ("memory",), network={"core": "lstm", "shared": True}, sequence_length=4),
    ppo_row("ppo-mingru", ("memory",), network=MINGRU, sequence_length=4),
    ppo_row("ppo-blocks", (), network=BLOCKS, sequence_length=4),
    ppo_row("ppo-gtrxl", (), network=TRANSFORMER, sequence_length=4),
    # In half precision, one step alone is rounded differently than a sequence in parallel. The
    # measured difference is 3e-3 or less.
    ppo_row(
        "ppo-bfloat16",
        (),
        network=MINGRU | {"precision": "bfloat16"},
        sequence_length=4,
        rounding=1e-2,
    ),
    ppo_row("ppo-continuous", ("continuous",), Walk(continuous=True), network={"initial_std": 0.5}),
    ppo_row(
        "ppo-gsde",
        ("continuous",),
        Walk(continuous=True),
        network={"std": "gsde", "initial_std": 0.5},
        sde_sample_freq=3,
    ),
    ppo_row(
        "ppo-squashed",
        ("continuous",),
        Walk(continuous=True),
        network={"squash": True, "initial_std": 0.5},
    ),
    ppo_row(
        "ppo-separate-epochs",
        ("two-steps", "action-observation"),
        critic_epochs=3,
        critic_learning_rate=2e-2,
        target_kl=0.05,
    ),
    ppo_row(
        "ppo-normalized",
        ("two-observations", "action-observation"),
        normalize_observations=True,
        normalize_rewards=True,
    ),
    ppo_row("ppo-values", ("two-steps",), network={"shared": True}, normalize_values=True),
    ppo_row("ppo-agents", (), Walk(agents=2)),
    ppo_row(
        "ppo-types", (), Walk(agents=3, early=True), sharing="type", normalize_observations=True
    ),
    ppo_rnd_row("ppo_rnd", ("two-steps",)),
    ppo_rnd_row("ppo_rnd-types", (), Walk(agents=3, early=True), sharing="type"),
    impala_row("impala", ("two-steps", "action-observation")),
    impala_row(
        "impala-gru", ("memory",), network={"core": "gru"}, normalize_advantages="minibatch"
    ),
    impala_row("impala-values", ("two-steps",), normalize_values=True),
    impala_row("impala-gtrxl", (), network=TRANSFORMER | {"shared": False}, sequence_length=4),
    impala_row(
        "impala-priority",
        ("action-observation",),
        network={"shared": True},
        objective="clipped",
        prioritized=True,
        sequence_length=4,
    )._replace(spreads=False),
    ppo_row(
        "ppo-apart",
        (),
        Walk(agents=3, early=True),
        sharing="none",
        normalize_rewards=True,
        normalize_values=True,
    ),
    dqn_row("dqn", ("two-steps", "action-observation", "two-agents", "masked")),
    dqn_row(
        "dqn-rainbow",
        ("two-steps",),
        {"dueling": True},
        prioritized=True,
        n_step=2,
        normalize_observations=True,
    ),
    dqn_row("c51", ("two-steps",), algorithm="c51", v_min=-2.0, v_max=12.0),
    dqn_row("qr_dqn", ("action-observation",), {"quantiles": 16}, algorithm="qr_dqn"),
    dqn_row("iqn", ("masked",), {"hidden": (16, 16), "dueling": True}, algorithm="iqn"),
    dqn_row("rainbow", ("action-observation",), algorithm="rainbow", v_min=-2.0, v_max=12.0),
    pqn_row("pqn", ("two-steps", "action-observation")),
    pqn_row("pqn-gru", ("memory",), network={"core": "gru"}, sequence_length=4),
    pqn_row(
        "pqn-types", (), Walk(agents=3, early=True), sharing="type", normalize_observations=True
    ),
    actor_critics_row("td3", "td3", ("continuous",)),
    actor_critics_row("sac", "sac", ("continuous",)),
    actor_critics_row(
        "sac-mixed", "sac", ("action-observation", "multi-discrete", "masked"), Platforms()
    ),
    bc_row("bc"),
    bc_row("bc-gru", Walk(continuous=True), {"core": "gru", "shared": True}, sequence_length=4),
    bc_row("bc-agents", Walk(agents=2), normalize_observations=True),
    archive_row("map_elites", "iso_sigma"),
    archive_row("dns", "iso_sigma", forgets=True),
    archive_row("aurora", "iso_sigma", forgets=True),
    archive_row("mome", "iso_sigma"),
    archive_row("cma_me", "sigma"),
    archive_row("cma_mae", "sigma"),
    archive_row("cma_mega", "sigma"),
    archive_row("cma_maega", "sigma"),
    archive_row("omg_mega", "gradient_sigma"),
    archive_row("pga_me", "iso_sigma"),
    archive_row("dcrl_me", "iso_sigma"),
    archive_row("me_es", "sigma"),
    archive_row("me_map_elites", "iso_sigma"),
)
NAMES = [row.name for row in ROWS]
BY_NAME = {row.name: row for row in ROWS}


# One row of each algorithm, the one with the most components.
EACH = ("ppo-gru", "impala-gru", "pqn", "dqn-rainbow", "td3", "sac", "bc-gru")
# Archives with different kinds of emitters and archives.
ARCHIVES = ("map_elites", "cma_mae", "pga_me", "me_es", "mome")


def names(*families: Family) -> list[str]:
    """Return the names of the rows of these families."""
    return [row.name for row in ROWS if row.family in families]


# Rows that learn a network and act in environments that are part of their state.
LEARNERS = names("on-policy", "replay")


def first(*names: str, among: list[str] = NAMES, accelerator: tuple[str, ...] = ()) -> list[Any]:
    """Return all rows as parameters of a test that takes seconds of compilation per row.

    Args:
        *names: Rows that run by default, at least one of every family in `among`. The first one is
            marked quick, and the rows that are not named are marked slow.
        among: Names of the rows.
        accelerator: Rows that also run on accelerators, which `-m accelerator` selects.
    """
    left_out = {BY_NAME[name].family for name in among} - {BY_NAME[name].family for name in names}
    assert not left_out, (
        f"no row of {left_out} is tried unless asked for with -m slow: name one of them too"
    )
    marks = {name: [] if name in names else [pytest.mark.slow] for name in among}
    marks[names[0]].append(pytest.mark.quick)
    for name in accelerator:
        marks[name].append(pytest.mark.accelerator)
    return [pytest.param(name, marks=marks[name]) for name in among]


def without_row(registered: Iterable[str]) -> set[str]:
    """Return the algorithms that have no row."""
    return set(registered) - {row.algorithm for row in ROWS}
