"""Tests of received run folders.

No command runs their code, changes files outside, hangs, or prints escape sequences.
"""

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import rollax
import rollax.training.run_folder.layout
from fuzz import hostile
from fuzz.hostile import (
    ATTACKS,
    ESCAPE,
    FORBIDDEN,
    HTML,
    MARKUP,
    change_settings,
    contents,
    in_time,
)
from rollax.cli.main import main
from rollax.visualization.render import animation
from rollax.visualization.render.render import render
from support.fixtures import compile_once
from support.runs import FRAMES, NETWORK, SMALL, Script, options

__all__ = ["compile_once"]
EVIL = "import pathlib\npathlib.Path(__file__).with_name('ran').touch()\n"
NAMES = "gymnasium/evil_module:Name-v0"
pytestmark = pytest.mark.skipif(os.name != "posix", reason="links and pipes are of POSIX")


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return a folder with a working folder, whose module leaves a file when it is imported."""
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "evil_module.py").write_text(EVIL)
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.syspath_prepend(str(tmp_path / "here"))
    monkeypatch.setenv("COLUMNS", "200")
    yield tmp_path
    sys.modules.pop("evil_module", None)


@pytest.fixture(scope="module")
def stopped(compile_once: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run of four updates that was stopped after two."""
    folder = tmp_path_factory.mktemp("hostile") / "run"
    rollax.train(
        *("ppo", "probe/memory"),
        config=SMALL,
        network=NETWORK,
        options=options(folder, 4, eval_count=2),
        stop_when=lambda evaluated: evaluated.step >= 2 * FRAMES,
        show=Script(),
    )
    return folder


@pytest.fixture
def run(stopped: Path, nowhere: Path) -> Path:
    shutil.copytree(stopped, nowhere / "received" / "run")
    return nowhere / "received" / "run"


@pytest.fixture
def outside(nowhere: Path) -> Path:
    (nowhere / "outside").mkdir()
    (nowhere / "outside" / "precious").write_text("precious")
    return nowhere / "outside"


Command = Callable[..., tuple[int, str]]


@pytest.fixture
def command(capsys: pytest.CaptureFixture, nowhere: Path) -> Command:
    """Return a function that runs a command and returns its exit code and output.

    It fails if the command runs code, prints escape sequences or has a traceback.
    """

    def run(*words: Any) -> tuple[int, str]:
        capsys.readouterr()
        with in_time():
            try:
                code = main([str(word) for word in words])
            except SystemExit as end:
                code = int(end.code or 0)
        out, err = capsys.readouterr()
        assert code in (0, 1, 2) and "Traceback" not in err, (words, code, err)
        assert not [letter for letter in FORBIDDEN if letter in out + err], (words, out + err)
        assert not (nowhere / "here" / "ran").exists(), f"{words} ran code"
        return code, out + err

    return run


def quietly(function: Callable[[], Any]) -> None:
    """Call a function that may raise only UsageError, within the time limit."""
    with in_time():
        try:
            function()
        except rollax.UsageError as error:
            assert len(str(error)) > 25


@pytest.mark.parametrize("name", ATTACKS, ids=lambda name: name.replace(" ", "-"))
def test_attacks_on_run_folders(name: str, run: Path, outside: Path, command: Command) -> None:
    """Nothing outside changes, each command answers, and a valid run next to it is still listed."""
    good = shutil.copytree(run, run.with_name("good"))
    ATTACKS[name](run, outside)
    before = contents(outside)
    code, told = command("ls", run.parent)
    assert code == 0 and "good" in told, told
    assert [row["status"] for row in json.loads(command("ls", "--json", good)[1])] == ["stopped"]
    command("report", run)
    code, told = command("table", run.parent)
    assert code == 0 and "memory" in told, told
    quietly(lambda: rollax.load(run))
    quietly(lambda: rollax.read(run))
    quietly(lambda: rollax.resume(run, show=Script()))
    assert contents(outside) == before


LINKED = (
    "link metrics.jsonl",
    "pipe metrics.jsonl",
    "odd lines",
    "link checkpoint",
    "escape in the environment",
    "laughs",
)


@pytest.mark.parametrize("name", LINKED, ids=lambda name: name.replace(" ", "-"))
def test_attacks_with_further_commands(
    name: str, run: Path, outside: Path, command: Command
) -> None:
    ATTACKS[name](run, outside)
    before = contents(outside)
    command("plot", run)
    command("plot", run, "--only", "nothing")
    command("table", run, "--latex")
    command("eval", run, "--episodes", "2", "--json")
    command("render", run)
    command("export", run, "--to", "numpy")
    command("resume", run)
    quietly(lambda: rollax.merge_archives([run]))
    assert contents(outside) == before


