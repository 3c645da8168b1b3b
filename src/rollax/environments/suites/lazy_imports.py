"""Lazy imports of modules that only the suites use, such as plotting packages."""

import contextlib
import importlib
import importlib.util
import sys
import types
from collections.abc import Iterator

# Double-underscore names that users access. Only the import system accesses the others.
_USER_DUNDER_NAMES = ("__all__", "__version__")


class _LazyModule(types.ModuleType):
    """Placeholder for a module. The module is imported when an attribute is first accessed."""

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        module = importlib.import_module(self.__name__)
        self.__dict__.update(vars(module))
        return getattr(module, name)


@contextlib.contextmanager
def defer_imports(*names: str) -> Iterator[None]:
    """Within the context, defer imports of modules until one of their attributes is used.

    Args:
        *names: Names of modules. Modules that are already imported are not affected.
    """
    places = {name: _LazyModule(name) for name in names if name not in sys.modules}
    sys.modules.update(places)
    try:
        yield
    finally:
        for name, place in places.items():
            if sys.modules.get(name) is place:
                del sys.modules[name]


class _LazyPackage(types.ModuleType):
    """Package whose `__init__` runs on the first access to an attribute that is not a module."""

    def __getattr__(self, name: str) -> object:
        if name.startswith("__") and name not in _USER_DUNDER_NAMES:
            raise AttributeError(name)
        # The import system sets this attribute after the import of a module, but modules that
        # import each other access it earlier.
        imported = sys.modules.get(f"{self.__name__}.{name}")
        if imported is not None:
            return imported
        self.__class__ = types.ModuleType  # pyright: ignore[reportAttributeAccessIssue]
        assert self.__spec__ is not None and self.__spec__.loader is not None
        self.__spec__.loader.exec_module(self)
        return getattr(self, name)


def defer_package_init(*packages: str) -> None:
    """Defer the execution of a package's `__init__` when one of its modules is imported.

    The `__init__` runs when an attribute of the package that is not a module is first accessed.

    Args:
        *packages: Names of packages. Packages that are already imported are not affected.

    Raises:
        ModuleNotFoundError: If a package is not installed.
    """
    for name in packages:
        if name in sys.modules:
            continue
        spec = importlib.util.find_spec(name)
        if spec is None:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        package = importlib.util.module_from_spec(spec)
        package.__class__ = _LazyPackage
        sys.modules[name] = package
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], child, package)
