"""Algorithms, with one module each. `builtin` lists them, and `registry` finds them by name."""
