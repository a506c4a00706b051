"""`outscope` and `python -m outscope`."""

import sys


def main() -> int:
    """Run one command; an interrupt prints one line even while modules load."""
    try:
        from outscope.cli import main as run

        return run()
    except KeyboardInterrupt:
        print("outscope: interrupted; no file is half written", file=sys.stderr)  # noqa: T201
        return 130


if __name__ == "__main__":
    sys.exit(main())
