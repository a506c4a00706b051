"""What the benchmarks measured, kept in results/: a line for each, with the machine it ran on."""

from __future__ import annotations

import datetime as dt
import json
import os
import platform
import resource
from pathlib import Path

RESULTS = Path(__file__).parent / "results"


def machine() -> str:
    """The processor and its number of cores, in words."""
    name = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        models = [line for line in info.read_text().splitlines() if line.startswith("model name")]
        name = models[0].split(":", 1)[1].strip() if models else name
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{cores} cores, {name}"


def peak() -> float:
    """Peak memory of this process, in MB.

    Linux carries `ru_maxrss` over from the process that started this one; its own mark it does not.
    """
    status = Path("/proc/self/status")
    for line in status.read_text().splitlines() if status.exists() else ():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def keep(kind: str, **found) -> None:
    """Append a record to results/KIND.jsonl."""
    told = {"date": dt.date.today().isoformat(), "machine": machine(), **found}
    with (RESULTS / f"{kind}.jsonl").open("a") as file:
        file.write(json.dumps(told) + "\n")


def latest(kind: str, *keys: str) -> list[dict]:
    """The last record for each combination of the keys, in the order in which they first came."""
    path, found = RESULTS / f"{kind}.jsonl", {}
    for line in path.read_text().splitlines() if path.exists() else ():
        record = json.loads(line)
        found[tuple(record[key] for key in keys)] = record
    return list(found.values())
