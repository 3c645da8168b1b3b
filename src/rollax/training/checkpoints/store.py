"""Checkpointing of training state: background writes, atomic replacement, verified reads.

A checkpoint is a folder `step_<environment steps>`:

    state/          leaves with at least one element, written by Orbax; typed keys as raw data
    large/          large leaves, such as those of a replay buffer, one file per shard
    summary.json    metrics, settings of the run, scores of members, the path, shape, type and
                    CRC-32 of each leaf, the CRC-32 of each file, and the CRC-32 of all of these

A checkpoint is written under a temporary name, synced to disk and renamed, so a folder with the
final name is complete even after a power failure. Older checkpoints are deleted after that. The
checksums of the files are verified before Orbax reads them, and the checksums of the arrays
afterward. Only arrays and JSON are read, never executable content.
"""

import bisect
import contextlib
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Literal, NamedTuple

import jax
import numpy as np
from jax.experimental.multihost_utils import sync_global_devices

from rollax.errors import UsageError
from rollax.training.checkpoints import shards
from rollax.training.checkpoints.leaves import (
    LeafChanges,
    add_missing_settings,
    check_same_leaves,
    place_arrays,
    store_name,
)
from rollax.training.checkpoints.shards import ShardedLeaf
from rollax.training.checkpoints.snapshot import open_checkpointer, take_snapshot
from rollax.training.checkpoints.summary import (
    CheckpointSummary,
    DamagedCheckpointError,
    MemberScores,
    array_checksum,
    check_file_checksums,
    delete_checkpoint,
    deletion_warnings,
    file_checksum,
    is_same_run,
    list_files,
    nonfinite_to_none,
    read_summary,
    write_summary,
)
from rollax.training.run_folder.files import fsync_path, fsync_tree, rename_with_prefix
from rollax.types import Record, State

ChangeLeavesFn = Callable[[CheckpointSummary, State], LeafChanges]

STEP_FOLDER_PATTERN = re.compile(r"step_(\d{12,})")
# Folders that interrupted saves and deletions leave behind.
UNFINISHED_FOLDER_PATTERN = re.compile(r"step_\d{12,}\.(writing|deleted)")


class RestoredCheckpoint(NamedTuple):
    """State that was read from a checkpoint.

    Attributes:
        step: Environment steps at the checkpoint.
        state: State of the run.
        warnings: Warnings that name skipped checkpoints.
    """

    step: int
    state: State
    warnings: list[str]


class CheckpointSaveError(RuntimeError):
    """Error for a checkpoint that could not be written. Earlier checkpoints are unchanged."""


