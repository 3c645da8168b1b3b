"""Fixtures of tests that train, and the command line in this process."""

from cli.conftest import rollax
from support.fixtures import compile_once, train

__all__ = ["compile_once", "rollax", "train"]
