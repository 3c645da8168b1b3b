"""Modules that a suite imports for its pictures, which take seconds and which nothing here asks for."""

import contextlib
import importlib
import sys
import types
from collections.abc import Iterator


class _Later(types.ModuleType):
    """Stands for a module until something of it is asked for; then it is imported and this has what it has."""

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        module = importlib.import_module(self.__name__)
        self.__dict__.update(vars(module))
        return getattr(module, name)


@contextlib.contextmanager
def later(*names: str) -> Iterator[None]:
    """Whoever imports these modules for the first time within this block gets something that imports them when it is used."""
    places = {name: _Later(name) for name in names if name not in sys.modules}
    sys.modules.update(places)
    try:
        yield
    finally:
        for name, place in places.items():
            if sys.modules.get(name) is place:
                del sys.modules[name]
