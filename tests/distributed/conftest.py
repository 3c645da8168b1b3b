"""Fixtures of tests that train, for pytest to find in this folder."""

from support.fixtures import compile_once, train

__all__ = ["compile_once", "train"]