COMMANDS = (
    "ls",
    "report",
    "plot",
    "table",
    "eval",
    "render",
    "export --to numpy",
    "resume",
    "resume --distributed --help",
)


def test_modules_named_by_a_folder_are_not_imported(run: Path, command: Command) -> None:
    """The folder names a module in its environment or among its imports."""
    change_settings(
        run, lambda document: document.update(environment=NAMES, imports=["evil_module"])
    )
    for words in COMMANDS:
        name, *others = words.split()
        command(name, run, *others)
    code, told = command("eval", run)
    assert code == 2 and "--import evil_module" in told
    for function in (rollax.load, rollax.resume, rollax.merge_archives, rollax.read, render):
        quietly(
            lambda function=function: function([run] if function is rollax.merge_archives else run)
        )
    quietly(lambda: rollax.export(run, "numpy"))
    quietly(
        lambda: rollax.train(
            "ppo", "hunting/2-players", opponents={"predator": str(run)}, show=Script()
        )
    )
    assert "evil_module" not in sys.modules


@pytest.mark.parametrize(
    "words", [("--import", "evil_module"), ("--trust",)], ids=["import", "trust"]
)
def test_modules_named_by_the_user_are_imported(
    run: Path, nowhere: Path, words: tuple[str, ...]
) -> None:
    """The user names the module or trusts the folder."""
    change_settings(
        run, lambda document: document.update(environment=NAMES, imports=["evil_module"])
    )
    assert main(["eval", str(run), *words]) == 2  # the module registers nothing
    assert (nowhere / "here" / "ran").exists()


def test_trust_in_python(run: Path, nowhere: Path) -> None:
    change_settings(
        run, lambda document: document.update(environment=NAMES, imports=["evil_module"])
    )
    quietly(lambda: rollax.load(run, trust=True))
    assert (nowhere / "here" / "ran").exists()


def test_a_module_in_an_id_of_the_user_is_imported(nowhere: Path, command: Command) -> None:
    """It is stored with the imports of the run."""
    (nowhere / "here" / "own_module.py").write_text(
        "import gymnasium\n"
        "gymnasium.register('Own-v0', "
        "entry_point='gymnasium.envs.classic_control:CartPoleEnv', max_episode_steps=20)\n"
    )
    try:
        rollax.train(
            *("ppo", "gymnasium/own_module:Own-v0"),
            config=SMALL,
            network=NETWORK,
            options=options(Path("run"), 1, eval_count=0),
            show=Script(),
        )
        assert rollax.training.run_folder.layout.read_spec(Path("run")).imports == ("own_module",)
        assert command("eval", "run", "--episodes", "2", "--import", "own_module")[0] == 0
        del sys.modules["own_module"]
        code, told = command("eval", "run", "--episodes", "2")
        assert code == 2 and "--import own_module" in told
    finally:
        sys.modules.pop("own_module", None)


def test_markup_in_folder_names_is_escaped(run: Path, command: Command) -> None:
    """Markup and escape sequences have no effect in a terminal, a figure or a page."""
    odd = shutil.copytree(run, run.parent / f"{MARKUP}{ESCAPE}{HTML}$\\frac$\nbreak")
    code, told = command("ls", os.path.relpath(run.parent))
    assert code == 0 and MARKUP in told and "\\u001b" in told
    assert command("report", odd, run, "--out", "page.html")[0] == 0
    page = Path("page.html").read_text()
    assert HTML not in page and not set(FORBIDDEN) & set(page)
    assert command("plot", odd, run)[0] == 0
    for words in ([], ["--latex"], ["--markdown"], ["--csv"]):
        code, told = command("table", odd, run, *words)
        assert code == 0 and "\\u001b" in told.replace("textbackslash{}", ""), told
    assert command("resume", odd, "--total-steps", "1")[0] == 2


