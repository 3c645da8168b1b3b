"""Suites whose package needs a newer Python than rollax."""

import pytest

from rollax.environments.suites.table import SUITES, missing_python_version


def skip_where_too_old(id: str) -> None:
    """Skip a test of an environment whose suite requires a newer Python."""
    suite = id.split("/")[0]
    needed = missing_python_version(SUITES[suite]) if suite in SUITES else ""
    if needed:
        pytest.skip(f"{suite} needs Python {needed} or newer")
