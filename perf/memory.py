"""Peak memory of scoring a million rows from a file."""

from __future__ import annotations

import os
import resource
import tempfile
from pathlib import Path

import numpy as np

from outscope import NNKDetector

ROWS, WIDTH = 1_000_000, 384


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.npy"
        rows = np.lib.format.open_memmap(path, "w+", np.float32, (ROWS, WIDTH))
        for start in range(0, ROWS, 50_000):
            rows[start : start + 50_000] = rng.standard_normal((50_000, WIDTH), dtype=np.float32)
        rows.flush()
        del rows
        child = os.fork()
        if child == 0:
            detector = NNKDetector(2000, n_epochs=1, random_state=0)
            detector.fit(rng.standard_normal((8000, WIDTH), dtype=np.float32))
            detector.ood_score(np.ones((500, WIDTH), np.float32))
            before = peak_mb()
            detector.ood_score(np.load(path, mmap_mode="r"))
            own = ROWS * WIDTH * 4 / 2**20
            extra = peak_mb() - before
            print(
                f"peak memory of scoring {ROWS:,} x {WIDTH}: {extra:,.0f} MB above the fitted "
                f"detector, of which the mapped rows are {own:,.0f} MB   bar: rows + 300 MB   "
                f"over the rows: {max(0.0, extra - own):,.0f} MB (process peak {peak_mb():,.0f} MB)"
            )
            os._exit(0)
        os.waitpid(child, 0)


if __name__ == "__main__":
    main()
