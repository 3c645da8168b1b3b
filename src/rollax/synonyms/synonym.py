"""One row of the table of names in other libraries."""

from typing import NamedTuple


class Synonym(NamedTuple):
    """Names of one setting.

    Attributes:
        rollax: Names in rollax. Each of them exists in some context, such as an algorithm.
        sb3: Names in Stable-Baselines3.
        cleanrl: Names in CleanRL.
        others: Names in other libraries, such as RLlib, Brax, PureJaxRL and Lightning.
        remark: Difference in meaning.
    """

    rollax: tuple[str, ...]
    sb3: tuple[str, ...] = ()
    cleanrl: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    remark: str = ""

    @property
    def foreign(self) -> tuple[str, ...]:
        """Names in all other libraries."""
        return (*self.sb3, *self.cleanrl, *self.others)


def split_names(text: str) -> tuple[str, ...]:
    """Split names at spaces."""
    return tuple(text.split())
