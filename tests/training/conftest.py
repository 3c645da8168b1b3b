"""The fixtures of tests that train, also for pytest to find them here."""

from support.fixtures import compile_once, train

__all__ = ["compile_once", "train"]
