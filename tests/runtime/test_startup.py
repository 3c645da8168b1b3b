"""Tests of the startup time: imported modules, and programs before the first evaluation."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import rollax
from rollax.algorithms.builtin import BUILTIN_ALGORITHMS
from support.fixtures import compile_once, train  # noqa: F401

PROGRAM = """
import sys
import rollax
from jax._src import monitoring

programs, events = [], []
def see(name, seconds, **of):
    if name.endswith("backend_compile_duration"):
        programs.append(of.get("fun_name", ""))
monitoring.register_event_duration_secs_listener(see)
monitoring.register_event_listener(lambda name, **_: events.append(name))

class Show:
    def status(self, text): pass
    def message(self, text):
        if " 0 steps " in text:
            missed = sum(name.endswith("/cache_misses") for name in events)
            large = [name for name in programs if any(word in name for word in \
("jit(run)", "jit(evaluate)", "jit(init_state)"))]
            print(len(programs), missed, *sorted(large), flush=True)
    def picture(self, make): pass
    def progress(self, num_done, num_total, metric_texts): pass
    def close(self): pass

small = {"num_envs": 4, "num_steps": 8, "num_minibatches": 2}
options = {"run_dir": sys.argv[1], "tensorboard": False}
rollax.train("ppo", "gymnax/CartPole-v1", total_steps=64, config=small, options=options, \
show=Show())
"""
MOST_PROGRAMS = 16  # 10 with jax 0.10, formerly 30


def start(folder: Path, cache: Path) -> list[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")}
    given = {"ROLLAX_COMPILATION_CACHE": str(cache), "JAX_PLATFORMS": "cpu"}
    line = [sys.executable, "-c", PROGRAM, str(folder)]
    done = subprocess.run(line, env=kept | given, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_a_second_start_compiles_nothing_before_its_first_evaluation(tmp_path: Path) -> None:
    """All programs are read from the cache: the initial state, the evaluation and the update."""
    number, missed, *_ = start(tmp_path / "first", tmp_path / "cache")
    assert int(missed) >= 2
    number, missed, *large = start(tmp_path / "second", tmp_path / "cache")
    assert int(number) <= MOST_PROGRAMS and int(missed) == 0
    assert set(large) - {"jit(run)"} == {"jit(init_state)", "jit(evaluate)"}


SLOW_MODULES = ("jax", "equinox", "optax", "orbax", "matplotlib", "tyro", "gymnax", "brax", "numpy")
IMPORTED = """
import sys
import rollax
assert set(rollax.__all__) <= set(dir(rollax))
print(*sys.modules)
"""


def test_import_is_lazy() -> None:
    """`import rollax` imports neither JAX nor suites nor plots, but names are listed."""
    done = subprocess.run(
        [sys.executable, "-c", IMPORTED], capture_output=True, text=True, timeout=300, check=True
    )
    modules = done.stdout.split()
    assert not set(modules) & set(SLOW_MODULES)
    of_rollax = {name.split(".")[1] for name in modules if name.startswith("rollax.")}
    assert not of_rollax & {"environments", "training", "visualization", "networks"}


def test_public_names_exist() -> None:
    assert all(hasattr(rollax, name) for name in rollax.__all__)
    assert len(set(rollax.__all__)) == len(rollax.__all__)
    with pytest.raises(AttributeError, match="no attribute 'no_such_name'"):
        getattr(rollax, "no_such_name")  # noqa: B009


def test_type_checkers_see_the_existing_names() -> None:
    """The imports under TYPE_CHECKING are the names and modules of the lazy table.

    A new entry of `BUILTIN_ALGORITHMS` needs a line there too.
    """
    tree = ast.parse(Path(rollax.__file__).read_text())
    block = next(
        node
        for node in tree.body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    )
    seen = {
        alias.name: node.module
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.asname == alias.name
    }
    assert seen == rollax._MODULE_BY_NAME
    assert set(BUILTIN_ALGORITHMS) <= set(seen)
