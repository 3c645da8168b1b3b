"""Tests of public functions with invalid arguments.

The error is one line that names the argument, and nothing is written.
"""

import inspect
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rollax
from fuzz.conftest import Accepted, Answer
from rollax import UsageError
from rollax.visualization.archives.contact_sheet import write_contact_sheet
from rollax.visualization.plots.figure import write_figure
from rollax.visualization.render.recorded_episodes import episode_keys
from rollax.visualization.render.render import render
from rollax.visualization.render.text_frames import print_episodes
from rollax.visualization.report.report import report

VIEWS = {
    "write_figure": write_figure,
    "write_animation": render,
    "write_report": report,
    "sheet": write_contact_sheet,
    "show": print_episodes,
}
FUNCTIONS: dict[str, Callable[..., Any]] = VIEWS | {
    name: value
    for name in rollax.__all__
    if inspect.isroutine(value := getattr(rollax, name)) or inspect.isclass(value)
}
# Classes that are not called with keywords, and functions that pass further keywords to an
# environment or to the options.
OTHERS = ("Environment", "UsageError", "from_pettingzoo", "make", "resume")
METHODS = ("evaluate", "elite", "correct_archive", "evaluate_tasks")
# Values that are invalid for every argument of these functions or for nearly every one.
ODD: list[Any] = [
    True,
    -1,
    2.5,
    1e30,
    10**400,
    float("nan"),
    "no",
    [],
    {},
    object(),
    b"8",
    {1, 2},
    1j,
]
ODD += [np.zeros(2), jnp.ones(3)]
KEY = jax.random.key(0)
RUN: tuple[Any, ...] = ("there-is-no-run",)
# Other arguments, for functions that read a missing run or create something small.
CALLS: dict[str, tuple[Any, ...]] = {
    "train": ("ppo", "probe/memory"),
    "resume": RUN,
    "load": RUN,
    "sweep": ("ppo", "probe/memory"),
    "export": (*RUN, "numpy"),
    "render": RUN,
    "write_animation": RUN,
    "show": RUN,
    "sheet": (*RUN, 4),
    "plot": ([*RUN],),
    "report": ([*RUN],),
    "table": ([*RUN],),
    "write_figure": ([*RUN],),
    "write_report": ([*RUN],),
    "read": RUN,
    "merge_archives": ([*RUN],),
    "compare_archives": (*RUN, *RUN),
    "make": ("probe/memory",),
    "to_gymnasium": ("probe/memory",),
    "list_environments": (),
}


def required(function: Callable[..., Any]) -> dict[str, Any]:
    """Return a value for every argument without a default."""
    parameters = inspect.signature(function).parameters.values()
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {one.name: None for one in parameters if one.default is one.empty and one.kind in kinds}


@pytest.mark.parametrize("name", [name for name in FUNCTIONS if name not in OTHERS])
def test_a_misspelled_keyword_is_refused(name: str, nowhere: Path) -> None:
    if (
        inspect.isclass(FUNCTIONS[name])
        and FUNCTIONS[name].__init__ is object.__init__
        and "__new__" not in vars(FUNCTIONS[name])
    ):
        pytest.skip("it takes no arguments")
    with pytest.raises((TypeError, UsageError), match="sede") as error:
        FUNCTIONS[name](**required(FUNCTIONS[name]), sede=1)
    assert "\n" not in str(error.value)
    assert list(nowhere.iterdir()) == []


@pytest.mark.parametrize("name", METHODS)
def test_a_misspelled_keyword_of_a_policy_is_refused(name: str) -> None:
    """It is refused before the policy is used."""
    method = getattr(rollax.Policy, name)
    with pytest.raises(UsageError, match="unknown keyword 'sede'"):
        method(None, **{key: None for key in required(method) if key != "self"}, sede=1)


def given(name: str) -> list[tuple[str, Any]]:
    """Return calls of a function in which one argument has an invalid value."""
    return [
        (argument, value)
        for argument in inspect.signature(FUNCTIONS[name]).parameters
        for value in ODD
    ]


def accepted(*_: Any, **__: Any) -> Any:
    raise Accepted


