"""Errors that are a user's to mend. Their messages name the value, the reason and the remedy."""

import contextlib
import difflib
from collections.abc import Iterable, Iterator
from pathlib import Path

LONGEST = 100  # letters of a name in a message


class UsageError(ValueError):
    """A user's mistake. The message says what to do; the command line prints it alone and exits with code 2."""


class UnknownNameError(UsageError):
    """A name that nothing has: `UnknownNameError("environment", "gymnax/CartPol", names)` names those near it.

    `more`: what else there is to say.
    """

    def __init__(self, kind: str, name: str, names: Iterable[str], more: str = "") -> None:
        known, name = list(names), name if len(name) <= LONGEST else f"{name[:LONGEST]}..."
        close = near(name, known)
        if close:
            remedy = f"did you mean {' or '.join(close)}?"
        elif known:
            remedy = f"known are: {', '.join(known[:30])}{' ...' if len(known) > 30 else ''}."
        else:
            remedy = "there is none."
        ValueError.__init__(self, f"unknown {kind} {name!r}: {remedy}{more}")


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """What fails inside names the file that was written; the system's own words for a full disk do not."""
    try:
        yield
    except OSError as error:
        if error.errno is None:
            raise
        raise OSError(error.errno, f"{error.strerror} (a run goes on from its last checkpoint)", str(path)) from error


def near(name: str, names: Iterable[str], count: int = 3) -> list[str]:
    """The names most like `name`, best first, equals as they come. Case and what comes before a `/` weigh little."""

    def likeness(candidate: str) -> float:
        whole = difflib.SequenceMatcher(None, name.lower(), candidate.lower()).ratio()
        last = difflib.SequenceMatcher(None, _last(name), _last(candidate)).ratio()
        inside = 0.8 if len(_last(name)) >= 3 and _last(name) in _last(candidate) else 0.0
        return max(whole, last, inside)

    scored = sorted(((likeness(candidate), candidate) for candidate in names), key=lambda pair: -pair[0])
    return [candidate for score, candidate in scored[:count] if score >= 0.6]


def divisors_near(number: int, wanted: int) -> str:
    """The two divisors of `number` that are nearest to `wanted`, in words."""
    divisors = sorted((d for d in range(1, number + 1) if number % d == 0), key=lambda d: abs(d - wanted))
    return " or ".join(str(d) for d in sorted(divisors[:2]))


def multiples_near(number: int, divisor: int) -> str:
    """The multiples of `divisor` on both sides of `number`, in words."""
    below = number // divisor * divisor
    return " or ".join(str(n) for n in (below, below + divisor) if n > 0)


def _last(name: str) -> str:
    return name.lower().rsplit("/", 1)[-1]
