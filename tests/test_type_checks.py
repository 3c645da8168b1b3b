"""Checks of types in the whole package at every call, while each algorithm is traced."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
# The import hook must precede the first import of rollax, so rows are traced in a new process.
TRACE_ROWS = """
import jax
import support.type_checks
from jaxtyping import install_import_hook

install_import_hook("rollax", "support.type_checks.check_types")

from laws.table import BY_NAME

for row in BY_NAME.values():
    algorithm = row.make(row.environment)
    state = jax.eval_shape(algorithm.init, jax.random.key(0), row.config)
    jax.eval_shape(algorithm.step, state)
    jax.eval_shape(algorithm.initial_carry, state)
print(len(BY_NAME))
"""


def test_arguments_and_results_have_their_types() -> None:
    environment = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT / 'tests'}"}
    run = subprocess.run(
        [sys.executable, "-c", TRACE_ROWS], env=environment, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr[-4000:]
    assert int(run.stdout) >= 30
