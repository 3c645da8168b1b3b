"""Tests of `UsageError` in notebooks, where it is a single line."""

import pytest

from rollax.errors import UnknownNameError, UsageError

pytestmark = pytest.mark.quick


def raised(error: UsageError) -> UsageError:
    """Return the error with a traceback and a cause."""
    try:
        try:
            raise KeyError("inside")
        except KeyError as cause:
            raise error from cause
    except UsageError as caught:
        return caught


def test_ipython_prints_the_message_or_the_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    error = raised(UnknownNameError("thing", "nme", ["name"]))
    monkeypatch.delenv("ROLLAX_TRACEBACK", raising=False)
    assert error._render_traceback_() == [
        "UnknownNameError: unknown thing 'nme': did you mean name?"
    ]
    monkeypatch.setenv("ROLLAX_TRACEBACK", "1")
    lines = error._render_traceback_()
    assert "KeyError: 'inside'" in lines and lines[-1].endswith("did you mean name?")
    assert any("in raised" in line for line in lines)


def test_notebooks_show_options_as_python_keywords() -> None:
    error = raised(
        UsageError("Raise --env-timeout, or set --env.frame-skip 2. See `ray start --head`.")
    )
    (line,) = error._render_traceback_()
    assert line == (
        "UsageError: Raise env_timeout, or set arguments['frame_skip'] 2. See `ray start --head`."
    )
    (line,) = UsageError("Run: rollax resume runs/a --total-steps 8")._render_traceback_()
    assert line.endswith("rollax resume runs/a --total-steps 8")
