"""All benchmarks in turn, then the page that shows them. Takes hours, most of it for `quality`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

for script in (
    "exactness",
    "speed",
    "memory",
    "scale",
    "cluster",
    "growth",
    "quality",
    "text",
    "page",
):
    print(f"\n== {script}", flush=True)
    subprocess.run([sys.executable, f"{script}.py"], cwd=Path(__file__).parent, check=True)
