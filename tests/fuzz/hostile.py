"""Attacks on received folders: links, pipes, code, escape sequences and huge numbers."""

import contextlib
import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml

from rollax.training.checkpoints.summary import read_summary, write_summary

SECONDS = 30  # time limit of each command
ESCAPE = "\x1b[2J\x1b]0;title\x07\u202e\x9b31m"
MARKUP = "[bold red]x[blue]"
HTML = "<img src=x onerror=alert(1)>"
FORGED = "x\nerror: forged"
FORBIDDEN = ("\x1b", "\x07", "\x9b", "\u202e", "\nerror: forged")
FILES = ("config.yaml", "environment.json", "metrics.jsonl", "evaluations.npz", ".lock")
Attack = Callable[[Path, Path], None]  # function of a folder and a path outside of it


@contextlib.contextmanager
def in_time(seconds: int = SECONDS) -> Iterator[None]:
    """Fail if the block takes too long, also while it opens a pipe or if it catches the error."""
    late: list[str] = []

    def fail(*_: Any) -> None:
        late.append(f"no answer within {seconds} s")
        raise AssertionError(late[0])

    before = signal.signal(signal.SIGALRM, fail)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    assert late == []


def contents(folder: Path) -> dict[str, bytes | str | None]:
    """Return what is in a folder: bytes of files, None for folders, the target of links."""

    def content(path: Path) -> bytes | str | None:
        if path.is_symlink():
            return os.readlink(path)
        return path.read_bytes() if path.is_file() else None

    return {str(path.relative_to(folder)): content(path) for path in sorted(folder.rglob("*"))}


def link_file(name: str) -> Attack:
    """Make the file a link to the same content elsewhere, which must not be read or changed."""

    def attack(folder: Path, outside: Path) -> None:
        target = outside / name.lstrip(".")
        content = (folder / name).read_bytes() if (folder / name).exists() else b""
        target.write_bytes(content or b"precious")
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(target)

    return attack


