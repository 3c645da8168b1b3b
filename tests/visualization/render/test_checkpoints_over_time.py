"""Tests of the choice of a checkpoint to render, and of all checkpoints in sequence."""

import shutil

import pytest
from PIL import Image

import rollax
from rollax.errors import UsageError
from rollax.training.checkpoints import compatibility, index
from rollax.training.run_folder import layout
from rollax.visualization.render import recorded_episodes
from rollax.visualization.render import render as renders
from rollax.visualization.render.render import render


def copy_of(run, folder, **metrics):
    """Return a copy of a run in which `step_N` is the mean return of that checkpoint, or None."""
    shutil.copytree(run, folder, ignore=shutil.ignore_patterns("figures"))
    with compatibility.open_checkpoints(folder, layout.read_spec(folder)) as checkpoints:
        for name, value in metrics.items():
            checkpoints.update_metrics(
                int(name.removeprefix("step_")), {} if value is None else {"return_mean": value}
            )
    return folder


@pytest.fixture(scope="module")
def steps(run):
    found = [each.step for each in index.read_checkpoint_index(run).all]
    assert len(found) >= 2
    return found


def test_the_best_checkpoint_is_rendered_and_reported(run, steps, tmp_path):
    better = copy_of(run, tmp_path / "run", **{f"step_{steps[0]}": 12345.0})
    said = []
    render(better, max_frames=4, notify_fn=said.append)
    assert said == [f"Using the checkpoint of step {steps[0]:,} (the best, return_mean 12,345)."]
    render(better, max_frames=4, checkpoint="last", notify_fn=said.append)
    assert said[1].startswith(f"Using the checkpoint of step {steps[-1]:,} (the last, return_mean ")


def test_without_evaluations_the_last_checkpoint_is_rendered(run, steps, tmp_path):
    never = copy_of(run, tmp_path / "run", **{f"step_{step}": None for step in steps})
    said = []
    render(never, max_frames=4, notify_fn=said.append)
    assert said == [
        f"Using the checkpoint of step {steps[-1]:,} (the last, without an evaluation)."
    ]


def test_a_running_run_can_be_rendered(run, tmp_path):
    said, own = [], copy_of(run, tmp_path / "run")
    with layout.lock_folder(own):
        render(own, max_frames=4, notify_fn=said.append)
    assert len(said) == 2 and "still being written" in said[1]


def test_all_checkpoints_start_in_the_same_state(run, steps):
    said = []
    path = render(run, checkpoint="all", notify_fn=said.append, max_frames=60)
    assert path == run / "figures" / "learning.gif"
    assert said[0].startswith(
        f"Showing {len(steps)} checkpoints from step {steps[0]:,} to step {steps[-1]:,}."
    )
    assert "--keep-last 20" in said[0]
    policies = renders.load_all_checkpoints(
        run, lambda **which: rollax.load(run, **which), None, 100, said.append
    )
    assert [policy.step for policy in policies] == steps
    plays = recorded_episodes.record_episodes(policies, 0, 1, True, 60 // len(steps))
    starts = [each[0].frames[0].obs.tolist() for each in plays]
    assert starts == [starts[0]] * len(steps)
    for policy, (play,) in zip(policies, plays, strict=True):
        (alone,) = recorded_episodes.record_episodes([policy], 0, 1, True, 60 // len(steps))[0]
        assert play.frames[-1].total == alone.frames[-1].total and play.stride == alone.stride
    with Image.open(path) as image:
        assert image.n_frames == sum(len(play.frames) for (play,) in plays) <= 60
    assert renders.checkpoint_titles(run, policies) == [
        f"checkpoint of {index.read_checkpoint_index(run).describe(step)}" for step in steps
    ]


def test_a_subset_of_many_checkpoints(run, steps):
    said = []
    policies = renders.load_all_checkpoints(
        run, lambda **which: rollax.load(run, **which), None, 2, said.append
    )
    assert [policy.step for policy in policies] == [steps[0], steps[-1]]
    assert (
        f"2 checkpoints{'' if len(steps) == 2 else f' (evenly spaced, of {len(steps)})'} from step"
        in said[0]
    )


def test_a_checkpoint_that_is_deleted_meanwhile_is_skipped(run, steps, tmp_path):
    own, said = copy_of(run, tmp_path / "run"), []

    def opened(checkpoint, member):
        if checkpoint == steps[0]:
            shutil.rmtree(own / "checkpoints" / f"step_{checkpoint:012d}")
        return rollax.load(own, checkpoint=checkpoint, member=member)

    if len(steps) == 2:
        with pytest.raises(UsageError, match="No checkpoint of step"):
            renders.load_all_checkpoints(own, opened, None, 100, said.append)
    else:
        assert [
            policy.step
            for policy in renders.load_all_checkpoints(own, opened, None, 100, said.append)
        ] == steps[1:]
        assert "Skipped 1 " in said[0]


def test_a_single_checkpoint_raises_usage_error(run, steps, tmp_path):
    own = copy_of(run, tmp_path / "run")
    for step in steps[1:]:
        shutil.rmtree(own / "checkpoints" / f"step_{step:012d}")
    with pytest.raises(
        UsageError,
        match=rf"requires at least two checkpoints, .* only the checkpoint of step {steps[0]:,}\. "
        r".*--keep-last 20",
    ):
        render(own, checkpoint="all")
    assert not (own / "figures" / "learning.gif").exists()


def test_all_checkpoints_of_one_member(sweep):
    said = []
    policies = renders.load_all_checkpoints(
        sweep, lambda **which: rollax.load(sweep, **which), None, 100, said.append
    )
    assert {policy.member for policy in policies} == {rollax.load(sweep).member}


@pytest.mark.parametrize("options", [{"descriptor": (0.5, 0.5)}, {"cell": (1, 2)}])
def test_elites_with_all_checkpoints_raise_usage_error(run, options):
    with pytest.raises(UsageError, match="Leave --cell and --descriptor out"):
        render(run, checkpoint="all", **options)
