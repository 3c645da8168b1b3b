"""Checkpoints of the whole state: written in the background, atomic, verified when read, the last and the best kept.

A checkpoint is one folder `step_<environment frames>`:

    state/          the leaves that hold anything, by orbax; typed keys as their raw data
    large/          leaves that are large, such as a replay's, in the parts that processes hold: nothing holds a copy of them
    summary.json    the metrics; the run's settings; the scores of a population's members; every leaf's path, shape, type and
                    CRC-32; every file's CRC-32; and the CRC-32 of all that

It is written under another name, synced to disk and renamed at the end, so a folder with that name is complete, also after a
loss of power; older ones are deleted after that. The files are checked before orbax reads them, the arrays after. Reading takes
arrays and JSON, nothing that could be executed.
"""

import contextlib
import logging
import re
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.multihost_utils import sync_global_devices

from rollax.errors import UsageError
from rollax.host import checkpoint_parts
from rollax.host.checkpoint_leaves import check_same_leaves, named_leaves, place, store_name
from rollax.host.checkpoint_parts import Parts
from rollax.host.checkpoint_summary import (
    DamagedCheckpoint,
    LeafRecord,
    MemberScores,
    Summary,
    check_files,
    checksum_of,
    checksum_of_file,
    files_of,
    finite,
    read_summary,
    write_summary,
)
from rollax.host.files import set_aside, sync, sync_tree
from rollax.scale import processes

T = TypeVar("T")

STEP_FOLDER = re.compile(r"step_(\d{12,})")
# What a killed save and a killed deletion leave behind.
UNFINISHED_FOLDER = re.compile(r"step_\d{12,}\.(writing|deleted)")


class SaveFailed(RuntimeError):
    """A checkpoint could not be written; those before it are as they were."""


