"""The fixtures of tests that train, and the command line within this process."""

from cli.conftest import finished, rollax
from host.fixtures import compile_once, keys_used_again, train

__all__ = ["compile_once", "finished", "keys_used_again", "rollax", "train"]