def link_to_nothing(name: str) -> Attack:
    """Make the file a link to a missing file elsewhere, which must not be created."""

    def attack(folder: Path, outside: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(outside / "made")

    return attack


def pipe(name: str) -> Attack:
    """Make the file a pipe, which blocks a process that opens it."""

    def attack(folder: Path, outside: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        os.mkfifo(folder / name)

    return attack


def folder_instead(name: str) -> Attack:
    def attack(folder: Path, outside: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        (folder / name).mkdir()

    return attack


def huge(name: str) -> Attack:
    """Make the file a sparse file of 20 GB."""

    def attack(folder: Path, outside: Path) -> None:
        (folder / name).touch()
        os.truncate(folder / name, 20 * 10**9)

    return attack


def text(name: str, content: str) -> Attack:
    def attack(folder: Path, outside: Path) -> None:
        (folder / name).write_text(content)

    return attack


def lines(*records: Any) -> Attack:
    """Append lines to the metrics."""

    def attack(folder: Path, outside: Path) -> None:
        with (folder / "metrics.jsonl").open("a") as file:
            file.writelines(
                record if isinstance(record, str) else json.dumps(record) + "\n"
                for record in records
            )

    return attack


def hard_link(folder: Path, outside: Path) -> None:
    """Give the metrics another name elsewhere, so that appending would change that file."""
    os.link(folder / "metrics.jsonl", outside / "metrics.jsonl")


def link_checkpoint(folder: Path, outside: Path) -> None:
    """Make the newest checkpoint a link."""
    newest = max((folder / "checkpoints").glob("step_*"))
    newest.rename(outside / newest.name)
    newest.symlink_to(outside / newest.name)


def file_of_a_checkpoint_elsewhere(folder: Path, outside: Path) -> None:
    """Name a device as one of the files of a checkpoint."""
    newest = max((folder / "checkpoints").glob("step_*"))
    write_summary(
        newest, read_summary(newest)._replace(files={"../../../../../../../../dev/zero": 0})
    )


def pipe_in_a_checkpoint(folder: Path, outside: Path) -> None:
    newest = max((folder / "checkpoints").glob("step_*"))
    os.mkfifo(newest / "state" / "manifest.ocdbt.1")


def summary_of_others(folder: Path, outside: Path) -> None:
    """Give values of a checkpoint's summary wrong types."""
    newest = max((folder / "checkpoints").glob("step_*"))
    write_summary(newest, read_summary(newest)._replace(metrics=[], step="x", settings=3))  # pyright: ignore[reportArgumentType]


def change_settings(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change config.yaml and the summaries of checkpoints in the same way."""
    document = yaml.safe_load((folder / "config.yaml").read_text())
    change(document)
    (folder / "config.yaml").write_text(yaml.safe_dump(document))
    for step in (folder / "checkpoints").glob("step_*"):
        summary = read_summary(step)
        change(summary.settings)
        write_summary(step, summary)


def settings(**values: Any) -> Attack:
    return lambda folder, outside: change_settings(folder, lambda document: document.update(values))


DEEP = "[" * 50_000
LAUGHS = "a: &a [1,1,1,1,1,1,1,1,1,1]\n" + "".join(
    f"{name}: &{name} [{','.join([f'*{before}'] * 10)}]\n"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)
MERGES = "a: &a {x: 1, y: 1}\n" + "".join(
    f"{name}: &{name}\n  <<: [{','.join([f'*{before}'] * 10)}]\n"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)
ODD: tuple[Any, ...] = (
    {"step": 10**400, "episode_return": 1},
    {
        "step": 33,
        "episode_return": int("9" * 400),
        "wall_time": "long",
        "loss": [[[]]],
        "updates": {},
    },
    {
        "step": 34,
        "event": "evaluation",
        "return_mean": int("9" * 400),
        "return_members": "none",
        "wall_time": None,
    },
    {
        "step": 35,
        "event": "evaluation",
        "return_mean": float("nan"),
        "length_mean": [],
        "terminated": {"a": 1},
    },
    {"step": 36, "event": "evaluation"},
    {"step": 37, f"info/{ESCAPE}{MARKUP}$\\frac": 1.0},
    {"step": True, "event": []},
    {"step": 37, f"info/{FORGED}": 1.0},
    '{"step": ' + "9" * 5000 + "}\n",
    '{"step": 38, "loss": ' + "[" * 50_000 + "\n",
)

ATTACKS: dict[str, Attack] = {
    **{f"link {name}": link_file(name) for name in (*FILES, "lineage.jsonl")},
    **{f"link to nothing {name}": link_to_nothing(name) for name in (*FILES, "lineage.jsonl")},
    **{f"pipe {name}": pipe(name) for name in (*FILES, "lineage.jsonl")},
    **{f"folder {name}": folder_instead(name) for name in FILES},
    **{f"huge {name}": huge(name) for name in FILES},
    **{
        function.__name__.replace("_", " "): function
        for function in (
            *(hard_link, link_checkpoint, file_of_a_checkpoint_elsewhere),
            *(pipe_in_a_checkpoint, summary_of_others),
        )
    },
    "odd lines": lines(*ODD),
    "deep config": text("config.yaml", DEEP),
    "laughs": text("config.yaml", LAUGHS),
    "merges": text("config.yaml", MERGES),
    "many keys": text("config.yaml", "".join(f"k{index}: 1\n" for index in range(80_000))),
    "long number": text("config.yaml", f"seed: 1{':00' * 100_000}\n"),
    "a number of 400 digits": settings(options={"total_steps": int("9" * 400)}),
    "tag": text("config.yaml", "a: !!python/object/apply:os.system ['touch ran']\n"),
    "nulls": settings(config=None, network=None, options=None),
    "deep environment": text("environment.json", DEEP),
    "odd environment": text(
        "environment.json",
        json.dumps({"packages": [1], "devices": {}, "date": 3, "python": ESCAPE}),
    ),
    "escape in the environment": settings(environment=f"mine/{ESCAPE}"),
    "markup in the environment": settings(environment=f"mine/{MARKUP}"),
    "a line in the environment": settings(environment=f"mine/{FORGED}"),
    "escape in an argument": settings(arguments={"delay": ESCAPE}),
    "opponents elsewhere": settings(opponents={"predator": "../../outside/run"}),
}
