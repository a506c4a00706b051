"""Vectors given beside the texts, and the small static encoder by its short name."""

from __future__ import annotations

import json

import numpy as np
import pytest
from tiny import labelled_texts

import outscope
from outscope import InputError, TextDetector, make_encoder
from outscope.cli import main

TEXTS, LABELS = labelled_texts(60)


def vectors_of(texts):
    rows = np.array([[text.count(c) for c in "abcdefghijklmnopqrstuvwxyz"] for text in texts])
    return rows + 0.01 * np.arange(26)


def test_verdicts_come_from_the_vectors_and_show_the_texts(tmp_path):
    detector = TextDetector(cache=False).fit(TEXTS, LABELS, vectors=vectors_of(TEXTS))
    detector.save(tmp_path / "model")
    loaded = outscope.load(tmp_path / "model")
    new = ["pay my bill now please", "zzz qqq xxx"]
    for one in (detector, loaded):
        verdicts = one.predict(new, vectors=vectors_of(new))
        assert verdicts[0].label == "pay"
        assert set(verdicts[0].nearest) <= set(TEXTS)
        assert one.is_ood(new, vectors=vectors_of(new)).tolist() == [False, True]
        scores = one.ood_score(new, vectors=vectors_of(new))
        np.testing.assert_array_equal(scores, [v.ood_score for v in verdicts])
        assert one.p_value(new, vectors=vectors_of(new))[0] > 0.05
        with pytest.raises(InputError, match="it has no encoder; give the vectors"):
            one.predict(new)
    loaded.calibrate(TEXTS, vectors=vectors_of(TEXTS), fpr=0.1)
    assert loaded.promise_ is not None
    loaded.save(tmp_path / "again")


@pytest.mark.parametrize(
    ("vectors", "words"),
    [
        ([[1.0, 2.0]], "shape .1, 2. for 2 texts"),
        ([[1.0], [1.0, 2.0]], "no table of numbers"),
        ([["a"], ["b"]], "no table of numbers"),
        ([[1.0, float("nan")], [1.0, 2.0]], "NaN or infinite numbers in row 1"),
        ([[1.0] * 25, [1.0] * 25], "25 columns, but the detector was fitted on 26"),
    ],
)
def test_vectors_that_cannot_be_used_are_refused(vectors, words):
    detector = TextDetector(detector="knn").fit(TEXTS, vectors=vectors_of(TEXTS))
    with pytest.raises(InputError, match=words):
        detector.ood_score(["a", "b"], vectors=vectors)


@pytest.mark.parametrize("kind", [".jsonl", ".parquet"])
def test_the_command_line_reads_a_column_of_vectors(tmp_path, capsys, kind):
    def write(name, texts):
        file, rows = tmp_path / f"{name}{kind}", vectors_of(texts).tolist()
        if kind == ".jsonl":
            lines = [json.dumps({"text": t, "v": v}) for t, v in zip(texts, rows, strict=True)]
            file.write_text("\n".join(lines))
        else:
            from outscope.io.files import write_columns

            write_columns(file, {"text": texts, "v": rows})
        return str(file)

    train, new = write("train", TEXTS), write("new", ["pay my bill now", "zzz qqq xxx"])
    model = str(tmp_path / "model")
    assert main(["fit", train, "--vectors", "v", "--out", model]) == 0
    capsys.readouterr()
    assert main(["score", model, new, "--vectors", "v"]) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [one["is_ood"] for one in found] == [False, True]
    assert found[0]["nearest"][0] in TEXTS
    assert "v" not in found[0]
    assert main(["explain", model, new, "--vectors", "v", "--row", "1"]) == 0
    assert "pay my bill" in capsys.readouterr().out
    assert main(["eval", model, "--inside", train, "--outside", new, "--vectors", "v"]) == 0
    assert main(["score", model, new]) == 2
    assert "--vectors" in capsys.readouterr().err
    assert main(["fit", train, "--vectors", "w", "--out", model]) == 2
    assert "no column 'w' for --vectors; it has v" in capsys.readouterr().err


def test_fast_is_the_small_static_model(tmp_path, monkeypatch):
    """The name leads to the hub's model; a folder named by the environment stands for it."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    static = pytest.importorskip("model2vec").StaticModel
    words = sorted({word for text in TEXTS for word in text.split()})
    tokenizer = Tokenizer(
        models.WordLevel({w: i for i, w in enumerate(["[UNK]", *words])}, "[UNK]")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    table = np.random.default_rng(0).normal(size=(len(words) + 1, 16)).astype(np.float32)
    static(table, tokenizer).save_pretrained(str(tmp_path / "static"))
    monkeypatch.setenv("OUTSCOPE_FAST", str(tmp_path / "static"))
    encoder = make_encoder("fast")
    assert encoder.encode(TEXTS).shape == (60, 16)
    detector = TextDetector("fast", "knn", cache=False).fit(TEXTS)
    detector.save(tmp_path / "model")
    monkeypatch.delenv("OUTSCOPE_FAST")
    loaded = outscope.load(tmp_path / "model")
    loaded.cache = False
    np.testing.assert_array_equal(loaded.ood_score(TEXTS), detector.ood_score(TEXTS))
    asked = []
    monkeypatch.setattr(
        "huggingface_hub.snapshot_download", lambda name, **how: asked.append(name) or 1 / 0
    )
    with pytest.raises(InputError, match="minishlab/potion-base-8M"):
        make_encoder("fast")
    assert set(asked) == {"minishlab/potion-base-8M"}