class Checkpoints:
    """Store for the checkpoints of one run in a folder.

    The best checkpoint is selected among the checkpoints of the current phase, which begins after
    the last step in `phase_starts`. After every save, the newest checkpoints and the best ones of
    each phase are kept, and the other checkpoints are deleted. A checkpoint with a nonfinite metric
    is never the best. Only folders that this class wrote are deleted. Only one process may write to
    a folder at a time, but other processes may read it. Call `close()` before the program ends, or
    an unfinished save may be lost.

    Args:
        folder: Folder of the checkpoints.
        keep_last: Number of newest checkpoints to keep.
        keep_best: Number of best checkpoints to keep.
        best_metric: Name of the metric that ranks checkpoints.
        best_mode: Whether larger ("max") or smaller ("min") values are better.
        phase_starts: Steps at which phases with a separate best checkpoint begin, in ascending
            order.
        ignores_optimizer: Whether to read checkpoints without the states of their optimizers.

    Raises:
        UsageError: If an argument is out of range.
    """

    def __init__(
        self,
        folder: str | Path,
        keep_last: int = 2,
        keep_best: int = 1,
        best_metric: str = "return_mean",
        best_mode: Literal["max", "min"] = "max",
        phase_starts: Sequence[int] = (),
        ignores_optimizer: bool = False,
    ) -> None:
        if keep_last < 1 or keep_best < 0:
            raise UsageError(
                f"keep_last must be at least 1 and keep_best at least 0, got {keep_last} and "
                f"{keep_best}."
            )
        if best_mode not in ("max", "min"):
            raise UsageError(f"best_mode must be 'max' or 'min', got {best_mode!r}.")
        self._folder = Path(folder).absolute()
        self._keep_last, self._keep_best = keep_last, keep_best
        self._best_metric, self._sign = best_metric, 1 if best_mode == "max" else -1
        self._phase_starts = list(phase_starts)
        self._ignores_optimizer = ignores_optimizer
        self._checkpointer = open_checkpointer()
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._pending: tuple[int, Future] | None = None
        # Summary of the checkpoint that was read last.
        self._restored_summary: CheckpointSummary | None = None

    def save(
        self,
        step: int,
        state: State,
        metrics: dict[str, float],
        settings: Record | None = None,
        scores: MemberScores | None = None,
    ) -> bool:
        """Copy the state, and write it to disk in the background.

        Small leaves are copied to host memory, and large leaves are written directly to disk. The
        state may be donated as soon as this method returns. In a distributed run, all processes
        must call this method, and it returns after the checkpoint is written.

        Args:
            step: Environment steps, which identify the checkpoint.
            state: State of the run.
            metrics: Metrics of the evaluation at this step. Nonfinite values are recorded as None.
            settings: Settings of the run as JSON values, stored in the summary.
            scores: Best metric of each member of a population, or None for a single run.

        Returns:
            False if a checkpoint of this step already exists and nothing is written, else True.

        Raises:
            CheckpointSaveError: If the previous save failed. This save then does not start. In a
                distributed run, also if this save fails.
            UsageError: If the state contains a leaf that cannot be saved.
        """
        self.wait()
        step = int(step)
        if step in self.steps():
            return False
        run_fn = self._executor.submit if jax.process_count() == 1 else _run_immediately
        try:
            leaves, arrays = take_snapshot(state, self._create_unfinished_folder(step))
            summary = CheckpointSummary(
                step, nonfinite_to_none(metrics), leaves, {}, settings or {}, scores
            )
            self._pending = step, run_fn(self._write, summary, arrays)
        except OSError as error:  # such as a full disk
            self._pending = step, _run_immediately(_raise_error, error)
        if jax.process_count() > 1:
            self.wait()
        return True

    def update_metrics(
        self, step: int, metrics: dict[str, float], scores: MemberScores | None = None
    ) -> None:
        """Replace the metrics and scores of an existing checkpoint.

        Args:
            step: Step of the checkpoint.
            metrics: Metrics of the evaluation at this step.
            scores: Best metric of each member of a population, or None for a single run.

        Raises:
            CheckpointSaveError: If the previous save failed.
            DamagedCheckpointError: If the checkpoint cannot be read.
        """
        self.wait()
        self._restored_summary = None
        if jax.process_index() == 0:
            summary = self._read_summary(step)
            if not self._path(step).is_symlink():  # the target of a link may be shared
                write_summary(
                    self._path(step),
                    summary._replace(metrics=nonfinite_to_none(metrics), scores=scores),
                )
            self._delete_superseded(step)
        self._synchronize()

    def wait(self) -> None:
        """Wait until the last save is on disk.

        Raises:
            CheckpointSaveError: If the last save failed. The error is raised only once.
        """
        if self._pending is None:
            return
        step, future = self._pending
        error = future.exception()
        self._pending = None
        if error is not None:
            raise CheckpointSaveError(
                f"The checkpoint of step {step} could not be written to {self._folder}: {error}"
            ) from error

    def close(self) -> None:
        """Wait for the last save and release the background thread.

        Raises:
            CheckpointSaveError: If the last save failed.
        """
        try:
            self.wait()
        finally:
            self._executor.shutdown()
            self._checkpointer.close()

    def steps(self) -> list[int]:
        """Return the sorted steps of all checkpoint folders, except empty folders."""
        return [step for step, is_empty in self._list_step_folders() if not is_empty]

    def _list_step_folders(self) -> list[tuple[int, bool]]:
        """Return `(step, is_empty)` for each checkpoint folder, sorted by step.

        A power failure can leave an empty folder.
        """
        folders = self._folder.iterdir() if self._folder.is_dir() else ()
        named = [
            (STEP_FOLDER_PATTERN.fullmatch(folder.name), folder)
            for folder in folders
            if folder.is_dir()
        ]
        return sorted((int(name[1]), not any(folder.iterdir())) for name, folder in named if name)

    def summary(self, step: int) -> CheckpointSummary:
        """Return the summary of a checkpoint without reading its arrays.

        Args:
            step: Step of the checkpoint.

        Raises:
            CheckpointSaveError: If the previous save failed.
            DamagedCheckpointError: If the summary cannot be read.
        """
        self.wait()
        if self._restored_summary is not None and self._restored_summary.step == step:
            return self._restored_summary  # the run may have deleted the checkpoint in the meantime
        return self._read_summary(step)

    def _read_summary(self, step: int) -> CheckpointSummary:
        """Read the summary of a checkpoint.

        Raise DamagedCheckpointError if the step in the summary differs from the folder name.
        """
        summary = read_summary(self._path(step))
        if summary.step != step:
            raise DamagedCheckpointError(
                f"{self._path(step)} must contain the checkpoint of step {step}, got that of step "
                f"{summary.step}. Rename it to {self._path(summary.step).name}, or delete it"
            )
        return summary

    def readable_summaries(self) -> Iterator[CheckpointSummary]:
        """Yield the summaries that can be read, newest first."""
        for step in self.steps()[::-1]:
            with contextlib.suppress(DamagedCheckpointError):
                yield self.summary(step)

    def newest_intact_summary(self) -> CheckpointSummary:
        """Return the summary of the newest checkpoint with files that match their checksums.

        Raises:
            DamagedCheckpointError: If no checkpoint is intact.
        """
        problems = []
        for step in self.steps()[::-1]:
            try:
                summary = self._read_summary(step)
                check_file_checksums(self._path(step), summary.files)
                return summary
            except DamagedCheckpointError as error:
                problems += [str(error)] if self._path(step).exists() else []
        raise self._unreadable_error(problems)

    def _unreadable_error(self, problems: list[str]) -> DamagedCheckpointError:
        return DamagedCheckpointError(
            f"No checkpoint in {self._folder} can be read: {'; '.join(problems)}. Restore a copy "
            "of one, or train a new run."
        )

    def best(self) -> int | None:
        """Return the step with the best finite metric, or None. Ties select the newest step."""
        ranked = self._rank_phases(self._read_intact_summaries()[0])[-1]
        return ranked[0] if ranked else None

    def best_value(self) -> tuple[int, float] | None:
        """Return the step and the metric of the best checkpoint, or None if no metric is finite."""
        step = self.best()
        return (
            None
            if step is None
            else (step, float(self.summary(step).metrics[self._best_metric] or 0.0))
        )

    def restore(
        self,
        checkpoint: Literal["last", "best"] | int,
        template: State,
        change_leaves: ChangeLeavesFn = add_missing_settings,
    ) -> RestoredCheckpoint:
        """Read a checkpoint.

        If the "last" or "best" checkpoint is damaged, the next checkpoint in that order is read. If
        the run deletes a checkpoint during reading, another checkpoint is read. The warnings name
        the skipped checkpoints.

        Args:
            checkpoint: "last", "best" or a step.
            template: State, or its shapes from `jax.eval_shape`. The leaves are placed with its
                shardings.
            change_leaves: Function `(summary, template)` that returns the leaves that are not read
                from the checkpoint. The default function fills in settings that an older version
                did not store.

        Returns:
            The step, the state and the warnings.

        Raises:
            UsageError: If the checkpoint does not exist, or its leaves differ from those of
                `template`.
            DamagedCheckpointError: If the checkpoint of the given step is damaged, or for "last"
                and "best", if all checkpoints are damaged.
        """
        self.wait()
        deleted: list[int] = []
        while True:
            candidates, warnings = self._candidate_steps(checkpoint)
            step_and_state = self._read_first_intact(candidates, template, warnings, change_leaves)
            if step_and_state is not None:
                step, state = step_and_state
                return RestoredCheckpoint(step, state, deletion_warnings(deleted, step) + warnings)
            deleted += [step for step in candidates if not self._path(step).exists()]

    def _read_first_intact(
        self,
        candidates: list[int],
        template: State,
        warnings: list[str],
        change_leaves: ChangeLeavesFn,
    ) -> tuple[int, State] | None:
        """Read the first intact checkpoint, or return None if one is deleted during reading."""
        for step in candidates:
            try:
                summary = self._restored_summary = self._read_summary(step)
                changes = change_leaves(summary, template)
                check_same_leaves(summary, template, changes, self._ignores_optimizer)
                return step, place_arrays(
                    self._read_arrays(summary),
                    summary.leaves,
                    template,
                    changes.replaced,
                )
            # Reading a checkpoint while it is deleted may raise anything.
            except Exception as error:
                if not self._path(step).exists():
                    return None
                if not isinstance(error, DamagedCheckpointError):
                    raise
                warnings.append(f"{error}. It was skipped")
        raise self._unreadable_error(warnings)

    def find_step(self, checkpoint: Literal["last", "best"] | int) -> int:
        """Return the step of a checkpoint without reading its arrays.

        Args:
            checkpoint: "last", "best" or a step.

        Raises:
            UsageError: If the checkpoint does not exist.
            DamagedCheckpointError: If no summary can be read to select "best".
        """
        self.wait()
        steps, warnings = self._candidate_steps(checkpoint)
        if not steps:
            raise self._unreadable_error(warnings)
        return steps[0]

    def set_aside_after(self, step: int) -> list[int]:
        """Rename the checkpoints of later steps to `superseded_step_...`.

        A run that continues from `step` calls this method first. Later checkpoints, including
        damaged ones, then no longer count as "last" and do not collide with new checkpoints.
        Nothing is deleted.

        Args:
            step: Step at which the run continues.

        Returns:
            The steps of the renamed checkpoints.
        """
        self.wait()
        later_steps = [
            other_step for other_step, _ in self._list_step_folders() if other_step > step
        ]
        self._synchronize()
        for path in map(self._path, later_steps if jax.process_index() == 0 else []):
            rename_with_prefix(path, "superseded")
        self._synchronize()
        return later_steps

    def _candidate_steps(
        self, checkpoint: Literal["last", "best"] | int
    ) -> tuple[list[int], list[str]]:
        steps = self.steps()
        if not steps:
            raise UsageError(
                f"No checkpoint exists in {self._folder}. Restore one, or train the run again."
            )
        if checkpoint == "last":
            empty = [
                step
                for step, is_empty in self._list_step_folders()
                if is_empty and step > steps[-1]
            ]
            return steps[::-1], [
                f"{self._path(step)} is damaged: it is empty. It was skipped" for step in empty
            ]
        if checkpoint == "best":
            summaries, warnings = self._read_intact_summaries()
            ranked = self._rank_phases(summaries)[-1]
            if not ranked and summaries:
                since = f" since step {self._phase_starts[-1]}" if self._phase_starts else ""
                raise UsageError(
                    f"No checkpoint in {self._folder} has a finite {self._best_metric!r}{since}. "
                    "Use 'last'."
                )
            return ranked, warnings
        if checkpoint not in steps:
            raise UsageError(
                f"No checkpoint of step {checkpoint!r} exists in {self._folder}. Choose 'last', "
                f"'best' or one of {steps}."
            )
        return [checkpoint], []

    def _path(self, step: int) -> Path:
        return self._folder / f"step_{step:012d}"

    def _read_intact_summaries(self) -> tuple[dict[int, CheckpointSummary], list[str]]:
        """Return the readable summaries, keyed by step in ascending order, and warnings.

        One warning is returned for each checkpoint with an unreadable summary.
        """
        summaries, problems = {}, []
        for step in self.steps():
            try:
                summaries[step] = self._read_summary(step)
            except DamagedCheckpointError as error:
                if self._path(step).exists():  # otherwise the run has deleted it
                    problems.append(f"{error}. It was skipped")
        return summaries, problems

    def _rank_phases(self, summaries: dict[int, CheckpointSummary]) -> list[list[int]]:
        """Return the steps of each phase with a finite metric, best first.

        If metrics are equal, the newest step is first. The checkpoint at the start of a phase
        belongs to the phase before.
        """
        phases: list[list[tuple[float, int]]] = [[] for _ in range(len(self._phase_starts) + 1)]
        for step, summary in summaries.items():
            value = summary.metrics.get(self._best_metric)
            if value is not None:
                phase = bisect.bisect_left(self._phase_starts, step)
                phases[phase].append((-self._sign * value, -step))
        return [[-step for _, step in sorted(ranked)] for ranked in phases]

    def _create_unfinished_folder(self, step: int) -> Path:
        """Create a new folder for an unfinished checkpoint."""
        unfinished = self._path(step).with_suffix(".writing")
        if jax.process_index() == 0:
            self._delete_unfinished()
            unfinished.mkdir(parents=True)
            fsync_path(self._folder.parent)
        self._synchronize()
        return unfinished

    def _write(self, summary: CheckpointSummary, arrays: list[np.ndarray | None]) -> None:
        """Write the files of a checkpoint that are not yet written, in the first process.

        The array of a large leaf is None, because its shards are already written.
        """
        self._synchronize()
        if jax.process_index() == 0:
            self._write_files(summary, arrays)
        self._synchronize()

    def _write_files(self, summary: CheckpointSummary, arrays: list[np.ndarray | None]) -> None:
        import orbax.checkpoint as ocp

        step_folder, leaves = self._path(summary.step), summary.leaves
        unfinished = step_folder.with_suffix(".writing")
        stored = {
            store_name(i, leaf): arrays[i]
            for i, leaf in enumerate(leaves)
            if arrays[i] is not None and 0 not in leaf.shape
        }
        leaves = [
            leaf if array is None else leaf._replace(checksum=array_checksum(array))
            for leaf, array in zip(leaves, arrays, strict=True)
        ]
        for index, leaf in enumerate(leaves):
            folder = unfinished / "large" / store_name(index, leaf)
            if arrays[index] is None and not shards.has_all_shards(folder, leaf.shape):
                raise OSError(
                    f"Parts of {leaf.path} are missing in {folder}. Check that all processes share "
                    "this folder and can write to it."
                )
        if stored:
            self._checkpointer.save(unfinished / "state", args=ocp.args.PyTreeSave(stored))
        files = {
            path.relative_to(unfinished).as_posix(): file_checksum(path)
            for path in list_files(unfinished)
        }
        write_summary(unfinished, summary._replace(leaves=leaves, files=files))
        fsync_tree(unfinished)
        unfinished.rename(step_folder)
        fsync_path(self._folder)  # before superseded checkpoints are deleted
        self._delete_superseded(summary.step)

    def _synchronize(self) -> None:
        if jax.process_count() > 1:
            sync_global_devices("checkpoint")

    def _delete_unfinished(self) -> None:
        for path in [
            path
            for path in self._folder.glob("step_*.*")
            if UNFINISHED_FOLDER_PATTERN.fullmatch(path.name)
        ]:
            delete_checkpoint(path)

    def _delete_superseded(self, newest: int) -> None:
        # Folders without a readable summary are kept, because they may belong to another program.
        summaries, _ = self._read_intact_summaries()
        keep = {
            newest,
            *list(summaries)[-self._keep_last :],
            *(
                step
                for ranked in self._rank_phases(summaries)
                for step in ranked[: self._keep_best]
            ),
        }
        for step in (
            step
            for step in summaries.keys() - keep
            if is_same_run(summaries[step], summaries.get(newest))
        ):
            # Renamed first, so that an interrupted deletion leaves no partial checkpoint under this
            # name.
            deleted_folder = self._path(step).with_suffix(".deleted")
            self._path(step).rename(deleted_folder)
            delete_checkpoint(deleted_folder)

    def _read_arrays(self, summary: CheckpointSummary) -> list[np.ndarray | ShardedLeaf | None]:
        """Read the saved arrays in the order of `summary.leaves`, and verify their checksums.

        The array of a leaf without elements is None.
        """
        import orbax.checkpoint as ocp

        path = self._path(summary.step)
        check_file_checksums(path, summary.files)
        names = [
            store_name(i, leaf) if 0 not in leaf.shape else None
            for i, leaf in enumerate(summary.leaves)
        ]
        large = {Path(file).parts[1] for file in summary.files if file.startswith("large/")}
        numpy_arguments = {
            name: ocp.RestoreArgs(restore_type=np.ndarray)
            for name in names
            if name is not None and name not in large
        }
        request = ocp.args.PyTreeRestore(
            dict.fromkeys(numpy_arguments, 0), restore_args=numpy_arguments
        )
        # The files are intact, so an error from here on does not mean that the checkpoint is
        # damaged, and an older one must not be used instead.
        stored = self._checkpointer.restore(path / "state", args=request) if numpy_arguments else {}
        arrays: list[np.ndarray | ShardedLeaf | None] = []
        for name, leaf in zip(names, summary.leaves, strict=True):
            if name is not None and name in large:
                arrays.append(ShardedLeaf(path / "large" / name, leaf.shape, leaf.dtype))
                continue
            array = None if name is None else np.asarray(stored[name])
            arrays.append(array)
            if array is not None and array_checksum(array) != leaf.checksum:
                raise DamagedCheckpointError(
                    f"{path} is damaged: the checksum of {leaf.path} is wrong"
                )
        return arrays


def _run_immediately(function: Callable[..., None], *arguments: object) -> Future:
    future: Future = Future()
    try:
        future.set_result(function(*arguments))
    except Exception as error:
        future.set_exception(error)
    return future


def _raise_error(error: Exception) -> None:
    raise error
