"""All benchmarks in turn: exactness, speed, memory, quality, texts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

for script in ("exactness", "speed", "memory", "quality", "text"):
    print(f"\n== {script}", flush=True)
    subprocess.run([sys.executable, f"{script}.py"], cwd=Path(__file__).parent, check=True)
