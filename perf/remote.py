"""A remote encoder against a real server of all-MiniLM-L6-v2: the same rows, the same decisions, no key left behind."""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from records import keep
from tasks import DATA

import outscope
from outscope import RemoteEncoder, TextDetector, make_encoder


def texts_of(split):
    return pq.read_table(DATA / "clinc150" / f"{split}.parquet")["text"].to_pylist()


def main(options):
    key = os.environ[options.key_env]
    remote = RemoteEncoder(options.url, model=options.model, key_env=options.key_env)
    local = make_encoder(backend="torch")
    some = texts_of("train")[:: 15000 // options.texts][: options.texts]
    start = time.perf_counter()
    rows = remote.encode(some)
    seconds = time.perf_counter() - start
    gap = float(np.abs(rows - local.encode(some)).max())
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        detector = TextDetector(remote, cache=folder / "cache").fit(some)
        detector.check_encoder()
        detector.save(folder / "model")
        loaded = outscope.load(folder / "model", encoder=remote)
        new = texts_of("oos_test")[:100]
        same = bool((loaded.is_ood(new) == detector.is_ood(new)).all())
        kept = [f.name for f in folder.rglob("*") if f.is_file() and key.encode() in f.read_bytes()]
    told = {"server": options.server, "texts": len(some), "gap": gap, "same_decisions": same}
    told |= {"files_with_key": len(kept), "per_second": round(len(some) / seconds, 1)}
    print(told)
    keep("encoders", what="remote", **told)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__,
        epilog="example: infinity_emb v2 --model-id FOLDER --served-model-name minilm --api-key K; "
        "K=K python remote.py http://127.0.0.1:7997/embeddings --model minilm --key-env K",
    )
    parser.add_argument("url")
    parser.add_argument("--model", required=True)
    parser.add_argument("--key-env", required=True)
    parser.add_argument("--server", default="infinity-emb", help="its name, for the record")
    parser.add_argument("--texts", type=int, default=300)
    main(parser.parse_args())
