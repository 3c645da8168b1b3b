"""Fixtures of tests that train, which compile each program once per process."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import pytest

import rollax
from counting import forget, held
from rollax.config import user_functions
from rollax.training.compile import program as programs
from rollax.training.spec import Spec
from support.runs import NETWORK, SMALL, Script, options

MANY_MAPS = 10_000
_compiled: dict[str, Any] = {}


@contextlib.contextmanager
def programs_compiled_once() -> Iterator[None]:
    """Share compiled programs among runs of the same specification, and allow key reuse.

    Saved keys are used again when they are loaded, so the check against key reuse must be off.
    """
    compile_program = programs.compile_program

    def compiled(
        spec: Spec, environment: Any = None, network: Any = None, **_: Any
    ) -> programs.Program:
        host = {
            "run_dir": None,
            "checkpoint_steps": 0,
            "checkpoint_minutes": 0.0,
            "on_nonfinite": "stop",
            "stop_when": None,
        }
        host_options = dataclasses.replace(spec.options, **host)
        which = dataclasses.replace(spec, options=host_options, phases=())
        parts = (
            None if environment is None else (jax.tree.structure(environment), type(environment))
        )
        functions = [network, *user_functions(spec.config).values()]
        name = repr((which, parts, list(map(id, functions))))
        if name not in _compiled:
            # References to the functions prevent that other objects get their ids.
            _compiled[name] = (compile_program(spec, environment, network), functions)
        return _compiled[name][0]

    with pytest.MonkeyPatch.context() as patch, jax.debug_key_reuse(False):
        patch.setattr(programs, "compile_program", compiled)
        yield


@pytest.fixture(autouse=True, scope="module")
def compile_once() -> Iterator[None]:
    """Compile each program once. Processes that tests start share nothing.

    Programs of earlier modules are dropped if they have many memory maps, which Linux limits.
    """
    if held()["maps"] > MANY_MAPS:
        _compiled.clear()
        forget()
    with programs_compiled_once():
        yield


@pytest.fixture
def train(tmp_path: Path) -> Callable[..., Any]:
    """Return a function `train(name, environment, ...)` for tiny runs in a folder of that name."""

    def run(
        name: str = "run", environment: Any = "probe/memory", show: Any = None, **arguments: Any
    ) -> rollax.Result:
        own = {field.name for field in dataclasses.fields(rollax.RunOptions)} | {"updates"}
        own -= {"seed", "stop_when"}  # also arguments of `rollax.train`
        host = {key: arguments.pop(key) for key in list(arguments) if key in own}
        defaults: dict[str, Any] = {
            "config": SMALL,
            "network": NETWORK,
            "options": options(tmp_path / name, **host),
        }
        return rollax.train("ppo", environment, show=show or Script(), **(defaults | arguments))

    return run
