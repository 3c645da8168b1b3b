"""The fixtures of tests that train, also for pytest to find them here."""

from host.fixtures import compile_once, keys_used_again, train, undisturbed

__all__ = ["compile_once", "keys_used_again", "train", "undisturbed"]
