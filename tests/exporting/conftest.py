"""The fixtures of tests that train, and the command line within this process."""

from cli.conftest import finished, rollax
from host.fixtures import compile_once, quick_compilation, train

__all__ = ["compile_once", "finished", "quick_compilation", "rollax", "train"]