class Checkpoints:
    """The checkpoints in one folder.

    After every save the `keep_last` newest and the `keep_best` best by `best_metric` stay, the others are deleted; a NaN is
    never best. Only folders that a `Checkpoints` wrote are ever deleted. One run writes to a folder at a time; others may
    read. Call `close()` before the program ends, or the save under way may be lost.
    """

    def __init__(
        self,
        folder: str | Path,
        keep_last: int = 2,
        keep_best: int = 1,
        best_metric: str = "return_mean",
        best_mode: Literal["max", "min"] = "max",
    ) -> None:
        if keep_last < 1 or keep_best < 0:
            raise UsageError(f"keep_last ({keep_last}) must be at least 1 and keep_best ({keep_best}) at least 0")
        if best_mode not in ("max", "min"):
            raise UsageError(f"best_mode ({best_mode!r}) must be 'max' or 'min'")
        self._folder = Path(folder).absolute()
        self._keep_last, self._keep_best = keep_last, keep_best
        self._best_metric, self._sign = best_metric, 1 if best_mode == "max" else -1
        self._checkpointer = _open_orbax()
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._pending: tuple[int, Future] | None = None

    def save(
        self,
        step: int,
        state: Any,
        metrics: dict[str, float],
        settings: dict[str, Any] | None = None,
        scores: MemberScores | None = None,
    ) -> bool:
        """Copies the state to host memory, or what is large of it to disk, and returns; the rest happens in the background.

        `settings`: plain values that JSON keeps, for who reads the summary.
        The state may be donated right after. False, and nothing is written, when there is a checkpoint of this step already.
        With several processes all must call it, and it returns when all is written, as what follows is theirs together.

        Raises: `SaveFailed` when the save before this one failed (this one is then not begun), or, of several processes, this
        one; `UsageError`.
        """
        self.wait()
        step = int(step)
        if step in self.steps():
            return False
        work = self._writer.submit if jax.process_count() == 1 else _run_now
        try:
            leaves, arrays = _snapshot(state, self._begin(step))
            summary = Summary(step, finite(metrics), leaves, {}, settings or {}, scores)
            self._pending = step, work(self._write, summary, arrays)
        except OSError as error:  # such as a full disk
            self._pending = step, _run_now(_fail, error)
        if jax.process_count() > 1:
            self.wait()
        return True

    def rate(self, step: int, metrics: dict[str, float], scores: MemberScores | None = None) -> None:
        """Gives the checkpoint of a step that is there already other metrics and scores. Raises `DamagedCheckpoint`."""
        self.wait()
        if jax.process_index() == 0:
            summary = read_summary(self._path(step))
            write_summary(self._path(step), summary._replace(metrics=finite(metrics), scores=scores))
            self._delete_old(step)
        self._synchronize()

    def wait(self) -> None:
        """Returns when everything is on disk. Raises `SaveFailed`, once, when it could not be written."""
        if self._pending is None:
            return
        step, work = self._pending
        error = work.exception()
        self._pending = None
        if error is not None:
            raise SaveFailed(f"the checkpoint of step {step} could not be written to {self._folder}: {error}") from error

    def close(self) -> None:
        """Waits, and frees the background thread. Raises `SaveFailed` as `wait` does."""
        try:
            self.wait()
        finally:
            self._writer.shutdown()
            self._checkpointer.close()

    def steps(self) -> list[int]:
        """The steps that have a complete checkpoint, damaged ones among them but no empty folders, rising."""
        return [step for step, is_empty in self._folders() if not is_empty]

    def _folders(self) -> list[tuple[int, bool]]:
        """Steps that have a folder, rising, and whether it is empty, which a loss of power can leave."""
        folders = self._folder.iterdir() if self._folder.is_dir() else ()
        named = [(STEP_FOLDER.fullmatch(folder.name), folder) for folder in folders if folder.is_dir()]
        return sorted((int(name[1]), not any(folder.iterdir())) for name, folder in named if name)

    def summary(self, step: int) -> Summary:
        """What is known of the checkpoint of a step without its arrays. Raises `DamagedCheckpoint`."""
        self.wait()
        return read_summary(self._path(step))

    def readable(self) -> Iterator[Summary]:
        """The summaries that can be read, the newest first."""
        for step in self.steps()[::-1]:
            with contextlib.suppress(DamagedCheckpoint):
                yield self.summary(step)

    def newest_intact(self) -> Summary:
        """The newest whose files, which are read, are those that were saved. Raises `DamagedCheckpoint` when none is."""
        found = []
        for step in self.steps()[::-1]:
            try:
                summary = read_summary(self._path(step))
                check_files(self._path(step), summary.files)
                return summary
            except DamagedCheckpoint as error:
                found.append(str(error))
        raise self._none_is_readable(found)

    def _none_is_readable(self, found: list[str]) -> DamagedCheckpoint:
        return DamagedCheckpoint(
            f"no checkpoint in {self._folder} can be read: {'; '.join(found)}: bring a copy of one back, or train anew"
        )

    def best(self) -> int | None:
        """The step with the best `best_metric`, the newest of equals; None when no checkpoint has a finite one."""
        ranked = self._ranked(self._intact_summaries()[0])
        return ranked[0] if ranked else None

    def best_value(self) -> tuple[int, float] | None:
        """`best` with its `best_metric`."""
        step = self.best()
        return None if step is None else (step, float(self.summary(step).metrics[self._best_metric] or 0.0))

    def restore(self, which: Literal["last", "best"] | int, like: T) -> tuple[int, T, list[str]]:
        """Reads a checkpoint: `(step, state, warnings)`.

        `like` is the state or its `jax.eval_shape`; leaves that name a sharding are placed by it. Where "last" or "best" is
        damaged the next in order is taken, and `warnings` says so.

        Raises: `UsageError` when there is none, or when the saved leaves are not those of `like`; `DamagedCheckpoint` when
        the one asked for by number, or every one, is damaged.
        """
        self.wait()
        candidates, warnings = self._candidates(which)
        for step in candidates:
            try:
                summary = read_summary(self._path(step))
                check_same_leaves(summary, like)
                return step, place(self._read_arrays(summary), summary.leaves, like), warnings
            except DamagedCheckpoint as error:
                warnings.append(f"{error}; it was passed over")
        raise self._none_is_readable(warnings)

    def set_aside_after(self, step: int) -> list[int]:
        """Renames the checkpoints of later steps to `superseded_step_...`, and returns their steps.

        A run that goes on from `step` calls this first: those of the abandoned branch and damaged ones are then neither
        "last" nor counted nor in the way of its own. Nothing is deleted.
        """
        self.wait()
        later = [other for other, _ in self._folders() if other > step]
        self._synchronize()
        for path in map(self._path, later if jax.process_index() == 0 else []):
            set_aside(path, "superseded")
        self._synchronize()
        return later

    def _candidates(self, which: Literal["last", "best"] | int) -> tuple[list[int], list[str]]:
        steps = self.steps()
        if not steps:
            raise UsageError(f"there is no checkpoint in {self._folder}: bring one back, or train the run again")
        if which == "last":
            empty = [step for step, is_empty in self._folders() if is_empty and step > steps[-1]]
            return steps[::-1], [f"{self._path(step)} is damaged: it is empty; it was passed over" for step in empty]
        if which == "best":
            summaries, warnings = self._intact_summaries()
            ranked = self._ranked(summaries)
            if not ranked and summaries:
                raise UsageError(f"no checkpoint in {self._folder} has a finite {self._best_metric!r}: ask for 'last'")
            return ranked, warnings
        if which not in steps:
            raise UsageError(f"there is no checkpoint of step {which!r} in {self._folder}: there are 'last', 'best', {steps}")
        return [which], []

    def _path(self, step: int) -> Path:
        return self._folder / f"step_{step:012d}"

    def _intact_summaries(self) -> tuple[dict[int, Summary], list[str]]:
        """Summaries by rising step, and what is wrong with those that cannot be read."""
        summaries, problems = {}, []
        for step in self.steps():
            try:
                summaries[step] = read_summary(self._path(step))
            except DamagedCheckpoint as error:
                problems.append(f"{error}; it was passed over")
        return summaries, problems

    def _ranked(self, summaries: dict[int, Summary]) -> list[int]:
        """Steps with a finite metric, best first, then newest first."""
        values = [(summary.metrics.get(self._best_metric), step) for step, summary in summaries.items()]
        ranked = sorted((-self._sign * value, -step) for value, step in values if value is not None)
        return [-step for _, step in ranked]

    def _begin(self, step: int) -> Path:
        """A new folder for an unfinished checkpoint."""
        unfinished = self._path(step).with_suffix(".writing")
        if jax.process_index() == 0:
            self._delete_unfinished()
            unfinished.mkdir(parents=True)
            sync(self._folder.parent)
        self._synchronize()
        return unfinished

    def _write(self, summary: Summary, arrays: list[np.ndarray | None]) -> None:
        """The rest of a checkpoint, by the first process. `arrays`: None for those that all have written in parts."""
        self._synchronize()
        if jax.process_index() == 0:
            self._write_files(summary, arrays)
        self._synchronize()

    def _write_files(self, summary: Summary, arrays: list[np.ndarray | None]) -> None:
        import orbax.checkpoint as ocp

        final, leaves = self._path(summary.step), summary.leaves
        unfinished = final.with_suffix(".writing")
        stored = {
            store_name(i, leaf): arrays[i] for i, leaf in enumerate(leaves) if arrays[i] is not None and 0 not in leaf.shape
        }
        leaves = [
            leaf if array is None else leaf._replace(checksum=checksum_of(array))
            for leaf, array in zip(leaves, arrays, strict=True)
        ]
        for index, leaf in enumerate(leaves):
            folder = unfinished / "large" / store_name(index, leaf)
            if arrays[index] is None and not checkpoint_parts.are_whole(folder, leaf.shape):
                raise OSError(f"parts of {leaf.path} are missing in {folder}: can all processes write there, and see it alike?")
        if stored:
            self._checkpointer.save(unfinished / "state", args=ocp.args.PyTreeSave(stored))
        files = {path.relative_to(unfinished).as_posix(): checksum_of_file(path) for path in files_of(unfinished)}
        write_summary(unfinished, summary._replace(leaves=leaves, files=files))
        sync_tree(unfinished)
        unfinished.rename(final)
        sync(self._folder)  # before those that this one replaces are deleted
        self._delete_old(summary.step)

    def _synchronize(self) -> None:
        if jax.process_count() > 1:
            sync_global_devices("checkpoint")

    def _delete_unfinished(self) -> None:
        folders = self._folder.iterdir() if self._folder.is_dir() else ()
        for path in [path for path in folders if UNFINISHED_FOLDER.fullmatch(path.name)]:
            shutil.rmtree(path)

    def _delete_old(self, newest: int) -> None:
        summaries, _ = self._intact_summaries()  # a folder without a summary may be another's, so it stays
        keep = {newest, *list(summaries)[-self._keep_last :], *self._ranked(summaries)[: self._keep_best]}
        for step in summaries.keys() - keep:
            # Renamed first: a deletion cut short must not leave half a checkpoint under a good name.
            doomed = self._path(step).with_suffix(".deleted")
            self._path(step).rename(doomed)
            shutil.rmtree(doomed)

    def _read_arrays(self, summary: Summary) -> list[np.ndarray | Parts | None]:
        """The saved arrays in order, None for a leaf without elements, each equal to its checksum or its files to theirs."""
        import orbax.checkpoint as ocp

        path = self._path(summary.step)
        check_files(path, summary.files)
        names = [store_name(i, leaf) if 0 not in leaf.shape else None for i, leaf in enumerate(summary.leaves)]
        large = {Path(file).parts[1] for file in summary.files if file.startswith("large/")}
        as_numpy = {name: ocp.RestoreArgs(restore_type=np.ndarray) for name in names if name is not None and name not in large}
        request = ocp.args.PyTreeRestore(dict.fromkeys(as_numpy, 0), restore_args=as_numpy)
        # The files are what was written, so an error from here on is no damage and no reason to take an older checkpoint.
        stored = self._checkpointer.restore(path / "state", args=request) if as_numpy else {}
        arrays: list[np.ndarray | Parts | None] = []
        for name, leaf in zip(names, summary.leaves, strict=True):
            if name is not None and name in large:
                arrays.append(Parts(path / "large" / name, leaf.shape, leaf.dtype))
                continue
            array = None if name is None else np.asarray(stored[name])
            arrays.append(array)
            if array is not None and checksum_of(array) != leaf.checksum:
                raise DamagedCheckpoint(f"{path} is damaged: the checksum of {leaf.path} is wrong")
        return arrays


