"""Tests of damaged run folders: a run continues with a warning, or an error names a remedy.

No file is lost in either case.
"""

import functools
import json
import random
import re
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import rollax
from rollax.visualization.plots.learning_curves import make_curves, read_run
from support.runs import FRAMES, NETWORK, SMALL, Script, evaluations, metrics, newest, options

REMEDY = re.compile(
    r"(?i)bring|restore|move|put them back|correct|give the f|train a new run|did you "
    r"mean|known are|choose|install|use a|use the|write"
)
UPDATES, STOP = 12, 8
Damage = Callable[[Path, random.Random], None]


@pytest.fixture(scope="module")
def stopped(compile_once: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a run of twelve updates that was stopped after eight.

    It has checkpoints of updates 0, 6 and 8, and evaluations of updates 0, 3 and 6.
    """

    def react(kind: str, text: str) -> None:
        if kind == "progress" and int(text) >= STOP * FRAMES:
            signal.raise_signal(signal.SIGTERM)

    folder = tmp_path_factory.mktemp("stopped") / "run"
    given = options(folder, UPDATES, keep_best=1)
    result = rollax.train(
        "ppo", "probe/memory", config=SMALL, network=NETWORK, options=given, show=Script(react)
    )
    assert (result.status, newest(folder)) == ("stopped", STOP * FRAMES)
    return folder


def missing(path: Path, chance: random.Random) -> None:
    path.unlink()


def emptied(path: Path, chance: random.Random) -> None:
    path.write_bytes(b"")


def cut(path: Path, chance: random.Random) -> None:
    path.write_bytes(path.read_bytes()[: chance.randrange(1, path.stat().st_size - 2)])


def noise(path: Path, chance: random.Random) -> None:
    path.write_bytes(chance.randbytes(300))


def zeros(path: Path, chance: random.Random) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def spoilt(path: Path, chance: random.Random) -> None:
    """Replace thirty bytes in the middle."""
    content = bytearray(path.read_bytes())
    start = chance.randrange(max(1, len(content) - 30))
    content[start : start + 30] = chance.randbytes(min(30, len(content)))
    path.write_bytes(content)


def folder_instead(path: Path, chance: random.Random) -> None:
    path.unlink()
    path.mkdir()


def nested(path: Path, chance: random.Random) -> None:
    path.write_text("[" * 100_000)


KINDS = (missing, emptied, cut, noise, zeros, spoilt, folder_instead, nested)


def checkpoint(folder: Path, step: int = STOP * FRAMES) -> Path:
    return folder / "checkpoints" / f"step_{step:012d}"


def largest(folder: Path) -> Path:
    return max(
        (path for path in (checkpoint(folder) / "state").rglob("*") if path.is_file()),
        key=lambda p: p.stat().st_size,
    )


FILES: dict[str, Callable[[Path], Path]] = {
    "config": lambda folder: folder / "config.yaml",
    "environment": lambda folder: folder / "environment.json",
    "metrics": lambda folder: folder / "metrics.jsonl",
    "evaluations": lambda folder: folder / "evaluations.npz",
    "summary": lambda folder: checkpoint(folder) / "summary.json",
    "state": largest,
}


def of_file(
    place: Callable[[Path], Path], kind: Damage, folder: Path, chance: random.Random
) -> None:
    kind(place(folder), chance)


def arrays(change: Callable[[dict[str, Any]], Any], folder: Path, chance: random.Random) -> None:
    """Change the arrays of evaluations.npz."""
    found = evaluations(folder)
    change(found)
    np.savez(folder / "evaluations.npz", allow_pickle=False, **found)


def settings(change: Callable[[dict[str, Any]], Any], folder: Path, chance: random.Random) -> None:
    """Change values of config.yaml."""
    document = yaml.safe_load((folder / "config.yaml").read_text())
    change(document)
    (folder / "config.yaml").write_text(yaml.safe_dump(document))


def no_checkpoints(folder: Path, chance: random.Random) -> None:
    shutil.rmtree(folder / "checkpoints")


def empty_checkpoints(folder: Path, chance: random.Random) -> None:
    no_checkpoints(folder, chance)
    (folder / "checkpoints").mkdir()


def checkpoints_are_a_file(folder: Path, chance: random.Random) -> None:
    no_checkpoints(folder, chance)
    (folder / "checkpoints").write_text("")


def no_summaries(folder: Path, chance: random.Random) -> None:
    for path in folder.glob("checkpoints/*/summary.json"):
        path.unlink()


def empty_step(folder: Path, chance: random.Random) -> None:
    checkpoint(folder, UPDATES * FRAMES).mkdir()


def emptied_step(folder: Path, chance: random.Random) -> None:
    shutil.rmtree(checkpoint(folder))
    checkpoint(folder).mkdir()


def foreign_step(folder: Path, chance: random.Random) -> None:
    empty_step(folder, chance)
    (checkpoint(folder, UPDATES * FRAMES) / "mine.txt").write_text("keep me")


def odd_lines(folder: Path, chance: random.Random) -> None:
    """Append records that are valid JSON, but have other types than a run writes."""
    odd = [
        {"step": 3, "wall_time": "long"},
        {"step": 10**300},
        {"step": 5, "event": []},
        {"event": "resume", "step": None},
        [1],
        3,
        None,
    ]
    with (folder / "metrics.jsonl").open("a") as file:
        file.writelines(json.dumps(each) + "\n" for each in odd)


OTHERS: dict[str, Damage] = {
    "evaluations lack an array": functools.partial(arrays, lambda found: found.pop("length")),
    "evaluations of other episodes": functools.partial(
        arrays, lambda found: found.update(returns=np.zeros((3, 5)))
    ),
    "evaluations of more episodes": functools.partial(
        arrays,
        lambda found: found.update(
            {n: np.repeat(v, 2, axis=1) for n, v in found.items() if n != "step"}
        ),
    ),
    "evaluations of words": functools.partial(
        arrays, lambda found: found.update(returns=np.full((3, 8), "a"))
    ),
    "evaluations without steps": functools.partial(
        arrays, lambda found: found.update(step=np.float32(3))
    ),
    "another learning rate": functools.partial(
        settings, lambda d: d["config"].update(learning_rate=1.0)
    ),
    "another number of steps": functools.partial(
        settings, lambda d: d["config"].update(num_steps=16)
    ),
    "another network": functools.partial(settings, lambda d: d["network"].update(hidden=[16])),
    "another seed": functools.partial(settings, lambda d: d["options"].update(seed=7)),
    "more seeds": functools.partial(settings, lambda d: d["options"].update(seeds=4)),
    "another algorithm": functools.partial(settings, lambda d: d.update(algorithm="impala")),
    "another environment": functools.partial(
        settings, lambda d: d.update(environment="probe/value")
    ),
    "another delay": functools.partial(settings, lambda d: d.update(arguments={"delay": 2})),
    **{
        function.__name__: function
        for function in (
            *(no_checkpoints, empty_checkpoints, checkpoints_are_a_file, no_summaries),
            *(empty_step, emptied_step, foreign_step, odd_lines),
        )
    },
}
DAMAGES: dict[str, Damage] = {
    f"{name} {kind.__name__}": functools.partial(of_file, place, kind)
    for name, place in FILES.items()
    for kind in (KINDS[:2] if name == "environment" else KINDS)
} | OTHERS
# Damage that needs no warning: it affects no reader of a run, or cannot be detected.
UNSAID = re.compile(r"environment|odd_lines|metrics (cut|spoilt)|evaluations of more")


@pytest.fixture(params=DAMAGES, ids=lambda name: name.replace(" ", "-"))
def damaged(
    request: pytest.FixtureRequest, stopped: Path, tmp_path: Path
) -> tuple[str, Path, dict[Path, bytes]]:
    """Return the name of the damage, a folder with it, and the content of the folder."""
    folder = tmp_path / "run"
    shutil.copytree(stopped, folder)
    DAMAGES[request.param](folder, random.Random(request.param))
    return request.param, folder, contents(folder)


def contents(folder: Path) -> dict[Path, bytes]:
    """Return the content of every file. Empty folders are included as files without content."""
    paths = [
        path
        for path in folder.rglob("*")
        if path.name != ".lock" and (path.is_file() or not any(path.iterdir()))
    ]
    return {
        path.relative_to(folder): path.read_bytes() if path.is_file() else b"" for path in paths
    }


def refused(function: Callable[[], Any]) -> bool:
    """Return whether the function raises an error with a remedy. Other errors fail the test."""
    try:
        function()
    except rollax.UsageError as error:
        assert REMEDY.search(str(error)), error
        return True
    return False


def test_load_and_plot_damaged_folders(damaged: tuple[str, Path, dict[Path, bytes]]) -> None:
    """Neither changes the folder."""
    name, folder, before = damaged
    warnings: list[str] = []
    was_refused = refused(lambda: warnings.extend(rollax.load(folder).warnings))
    if name.startswith(("summary", "state", "emptied_step", "foreign_step")):
        assert not was_refused and any("damaged" in warning for warning in warnings)
    refused(lambda: make_curves(read_run(folder)))
    assert contents(folder) == before


def test_resume_damaged_folders(damaged: tuple[str, Path, dict[Path, bytes]]) -> None:
    """The run ends with all data that could be read, or nothing is written."""
    name, folder, before = damaged
    show = Script()
    if refused(lambda: rollax.resume(folder, show=show)):
        assert contents(folder) == before
        return
    assert any(line.startswith("warning: ") for line in show.lines) or UNSAID.match(name), show.text
    after = contents(folder)
    assert after[Path("metrics.jsonl")].startswith(before.get(Path("metrics.jsonl"), b""))
    for path, content in before.items():
        # Old checkpoints are deleted when newer ones are written.
        is_old = path.parts[0] == "checkpoints" and not (
            name.startswith(("summary", "state")) and checkpoint(folder).name in path.parts
        )
        if path.name == "mine.txt" or (
            path.name not in ("config.yaml", "metrics.jsonl") and not is_old
        ):
            is_kept = content in after.values() or (
                path.name == "evaluations.npz" and readable(folder)
            )
            assert is_kept, f"{path} is gone"
    assert newest(folder) == UPDATES * FRAMES and rollax.load(folder).step == UPDATES * FRAMES
    assert evaluations(folder)["step"][-1] == UPDATES * FRAMES
    assert [line["step"] for line in metrics(folder) if line.get("event") == "evaluation"][
        -1
    ] == UPDATES * FRAMES


@pytest.mark.quick
def test_nothing_is_compiled_without_a_readable_checkpoint(
    stopped: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every checkpoint has a damaged file, and a summary that can be read."""
    shutil.copytree(stopped, tmp_path / "run")
    steps = sorted((tmp_path / "run" / "checkpoints").glob("step_*"))
    for step in steps:
        zeros(
            max(
                (path for path in (step / "state").rglob("*") if path.is_file()),
                key=lambda p: p.stat().st_size,
            ),
            random.Random(),
        )
    monkeypatch.setattr(
        "rollax.training.compile.program.compile_program",
        lambda *_, **__: pytest.fail("it compiles"),
    )
    with pytest.raises(rollax.UsageError, match="No checkpoint in .* can be read") as caught:
        rollax.resume(tmp_path / "run", quiet=True)
    assert all(step.name in str(caught.value) for step in steps)


def readable(folder: Path) -> bool:
    """Return whether the run has all evaluations."""
    return evaluations(folder)["step"].tolist() == [n * 3 * FRAMES for n in range(5)]