def test_reports_embed_only_animations_of_the_run(
    run: Path, outside: Path, command: Command
) -> None:
    """Animations in the run's own folder are embedded, but not those that a link leads to."""
    (outside / "private.gif").write_bytes(b"GIF89a private")
    figures = run / "figures"
    figures.mkdir()
    (figures / "own.gif").write_bytes(b"GIF89a own")
    (figures / "linked.gif").symlink_to(outside / "private.gif")
    os.mkfifo(figures / "pipe.gif")
    command("report", run, "--out", "page.html")
    page = Path("page.html").read_text()
    assert ">own.gif<" in page and ">linked.gif<" not in page and ">pipe.gif<" not in page
    shutil.rmtree(figures)
    figures.symlink_to(outside)
    (outside / "drawn.gif").write_bytes(b"GIF89a " + animation.FILE_MARKER)
    command("report", run, "--out", "page.html")
    page = Path("page.html").read_text()
    assert ">drawn.gif<" in page and ">private.gif<" not in page


@pytest.mark.parametrize("name", ["exports", "opponents/predator"])
def test_linked_subfolders_are_not_used(
    name: str, run: Path, outside: Path, command: Command
) -> None:
    """Nothing is written to their targets, and no policy is read from there."""
    (run / name).parent.mkdir(exist_ok=True)
    (run / name).symlink_to(outside)
    change_settings(
        run, lambda document: document.update(opponents={"predator": "opponents/predator"})
    )
    before = contents(outside)
    command("export", run, "--to", "numpy")
    quietly(lambda: rollax.load(run))
    assert contents(outside) == before


def test_figures_that_are_a_link(run: Path, outside: Path, command: Command) -> None:
    """Figures, reports and animations are not written elsewhere unless the user names the file."""
    (run / "figures").symlink_to(outside)
    before = contents(outside)
    for words in (["plot"], ["report"], ["render"]):
        code, told = command(words[0], run)
        assert code == 2 and f"{run}/figures must not be a link" in told, told
    assert contents(outside) == before
    assert command("plot", run, "--out", "curves.png")[0] == 0


def link_of_a_member(run: Path, outside: Path) -> None:
    (run / "tensorboard").mkdir()
    (run / "tensorboard" / "seed=1").symlink_to(outside)


LOGS: dict[str, Callable[[Path, Path], None]] = {
    "tensorboard": lambda run, outside: (run / "tensorboard").symlink_to(outside),
    "tensorboard/seed=1": link_of_a_member,
    "wandb": lambda run, outside: (run / "wandb").symlink_to(outside),
    "a pipe": lambda run, outside: os.mkfifo(run / "tensorboard"),
}


@pytest.mark.parametrize("name", LOGS, ids=lambda name: name.replace(" ", "-"))
def test_logs_that_are_a_link(name: str, run: Path, outside: Path) -> None:
    """Neither TensorBoard nor Weights & Biases writes elsewhere, and nothing is compiled before."""
    LOGS[name](run, outside)
    before = contents(outside)
    show = Script()
    with in_time(), pytest.raises(rollax.UsageError, match="must (not be a link|be a folder)"):
        rollax.resume(run, show=show, tensorboard=True, wandb="project")
    assert contents(outside) == before and "compiling" not in show.lines


def test_checkpoints_in_a_linked_folder(run: Path, outside: Path) -> None:
    """The folder of checkpoints may be a link. The run continues and keeps other files there."""
    other = shutil.copytree(
        max((run / "checkpoints").glob("step_*")), outside / "step_000000000001"
    )
    summary = hostile.read_summary(other)
    hostile.write_summary(
        other, summary._replace(step=1, settings={**summary.settings, "environment": "probe/other"})
    )
    for step in (run / "checkpoints").iterdir():
        step.rename(outside / step.name)
    (run / "checkpoints").rmdir()
    (run / "checkpoints").symlink_to(outside)
    with in_time():
        result = rollax.resume(run, show=Script(), keep_last=1, keep_best=0)
    assert (result.status, result.steps) == ("done", 4 * FRAMES)
    assert sorted(path.name for path in outside.glob("step_*")) == [
        "step_000000000001",
        f"step_{4 * FRAMES:012d}",
    ]
    assert (outside / "precious").read_text() == "precious"


def test_git_settings_of_a_received_folder_are_ignored(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Programs named in the git config of a run are not executed to find a commit."""
    (run / ".git").mkdir()
    for name in ("objects", "refs"):
        (run / ".git" / name).mkdir()
    (run / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
    (run / ".git" / "config").write_text(
        f"[core]\n\tfsmonitor = touch {run / 'ran'}; true\n[alias]\n\tdescribe = !touch ran\n"
    )
    monkeypatch.chdir(run)
    assert rollax.training.run_folder.layout.describe_machine()["commit"] is None
    assert not (run / "ran").exists()
