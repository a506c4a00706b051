"""Vector caches with bytes changed at random: no crash, no wrong vector, whole again after a put."""

from __future__ import annotations

import logging
import random
import sys
import tempfile
from pathlib import Path

import numpy as np

from outscope.text.cache import FILE, VectorCache

TEXTS = [f"text {i}" for i in range(60)]


def damage(rng, content):
    content = bytearray(content)
    how = rng.randrange(8)
    if how < 4:
        for _ in range(rng.choice([1, 1, 3, 20, 200])):
            content[rng.randrange(len(content))] ^= rng.randrange(1, 256)
    elif how == 4:
        del content[rng.randrange(len(content)) :]
    elif how == 5:
        start = rng.randrange(len(content))
        content[start : start + 4096] = bytes(min(4096, len(content) - start))
    elif how == 6:
        for _ in range(3):  # where the file says what it is
            content[rng.randrange(100)] = rng.randrange(256)
    else:
        a, b = (4096 * rng.randrange(len(content) // 4096) for _ in range(2))
        content[a : a + 4096], content[b : b + 4096] = content[b : b + 4096], content[a : a + 4096]
    return bytes(content)


def main(total):
    logging.getLogger("outscope").setLevel(logging.CRITICAL)
    rng = random.Random(0)
    vectors = np.random.default_rng(0).normal(size=(len(TEXTS), 24)).astype(np.float32)
    missing = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for space in ("one", "two"):
            VectorCache(folder).put(space, TEXTS, vectors)
        whole = (folder / FILE).read_bytes()
        for case in range(total):
            (folder / FILE).write_bytes(damage(rng, whole))
            cache = VectorCache(folder)
            found = cache.get("one", TEXTS)
            for i, vector in found.items():
                assert np.array_equal(vector, vectors[i]), f"case {case}: a wrong vector"
            missing += len(found) < len(TEXTS)
            for _ in range(3 if case % 4 == 0 else 0):  # writing is slow
                lost = [i for i in range(len(TEXTS)) if i not in found]
                cache.put("one", [TEXTS[i] for i in lost], vectors[lost])
                found = cache.get("one", TEXTS)
                for i, vector in found.items():
                    assert np.array_equal(vector, vectors[i]), f"case {case}: wrong after a put"
            assert case % 4 or len(found) == len(TEXTS), (
                f"case {case}: {len(found)} back, {cache._broken=}"
            )
    print(f"{total} cases, {missing} with vectors that had to be computed again")


if __name__ == "__main__":
    main(int(sys.argv[1]))
