"""What a suite imports and nothing here asks for, such as what it draws with: seconds of every start."""

import contextlib
import importlib
import importlib.util
import sys
import types
from collections.abc import Iterator

_ASKED = ("__all__", "__version__")  # by users; other names with underscores are asked for by the import system


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


class _Package(types.ModuleType):
    """A package whose own code has not run; it does when something is asked of it that is no module imported already."""

    def __getattr__(self, name: str) -> object:
        if name.startswith("__") and name not in _ASKED:
            raise AttributeError(name)
        # The import system sets this when a module is through; modules that import each other ask before.
        imported = sys.modules.get(f"{self.__name__}.{name}")
        if imported is not None:
            return imported
        self.__class__ = types.ModuleType  # pyright: ignore[reportAttributeAccessIssue]
        assert self.__spec__ is not None and self.__spec__.loader is not None
        self.__spec__.loader.exec_module(self)
        return getattr(self, name)


def without_their_own(*packages: str) -> None:
    """Makes modules of these packages importable one by one, without what the packages themselves import: all of a suite.

    Whoever asks a package for what it offers gets it: its own code runs then.

    Raises: ModuleNotFoundError for a package that is not there.
    """
    for name in packages:
        if name in sys.modules:
            continue
        spec = importlib.util.find_spec(name)
        if spec is None:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        package = importlib.util.module_from_spec(spec)
        package.__class__ = _Package
        sys.modules[name] = package
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], child, package)
