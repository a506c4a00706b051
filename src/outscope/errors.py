"""The exceptions of the package, and the one place that says "pip install"."""

from __future__ import annotations

import importlib
from types import ModuleType


class OutscopeError(Exception):
    """Base of all errors that Outscope itself raises."""


class InputError(OutscopeError, ValueError):
    """An argument or a file is not valid; the message names it and says what to do."""


class ModelFileError(OutscopeError, ValueError):
    """A saved detector cannot be read: truncated, changed, from a newer version, or not ours."""


class MissingExtraError(OutscopeError, ImportError):
    """An optional dependency is not installed; the message contains the install command."""


class EncoderError(OutscopeError, RuntimeError):
    """A remote encoder did not answer, answered nonsense, or is no longer the same model."""


class NoPromiseWarning(UserWarning):
    """A threshold is only an estimate although a promise was requested; the message says why."""


class InScopeExampleWarning(UserWarning):
    """An example to refuse looks in scope; the message names it and what it is like."""


def require(module: str, *, extra: str) -> ModuleType:
    """Import an optional dependency, or raise with the exact command that installs it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtraError(
            f"{module.split('.')[0]} is not installed; run: pip install 'outscope[{extra}]'"
        ) from error
