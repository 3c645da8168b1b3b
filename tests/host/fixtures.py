"""Each program is compiled once for all tests that run it in this process."""

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import pytest

import rollax
from host.runs import NETWORK, SMALL, Script, options
from rollax.host import program as programs
from rollax.host.settings import Spec

_compiled: dict[str, Any] = {}


@pytest.fixture(autouse=True, scope="package")
def keys_used_again() -> Iterator[None]:
    """What is saved is used again here, which the check against reuse of keys forbids."""
    with jax.debug_key_reuse(False):
        yield


@pytest.fixture(autouse=True, scope="package")
def compile_once(keys_used_again: None) -> Iterator[None]:
    """A program depends on the specification alone, so runs of the same one may share it; real processes share nothing."""
    compile_program = programs.compile_program

    def compiled(spec: Spec, environment: Any = None, network: Any = None, **_: Any) -> programs.Program:
        host = {"run_dir": None, "checkpoint_steps": 0, "checkpoint_minutes": 0.0, "on_nonfinite": "stop"}
        which = dataclasses.replace(spec, options=dataclasses.replace(spec.options, **host))
        name = repr((which, environment, None if network is None else id(network)))
        if name not in _compiled:
            _compiled[name] = compile_program(spec, environment, network), network  # kept, so that its id stays its own
        return _compiled[name][0]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(programs, "compile_program", compiled)
        yield


@pytest.fixture
def train(tmp_path: Path) -> Callable[..., Any]:
    """`train(name, environment, ...)`: a tiny run in a folder of that name."""

    def run(name: str = "run", environment: Any = "probe/memory", show: Any = None, **arguments: Any) -> rollax.Result:
        own = {field.name for field in dataclasses.fields(rollax.RunOptions)} | {"updates"}
        host = {key: arguments.pop(key) for key in list(arguments) if key in own and key != "seed"}
        defaults: dict[str, Any] = {"config": SMALL, "network": NETWORK, "options": options(tmp_path / name, **host)}
        return rollax.train("ppo", environment, show=show or Script(), **(defaults | arguments))

    return run


@pytest.fixture(scope="package")
def undisturbed(compile_once: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that nothing interrupted."""
    folder = tmp_path_factory.mktemp("undisturbed") / "run"
    rollax.train("ppo", "probe/memory", config=SMALL, network=NETWORK, options=options(folder), show=Script())
    return folder
