"""Tests of exported policies: files, error messages, and use without rollax."""

import importlib.util
import json
import os
import re
import runpy
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rollax as library
from rollax.errors import UsageError
from rollax.exporting import exporter, numpy_file
from rollax.exporting.formats import FORMATS
from rollax.runtime.installation import install_command
from rollax.training.run_folder import layout
from support.runs import FRAMES, NETWORK, SMALL, SMALL_WORDS, Script, options

Rollax = Callable[..., Any]
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def recurrent(compile_once: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a run of two seeds with a GRU and normalized observations."""
    folder = tmp_path_factory.mktemp("recurrent") / "run"
    config = library.PPOConfig(
        num_envs=4, num_steps=8, sequence_length=8, num_minibatches=2, normalize_observations=True
    )
    network = library.NetworkConfig(hidden=(8,), core="gru", core_size=8)
    chosen = options(folder, updates=4, seeds=2, eval_count=2)
    library.train(
        "ppo", "probe/memory", config=config, network=network, options=chosen, show=Script()
    )
    return folder


def alone(program: str, folder: Path, *without: str) -> str:
    """Return the output of a program in a new process that cannot import some packages."""
    blocked = "".join(f"sys.modules[{name!r}] = None\n" for name in ("rollax", *without))
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {
        "JAX_PLATFORMS": "cpu"
    }
    words = [sys.executable, "-c", f"import sys\n{blocked}{program}"]
    done = subprocess.run(
        words, capture_output=True, text=True, cwd=folder, env=environment, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


PLAY = """
observations, resets, actions = (np.load("../played.npz")[name] for name in \
("observations", "resets", "actions"))
found, carry = [], {name: x for name, x in inputs.items() if name.startswith("carry/")}
for observation, reset in zip(observations, resets, strict=True):
    outputs = act({**carry, "observation": observation, "reset": reset})
    carry = {name[5:]: x for name, x in outputs.items() if name.startswith("next_")}
    found.append(np.asarray(outputs["action"]))
assert np.array_equal(np.stack(found), actions), (found, actions)
print("the same")
"""


def test_exports_run_without_rollax(recurrent: Path, tmp_path: Path) -> None:
    """The program of the model card runs unchanged and acts as the policy did by hand."""
    policy = library.load(recurrent)
    act = jax.jit(lambda obs, carry: policy.act(obs, carry, jax.random.key(0)))
    random, carry, played = np.random.default_rng(0), policy.initial_carry(), []
    for step in range(12):
        carry = policy.reset_memory(carry, jnp.asarray(step % 4 == 0))
        observation = random.normal(size=1).astype(np.float32)
        action, carry = act(observation, carry)
        played.append((observation[None], np.asarray([step % 4 == 0]), np.asarray(action)[None]))
    columns = dict(
        zip(
            ("observations", "resets", "actions"),
            map(np.stack, zip(*played, strict=True)),
            strict=True,
        )
    )
    assert len(np.unique(columns["actions"])) == 2
    np.savez(tmp_path / "played.npz", **columns)
    for to, without in (
        ("jax", ("equinox",)),
        ("onnx", ("jax",)),
        ("numpy", ("jax", "onnx")),
        ("stablehlo", ("equinox",)),
    ):
        exported = library.export(recurrent, to, tmp_path / to)
        assert exported.parity.is_same and exported.folder == tmp_path / to
        (program,) = re.findall(
            r"```python\n(.*?)```", (tmp_path / to / "card.md").read_text(), re.DOTALL
        )
        assert alone(program + PLAY, tmp_path / to, *without).splitlines()[-1] == "the same"


def test_the_card_lists_arguments_of_evaluations_separately(rollax: Rollax) -> None:
    """The environment of evaluations may differ from that of training."""
    arguments = ["--env.gravity", 9.0, "--eval-env.gravity", 5.0]
    small = ["--total-steps", 2 * FRAMES, "--eval-count", 1, *SMALL_WORDS, "--run-dir", "run"]
    assert rollax("train", "ppo", "gymnax/CartPole-v1", *arguments, *small).code == 0
    outcome = rollax("export", "run", "--to", "numpy")
    card = Path(
        next(path for path in outcome.object["files"] if path.endswith("card.md"))
    ).read_text()
    assert (
        "| task | gymnax/CartPole-v1 (gravity 9.0) |" in card
        and "| evaluations differ in | gravity 5.0 |" in card
    )


@pytest.mark.quick
def test_export_writes_the_files_and_the_card(rollax: Rollax, recurrent: Path) -> None:
    """Paths and the largest difference are printed. The card has scores, seeds and settings."""
    outcome = rollax(
        "export", recurrent, "--to", "numpy", "--member", 1, "--checkpoint", "best", "--stochastic"
    )
    assert outcome.code == 0, outcome.err
    folder = recurrent / "exports" / "numpy-stochastic-best-member-1"
    names = ["policy.npz", "numpy_policy.py", "policy.json", "card.md"]
    assert (
        outcome.lines[:4] == [str(folder / name) for name in names]
        and outcome.object["files"] == outcome.lines[:4]
    )
    assert "the largest difference is" in outcome.lines[4] and outcome.object["difference"] < 1e-4
    assert sorted(path.name for path in folder.iterdir()) == sorted(names)
    described = json.loads((folder / "policy.json").read_text())
    inputs = {one["name"]: one for one in described["inputs"]}
    assert list(inputs) == ["carry/0", "observation", "reset", "uniform/0"]
    assert inputs["observation"]["space"] == {
        "kind": "Box",
        "low": -1.0,
        "high": 1.0,
        "shape": [1],
        "dtype": "float32",
    }
    assert inputs["carry/0"]["shape"] == ["batch", 8] and inputs["reset"]["dtype"] == "bool"
    assert (described["seed"], described["member"], described["actions"]) == (1, 1, "sampled")
    card = (folder / "card.md").read_text()
    with np.load(recurrent / "evaluations.npz") as file:
        last = file["returns"][-1][1].mean()
    row = next(line for line in card.splitlines() if line.startswith("| last |"))
    assert row.split("|")[4].strip() == f"{last:.4g}" and re.search(r"\[.*, .*\]", row)
    for part in (
        "| best |",
        "| config.normalize_observations | True |",
        "| network.core | gru |",
        "| member | 1 of 2 |",
        "| jax |",
    ):
        assert part in card, part
    assert "| config.gamma |" not in card, "a default"


@pytest.mark.quick
def test_existing_files_are_replaced_only_with_overwrite(rollax: Rollax, finished: Path) -> None:
    """This includes a card elsewhere. Other files in the folder remain."""
    words = ["export", finished, "--to", "numpy", "--output", "out", "--card", "cards/mine.md"]
    assert rollax(*words).code == 0
    assert sorted(path.name for path in Path("out").iterdir()) == [
        "numpy_policy.py",
        "policy.json",
        "policy.npz",
    ]
    Path("out/note.txt").write_text("mine")
    Path("out/policy.json").write_text("")
    outcome = rollax(*words)
    assert (
        outcome.code == 2 and "out already exists" in outcome.err and "--overwrite" in outcome.err
    )
    outcome = rollax(
        "export", finished, "--to", "numpy", "--output", "other", "--card", "cards/mine.md"
    )
    assert (
        outcome.code == 2
        and "cards/mine.md already exists" in outcome.err
        and not Path("other").exists()
    )
    assert Path("out/policy.json").read_text() == ""
    assert rollax(*words, "--overwrite").code == 0
    assert json.loads(Path("out/policy.json").read_text())["format"] == "numpy"
    assert Path("out/note.txt").read_text() == "mine"


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["--to", "onxn"], ["unknown format 'onxn'", "did you mean onnx?"]),
        (
            ["--to", "numpy", "--batch", "0"],
            ['batch must be "any" or an integer from 1', "got '0'"],
        ),
        (["--to", "numpy", "--batch", "many"], ['batch must be "any"', "got 'many'"]),
        (
            ["--to", "stablehlo", "--batch", "any"],
            ["batch must be a fixed number of environments for stablehlo", "--batch 1"],
        ),
        (["--to", "numpy", "--checkpoint", "7"], ["7"]),
        (
            ["--to", "numpy", "--checkpoint", "9" * 30],
            ["checkpoint must be last, best or a step"],
        ),
        (["--to", "numpy", "--member", "3"], ["member (3) must be between 0 and 0"]),
        (["--to", "numpy", "--cell", "1,2"], ["ppo has no archive"]),
        (["--to", "numpy", "--output", "taken"], ["output must be a folder, but taken is a file"]),
        (["--to", "numpy", "--output", "a\0b"], ["must not contain zero bytes"]),
        ([], ["--to"]),
    ],
)
def test_mistakes_have_one_message_and_write_nothing(
    rollax: Rollax, finished: Path, words: list[str], parts: list[str]
) -> None:
    """The exit code is 2."""
    Path("taken").write_text("")
    before = sorted(finished.rglob("*"))
    outcome = rollax("export", finished, *words)
    assert outcome.code == 2 and "Traceback" not in outcome.err
    assert [part for part in parts if part not in " ".join(outcome.err.split())] == []
    assert sorted(finished.rglob("*")) == before and [path.name for path in Path().iterdir()] == [
        "taken"
    ]


def test_runs_without_a_policy_are_refused(
    rollax: Rollax, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A missing run, a run without a checkpoint, solutions that are vectors, missing packages."""
    assert "is not a run" in rollax("export", "nowhere", "--to", "numpy").err
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare" / "config.yaml").write_bytes((finished / "config.yaml").read_bytes())
    assert "No checkpoint exists" in rollax("export", "bare", "--to", "numpy").err
    library.train(
        "map_elites",
        "task/sphere",
        total_steps=64,
        config={"batch_size": 64},
        options=_of_archive("arm"),
        quiet=True,
    )
    outcome = rollax("export", "arm", "--to", "numpy")
    assert (
        outcome.code == 2 and "closed-form task" in outcome.err and "rollax plot arm" in outcome.err
    )
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name: None if name in ("onnx", "flatbuffers") else found(name),
    )
    assert install_command("onnx") in rollax("export", finished, "--to", "onnx").err
    assert install_command("export") in rollax("export", finished, "--to", "jax").err
    assert not (tmp_path / "arm" / "exports").exists()


