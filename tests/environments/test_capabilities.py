"""Tests of `rollax.environments.capabilities`: defaults, declared values, wrappers, and turns."""

import ast
from pathlib import Path

import rollax
from rollax.environments import make
from rollax.environments.capabilities import (
    EnvironmentCapabilities,
    capabilities,
    has_closed_form,
    has_descriptors,
    has_finite_tasks,
    has_tasks,
    is_on_host,
)
from rollax.environments.wrapper import innermost_environment
from rollax.environments.wrappers import TimeLimit
from rollax.spaces import Box, Discrete

GUARDS = (is_on_host, has_closed_form, has_descriptors, has_finite_tasks, has_tasks)


class Plain:
    name, num_agents, time_limit = "test/plain", None, None
    observation_space, action_space = Box(0.0, 1.0, (1,)), Discrete(2)


class Team(Plain):
    name, num_agents = "test/team", 3


class Typed(Team):
    name, agent_types = "test/typed", ("fox", "hen", "hen")
    waiting_action = 1


def test_defaults() -> None:
    assert capabilities(Plain()) == EnvironmentCapabilities()
    assert capabilities(Team()) == EnvironmentCapabilities(agent_types=("agent",) * 3)
    assert not any(guard(Plain()) for guard in GUARDS)


def test_declared_values() -> None:
    declared = capabilities(Typed())
    assert declared.agent_types == ("fox", "hen", "hen") and declared.waiting_action == 1
    assert declared.agent_names == ("fox", "hen_0", "hen_1")


def test_agent_types_need_an_agent_axis() -> None:
    class Single(Typed):
        num_agents = None

    assert capabilities(Single()).agent_types == ()


def test_wrappers_have_the_capabilities_of_their_environment() -> None:
    for id in ("control/point-maze", "granular/many-navigators", "task/arm"):
        environment = make(id)
        limited = TimeLimit(environment, 5)
        expected = capabilities(environment)
        assert capabilities(limited) == expected
        assert has_descriptors(limited) == has_descriptors(environment)
        assert has_tasks(innermost_environment(limited)) == has_tasks(environment)


def test_closed_forms_have_descriptors() -> None:
    arm = make("task/arm")
    assert has_closed_form(arm) and has_descriptors(arm)
    assert not has_closed_form(make("control/point-maze"))


def test_no_other_module_reads_optional_members_by_name() -> None:
    """Only `capabilities` and the check of declarations do."""
    members = {*EnvironmentCapabilities._fields, "make_simulator", "score", "sample_task"}
    members |= {"task_numbers", "descriptor", "reset_task"}
    source = Path(rollax.__file__).parent
    probes = [
        (str(path.relative_to(source)), call.args[1].value)
        for path in sorted(source.rglob("*.py"))
        for call in ast.walk(ast.parse(path.read_text()))
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Name)
        and call.func.id in ("getattr", "hasattr")
        and isinstance(call.args[1], ast.Constant)
    ]
    modules = {path for path, name in probes if name in members}
    assert modules == {"checks/declarations.py", "environments/capabilities.py"}