def _open_orbax() -> Any:
    """The synchronous checkpointer; it runs in our own thread, so that `save` blocks for one copy and nothing else."""
    import orbax.checkpoint as ocp

    # In the log of absl, which others use too; what matters to us is raised as well.
    logging.getLogger("absl").addFilter(_not_chatter)
    if jax.process_count() == 1:
        return ocp.Checkpointer(ocp.PyTreeCheckpointHandler())
    # Every process for itself: one that cannot write would leave the others waiting for it.
    own = jax.process_index()
    alone = ocp.options.MultiprocessingOptions(
        primary_host=own, active_processes={own}, barrier_sync_key_prefix=f"process_{own}"
    )
    return ocp.Checkpointer(ocp.PyTreeCheckpointHandler(multiprocessing_options=alone), multiprocessing_options=alone)


def _not_chatter(record: logging.LogRecord) -> bool:
    return record.levelno > logging.ERROR or "orbax" not in Path(record.pathname).parts


def _run_now(function: Callable[..., None], *arguments: Any) -> Future:
    done: Future = Future()
    try:
        done.set_result(function(*arguments))
    except Exception as error:
        done.set_exception(error)
    return done


def _fail(error: Exception) -> None:
    raise error


def _snapshot(state: Any, folder: Path) -> tuple[list[LeafRecord], list[np.ndarray | None]]:
    """Every leaf in memory of its own on the host, typed keys as their raw data; None for large ones, which are written."""
    leaves, records = [], []
    for index, (path, leaf) in enumerate(named_leaves(state)):
        if not isinstance(leaf, jax.Array):
            raise UsageError(f"{path} is a shape without data: there is nothing to save")
        is_key = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        generator = str(jax.random.key_impl(leaf)) if is_key else None
        records.append(LeafRecord(path, leaf.shape, str(leaf.dtype), generator))
        data = jax.random.key_data(leaf) if is_key else leaf
        if data.nbytes > checkpoint_parts.LARGE and not is_key:
            checkpoint_parts.write(folder / "large" / store_name(index, records[-1]), data)
            data = None
        leaves.append(data)
    if all(0 in record.shape for record in records):
        raise UsageError("the state holds no data: there is nothing to save")
    # What other processes hold is gathered: a collective, which is why it happens here and not in the background. `device_get`
    # starts all transfers together; on a CPU it gives views of buffers that the caller may donate, hence a copy.
    leaves = jax.device_get(processes.whole(leaves))
    return records, [None if array is None else np.array(array) for array in leaves]
