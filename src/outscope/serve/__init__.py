"""The service: fitted detectors behind HTTP. `create_app` makes the application."""

from outscope.serve.app import create_app
from outscope.serve.settings import Settings

__all__ = ["Settings", "create_app"]