@pytest.mark.parametrize("name", CALLS)
def test_invalid_values_are_refused(
    name: str, nowhere: Path, answer: Answer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error is a UsageError. No run is started or read."""
    monkeypatch.setattr("rollax.sweeps.sweep_session.launch_workers", accepted)
    function = FUNCTIONS[name]
    places = [
        one.name
        for one in inspect.signature(function).parameters.values()
        if one.kind != one.KEYWORD_ONLY
    ]
    for argument, value in given(name):
        values = dict(zip(places, CALLS[name], strict=False))
        if argument in ("tell", "say", "show", "arguments") or (
            argument == "network" and callable(value)
        ):
            continue
        positional = list(values.values())
        if argument in values:
            positional[list(values).index(argument)] = value
        keywords = {} if argument in values else {argument: value}
        asked = f"{name}({argument}={type(value).__name__})"
        try:
            answer(
                lambda positional=positional, keywords=keywords: function(*positional, **keywords)
            )
        except (Accepted, UsageError):
            pass
        except Exception as error:
            raise AssertionError(f"{asked} raises {type(error).__name__}: {error}") from error
        for left in nowhere.iterdir():  # files of accepted calls
            shutil.rmtree(left)


@pytest.mark.quick
@pytest.mark.parametrize(
    ("call", "part"),
    [
        (
            lambda: rollax.load("run", environment="gymnax/CartPole-v1"),
            "Pass rollax.make('gymnax/CartPole-v1')",
        ),
        (
            lambda: rollax.load("run", network={"hidden": 8}),
            "network must be a function from a key to a network or None, got {'hidden': 8}",
        ),
        (
            lambda: rollax.load("run", checkpoint=True),
            "checkpoint (True) must be a string or an integer",
        ),
        (lambda: rollax.load("run", member=1.5), "member (1.5) must be an integer or None"),
        (
            lambda: rollax.resume("run", total_steps="8"),
            "total_steps ('8') must be an integer or None, not a string",
        ),
        (
            lambda: rollax.resume("run", total_steps=True),
            "total_steps (True) must be an integer",
        ),
        (lambda: rollax.resume("run", metrics=5), "metrics must be a function or None, got 5"),
        (
            lambda: rollax.train("ppo", "probe/memory", quiet="no"),
            "quiet ('no') must be True or False",
        ),
        (
            lambda: rollax.sweep("ppo", "probe/memory", workers="2"),
            "workers ('2') must be an integer",
        ),
        (
            lambda: rollax.sweep("ppo", "probe/memory", hours=[1]),
            "hours ([1]) must be a number or None",
        ),
        (lambda: rollax.make(5), "id (5) must be a string"),
        (
            lambda: rollax.plot(5),
            "runs (5) must be a sequence in which every item is the path of a file or folder",
        ),
        (lambda: rollax.plot("run"), "run is not a run"),
        (lambda: rollax.plot("run", columns=3), "columns must be 1, 2 or None, got 3"),
        (lambda: rollax.plot("run", x="hours"), "x ('hours') must be one of steps, time"),
        (lambda: rollax.plot("run", csv=True), "csv requires path"),
        (
            lambda: rollax.plot("run", normalize={"a": 5}),
            "normalize ({'a': 5}) must map environments to two numbers (low, high)",
        ),
        (lambda: rollax.plot(["run"] * 3, archive=True), "archive requires one run or two runs"),
        (lambda: rollax.render("run", sheet=4, fps=5), "so fps has no effect. Remove fps."),
        (
            lambda: rollax.render("run", path=5),
            "path (5) must be the path of a file or folder or None",
        ),
        (lambda: report("run", label="a"), "label ('a') must be a sequence"),
        (lambda: render("run", seed="1"), "seed ('1') must be an integer"),
        (
            lambda: render("run", fps=10**400),
            "fps must be between 1 and 1000000000, got a number of about 400 digits",
        ),
        (lambda: rollax.make("probe/memory", sede=1), "unknown argument of probe/memory 'sede'"),
        (lambda: rollax.read([]), "must name at least one run folder"),
        (lambda: rollax.export("run", [1]), "to ([1]) must be a string"),
        (lambda: rollax.register("mine/Name", 5), "factory (5) must be a function"),
        (lambda: rollax.register_algorithm("mine", 5), "entry must be an AlgorithmEntry, got 5"),
        (
            lambda: rollax.check_algorithm(5),
            "algorithm must be the name of an algorithm or an AlgorithmEntry, got 5",
        ),
        (
            lambda: rollax.train("ppo", "probe/memory", show=5),
            "show must be a display or None, got 5",
        ),
        (lambda: rollax.population(5), "algorithm (5) must be an Algorithm"),
        (lambda: rollax.segment(5, 2), "algorithm (5) must be an Algorithm"),
        (lambda: rollax.evolving(5, {}), "algorithm (5) must be an Algorithm"),
        (
            lambda: rollax.actor_critic(rollax.make("probe/memory"), 5, KEY),
            "config must be a NetworkConfig, got 5",
        ),
        (
            lambda: rollax.AskTell("map_elites", 2, [0], [1], seed=10**400),
            "seed must be in [0, 2^32), got a number of about 400 digits",
        ),
        (
            lambda: rollax.AskTell("map_elites", 10**400, [0], [1]),
            "dimensions must be between 1 and 2147483647, got a number of about 400 digits",
        ),
        (
            lambda: episode_keys(10**400, 1),
            "seed must be at least 0 and less than 2^32, got a number of about 400 digits",
        ),
    ],
)
def test_the_message_names_the_argument(call: Callable[[], Any], part: str, answer: Answer) -> None:
    message = answer(call)
    assert message is not None and part in message, message