def _of_archive(folder: str) -> library.RunOptions:
    return library.RunOptions(
        run_dir=Path(folder), eval_episodes=2, eval_count=1, tensorboard=False
    )


def test_an_elite_is_exported(tmp_path: Path) -> None:
    """The folder is named after its cell, and two elites act differently."""
    config = {"batch_size": 16, "grid": (4, 4)}
    chosen = _of_archive(str(tmp_path / "run"))
    library.train(
        "map_elites",
        "control/point-maze",
        total_steps=64,
        config=config,
        network={"hidden": (8,)},
        options=chosen,
        quiet=True,
    )
    policy = library.load(tmp_path / "run")
    places = policy.elites()["place"]
    cells = [tuple(int(i) for i in np.unravel_index(place, (4, 4))) for place in places]
    assert len(cells) >= 2
    obs, actions = np.ones((1, *policy.environment.observation_space.shape), np.float32), []
    for cell in (cells[0], cells[-1]):
        exported = library.export(tmp_path / "run", "numpy", cell=cell)
        assert exported.folder.name == f"numpy-cell-{cell[0]}-{cell[1]}"
        assert any("the elite at descriptor" in warning for warning in exported.warnings)
        assert "| elite |" in (exported.folder / "card.md").read_text()
        files = {path.name: path.read_bytes() for path in exported.files}
        actions.append(FORMATS["numpy"].open(files)({"observation": obs})["action"])
        elite = policy.elite(cell=cell)
        np.testing.assert_allclose(
            actions[-1][0], elite.act(obs[0], (), jax.random.key(0))[0], atol=1e-6
        )
    assert not np.allclose(*actions)


