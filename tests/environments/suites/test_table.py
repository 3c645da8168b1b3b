"""Tests of information about suites that other packages read from `SUITES`."""

import subprocess
import sys
import tomllib
from pathlib import Path

import rollax
from rollax.environments.suites.table import (
    SUITES,
    find_suite_of_module,
    list_compiled_modules,
    list_suite_packages,
)

PROJECT = Path(__file__).parents[3] / "pyproject.toml"


def test_drawings_import_no_suite() -> None:
    code = """
import sys
from rollax.environments.suites.table import SUITES
from rollax.visualization.render.drawings import list_drawings
assert {"gymnax/CartPole-*", "rl2/*", "brax/*"} <= set(list_drawings())
modules = {entry.module for entry in SUITES.values() if entry.module is not None}
assert not modules & set(sys.modules), modules & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_extras_are_those_of_the_project() -> None:
    extras = tomllib.loads(PROJECT.read_text())["project"]["optional-dependencies"]
    assert {entry.extra for entry in SUITES.values() if entry.extra is not None} <= set(extras)


def test_converters_are_public() -> None:
    converters = [entry.converter for entry in SUITES.values() if entry.converter is not None]
    assert len(converters) == 6
    assert all(name.partition("(")[0] in rollax.__all__ for name in converters)


def test_a_suite_is_found_by_its_module() -> None:
    assert find_suite_of_module("mujoco_playground") == "playground"
    assert find_suite_of_module("xminigrid") == "xminigrid"
    assert find_suite_of_module("memory") is None  # part of rollax
    assert find_suite_of_module("jax_md") is None  # an optional part of a suite


def test_packages_whose_versions_are_recorded() -> None:
    """A run records all of them. Processes compare those whose code is compiled."""
    assert {"gymnax", "ale-py", "mujoco-mjx", "playground"} <= set(list_suite_packages())
    compiled = list_compiled_modules()
    assert compiled["mujoco_playground"] == "playground" and "gymnasium" not in compiled
