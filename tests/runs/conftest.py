"""Fixtures of tests that train, imported so that pytest finds them here."""

from support.fixtures import compile_once, train

__all__ = ["compile_once", "train"]
