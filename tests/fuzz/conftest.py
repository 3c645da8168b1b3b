"""The fixtures of tests that train, also for pytest to find them here."""

from host.fixtures import compile_once, quick_compilation

__all__ = ["compile_once", "quick_compilation"]