def test_a_run_in_progress_is_exported_with_a_warning(finished: Path, tmp_path: Path) -> None:
    """The warning is given while a process holds the run."""
    before = library.export(finished, "numpy", tmp_path / "a", checkpoint=2 * FRAMES)
    with layout.lock_folder(finished):
        during = library.export(finished, "numpy", tmp_path / "b", checkpoint=2 * FRAMES)
        at_end = library.export(finished, "numpy", tmp_path / "c")
    assert before.warnings == at_end.warnings == []
    assert during.warnings == [
        f"The run is still training. This is its checkpoint at step {2 * FRAMES} of {4 * FRAMES}."
    ]


def test_an_export_that_acts_differently_is_not_written(
    rollax: Rollax, finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other weights are an error with exit code 1."""

    def wrong(program: Any) -> dict[str, bytes]:
        constants = {
            n: -value if value.dtype == np.float32 else value
            for n, value in program.constants.items()
        }
        return numpy_file.write_numpy(program._replace(constants=constants))

    monkeypatch.setitem(FORMATS, "numpy", FORMATS["numpy"]._replace(write=wrong))
    outcome = rollax("export", finished, "--to", "numpy", "--output", "out")
    assert (
        outcome.code == 1
        and "does not match the original" in outcome.err
        and "No files were written" in outcome.err
    )
    assert list(Path().iterdir()) == []


def test_a_failed_write_leaves_no_files(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk leaves no partial export."""
    write, written = exporter.write_atomically, []

    def full(path: Path, content: bytes) -> None:
        if written:
            raise OSError(28, "No space left on device")
        written.append(path)
        write(path, content)

    monkeypatch.setattr(exporter, "write_atomically", full)
    with pytest.raises(UsageError, match="Cannot write .*No space left"):
        library.export(finished, "numpy", tmp_path / "out")
    assert len(written) == 1 and list(tmp_path.iterdir()) == []


def test_a_run_with_a_custom_environment_and_network(tmp_path: Path) -> None:
    """They are passed again, and the card names the network as custom."""
    environment = library.make("probe/masked")

    def network(key: jax.Array) -> Any:
        return library.actor_critic(environment, NETWORK, key)

    chosen = options(tmp_path / "run", updates=2, eval_count=1)
    library.train("ppo", environment, config=SMALL, network=network, options=chosen, show=Script())
    exported = library.export(tmp_path / "run", "onnx", environment=environment, network=network)
    assert (
        exported.parity.is_same
        and "| network | custom |" in (exported.folder / "card.md").read_text()
    )
    with pytest.raises(UsageError, match="network=..."):
        library.export(tmp_path / "run", "numpy", environment=environment)


def test_agents_with_identifiers(tmp_path: Path) -> None:
    """The identifiers are added inside. The input is the observation of the environment."""
    network, chosen = (
        library.NetworkConfig(hidden=(8,), agent_id=True),
        options(tmp_path / "run", updates=2, eval_count=1),
    )
    library.train(
        "ppo", "hunting/2-players", config=SMALL, network=network, options=chosen, show=Script()
    )
    exported = library.export(tmp_path / "run", "numpy")
    described = json.loads((exported.folder / "policy.json").read_text())
    (observation,) = described["inputs"]
    assert (
        observation["name"] == "observation"
        and observation["shape"][:2] == ["batch", 2]
        and described["agents"] == 2
    )
    act = FORMATS["numpy"].open({path.name: path.read_bytes() for path in exported.files})
    action = act({"observation": np.ones((1, *observation["shape"][1:]), np.float32)})["action"]
    assert action.shape[:2] == (1, 2) and not np.allclose(action[0, 0], action[0, 1])


def test_the_server_example(recurrent: Path, tmp_path: Path) -> None:
    """It answers requests with a memory and reports an invalid observation."""
    library.export(recurrent, "jax", tmp_path / "policy")
    words = [
        sys.executable,
        str(ROOT / "examples" / "serve_policy.py"),
        str(tmp_path / "policy"),
        "0",
    ]
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, text=True, env={**os.environ, "JAX_PLATFORMS": "cpu"}
    ) as server:
        try:
            assert server.stdout is not None
            url = server.stdout.readline().split()[-1]

            def post(request: Any) -> dict[str, Any]:
                with urllib.request.urlopen(
                    url, json.dumps(request).encode(), timeout=60
                ) as answer:
                    return json.load(answer)

            first = post({"observation": [[1.0], [-1.0]]})
            assert len(first["action"]) == 2 and np.shape(first["next_carry/0"]) == (2, 8)
            again = post({"observation": [[1.0], [-1.0]]})
            after = post({"observation": [[1.0], [-1.0]], "carry/0": first["next_carry/0"]})
            assert again == first and after["next_carry/0"] != first["next_carry/0"]
            with pytest.raises(urllib.error.HTTPError) as refused:
                post({"observation": [[1.0, 2.0]]})
            assert (
                refused.value.code == 400
                and "observation must have the shape [1, 1]" in refused.value.read().decode()
            )
        finally:
            server.kill()


def test_onnx_example(
    recurrent: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It prints ten steps of four environments."""
    library.export(recurrent, "onnx", tmp_path / "policy")
    monkeypatch.setattr(sys, "argv", ["onnx_policy.py", str(tmp_path / "policy")])
    runpy.run_path(str(ROOT / "examples" / "onnx_policy.py"))
    actions = re.findall(r"step \d: actions \[(.*)\]", capsys.readouterr().out)
    assert len(actions) == 10 and all(len(each.split(",")) == 4 for each in actions)
