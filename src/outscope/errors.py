"""The exceptions of the package, and the one place that says "pip install"."""

from __future__ import annotations

import importlib
from types import ModuleType


class OutscopeError(Exception):
    """Base of every error that Outscope raises by itself."""


class InputError(OutscopeError, ValueError):
    """An argument or a file is not what was asked for; the text names it and the way out."""


class ModelFileError(OutscopeError, ValueError):
    """A saved detector cannot be read: truncated, changed, newer than this version, or foreign."""


class MissingExtraError(OutscopeError, ImportError):
    """An optional dependency is not installed; the text carries the install line."""


class NoPromiseWarning(UserWarning):
    """A threshold is an estimate where a promise was asked for; the text says what it takes."""


def require(module: str, *, extra: str) -> ModuleType:
    """Import an optional dependency, or raise with the exact line that installs it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtraError(
            f"{module.split('.')[0]} is not installed; run: pip install 'outscope[{extra}]'"
        ) from error
