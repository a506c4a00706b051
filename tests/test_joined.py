"""Encoders joined: the rows of several, side by side."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
from tiny import labelled_texts, tiny_encoder

import outscope
from outscope import InputError, ModelFileError, TextDetector, make_encoder
from outscope.cli import main
from outscope.io import models
from outscope.text.cache import VectorCache
from outscope.text.encoders import TransformerEncoder
from outscope.text.training import Plan, train

TEXTS, LABELS = labelled_texts(60)
NEW = ["pay my bill old", "how tall is a mountain", "what is the weather"]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return tiny_encoder(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def trained(tiny, tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained") / "encoder"
    plan = Plan(epochs=3, batch_size=8, learning_rate=3e-3, max_length=16)
    train(tiny, TEXTS[:40], LABELS[:40], folder, plan=plan)
    return folder


@pytest.fixture
def both(tiny, trained):
    return [str(tiny), str(trained)]


def unit(rows):
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def test_rows_are_side_by_side_each_of_length_one(both):
    found = make_encoder(both).encode(NEW)
    wanted = np.hstack([unit(make_encoder(one).encode(NEW)) for one in both])
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, wanted, atol=1e-6)
    with pytest.raises(InputError, match="joined encoders give embeddings, not logits"):
        make_encoder(both).features(NEW, "logits")


def test_each_part_is_cached_on_its_own(both, tmp_path, monkeypatch):
    cache = VectorCache(tmp_path / "cache")
    for one in both:
        make_encoder(one).features(TEXTS, cache=cache)
    plain, fresh, told = make_encoder(both).encode(TEXTS + NEW), [], []
    compute = TransformerEncoder._compute

    def counted(self, texts, kind, advance):
        fresh.append(len(texts))
        return compute(self, texts, kind, advance)

    monkeypatch.setattr(TransformerEncoder, "_compute", counted)
    rows = make_encoder(both).features(TEXTS + NEW, cache=cache, advance=told.append)
    assert fresh == [len(NEW), len(NEW)]
    assert sum(told) == len(TEXTS + NEW)
    np.testing.assert_allclose(rows, plain, atol=1e-5)


def test_who_it_is_depends_on_each_part_and_their_order(both):
    joined = make_encoder(both)
    assert joined.name == " + ".join(make_encoder(one).name for one in both)
    prints = [make_encoder(tuple(both)).fingerprint(), joined.fingerprint()]
    prints.append(make_encoder(both[::-1]).fingerprint())
    prints.append(make_encoder(both, max_length=7).fingerprint())
    assert prints[0] == prints[1]
    assert len(set(prints)) == 3


def test_texts_that_a_part_was_trained_on_do_not_set_the_threshold(both, tmp_path):
    joined = make_encoder(both)
    seen = make_encoder(both[1]).has_seen(TEXTS)
    assert 0 < seen.sum() < len(TEXTS)
    np.testing.assert_array_equal(joined.has_seen(TEXTS), seen)
    shutil.copytree(both[1], tmp_path / "old")
    (tmp_path / "old" / "seen.safetensors").unlink()
    assert make_encoder([both[0], tmp_path / "old"]).has_seen(TEXTS) is None
    detector = TextDetector(both, holdout=0, cache=False).fit(TEXTS)
    trained_on = [text for text, known in zip(TEXTS, seen, strict=True) if known]
    with pytest.raises(InputError, match="trained on all of these"):
        detector.calibrate(trained_on)


def test_a_saved_model_brings_both_parts_along(both, tmp_path):
    own = [str(shutil.copytree(one, tmp_path / f"own{i}")) for i, one in enumerate(both)]
    detector = TextDetector(own, cache=False).fit(TEXTS, LABELS)
    wanted = detector.predict(NEW)
    assert wanted[0].label == "pay"
    assert wanted[0].nearest
    detector.save(tmp_path / "model")
    for folder in own:
        shutil.rmtree(folder)
    shutil.move(tmp_path / "model", tmp_path / "moved")
    found = outscope.load(tmp_path / "moved")
    assert [v.label for v in found.predict(NEW)] == [v.label for v in wanted]
    np.testing.assert_allclose(found.ood_score(NEW), [v.ood_score for v in wanted], atol=1e-6)
    found.save(tmp_path / "again")
    np.testing.assert_allclose(
        outscope.load(tmp_path / "again").ood_score(NEW), found.ood_score(NEW), atol=1e-6
    )


def test_given_at_load_only_the_same_parts_are_accepted(both, tmp_path):
    detector = TextDetector(both, cache=False).fit(TEXTS)
    detector.save(tmp_path / "model")
    found = outscope.load(tmp_path / "model", encoder=both)
    np.testing.assert_allclose(found.ood_score(NEW), detector.ood_score(NEW), atol=1e-6)
    for other in (both[::-1], both[0]):
        with pytest.raises(ModelFileError, match="is not the one this detector was fitted with"):
            outscope.load(tmp_path / "model", encoder=other)
    only_here = TextDetector([both[0], make_encoder(both[1]).encode], cache=False).fit(TEXTS)
    only_here.save(tmp_path / "function")
    with pytest.raises(InputError, match="not saved with it"):
        outscope.load(tmp_path / "function").ood_score(NEW)


@pytest.mark.parametrize(
    "encoder",
    [["/etc", "@encoder-0123456789abcdef/1"], ["@encoder-0123456789abcdef/..", "a"], ["a"], [1, 2],
     ["@encoder-0123456789abcdef/1", "@encoder-0123456789abcdef/1"]],
)  # fmt: skip
def test_a_manifest_cannot_send_us_elsewhere(both, tmp_path, encoder):
    TextDetector(both, cache=False).fit(TEXTS).save(tmp_path / "model")
    elsewhere = shutil.copytree(both[0], tmp_path / "elsewhere")
    (tmp_path / "model" / "encoder-0123456789abcdef").mkdir()
    (tmp_path / "model" / "encoder-0123456789abcdef" / "1").symlink_to(elsewhere)
    file = tmp_path / "model" / models.MANIFEST
    manifest = json.loads(file.read_text())
    manifest["state"]["parameters"]["encoder"] = encoder
    manifest["checksum"] = models._checksum(manifest)
    file.write_text(models._readable(manifest))
    with pytest.raises(ModelFileError):
        outscope.load(tmp_path / "model")


def test_what_cannot_be_joined_is_told(both):
    for wrong, told in (
        ([], "0 encoders to join"),
        (both[:1], "1 encoders to join"),
        (both[:1] * 2, "is given twice"),
        ([both, both[0]], "joined already"),
        ([both[0], "https://example.com/embed"], "is remote and cannot be joined"),
    ):
        with pytest.raises(InputError, match=told):
            make_encoder(wrong)


def test_by_command(both, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("OUTSCOPE_CACHE", str(tmp_path / "cache"))
    (tmp_path / "in.txt").write_text("\n".join(TEXTS))
    (tmp_path / "new.txt").write_text("\n".join(NEW))
    chosen = ["--encoder", both[0], "--encoder", both[1]]
    assert main(["fit", str(tmp_path / "in.txt"), "--out", str(tmp_path / "m"), *chosen]) == 0
    capsys.readouterr()
    assert main(["score", str(tmp_path / "m"), str(tmp_path / "new.txt")]) == 0
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    found = outscope.load(tmp_path / "m").ood_score(NEW)
    np.testing.assert_allclose([one["ood_score"] for one in told], found, atol=1e-6)
    out = tmp_path / "v.npy"
    assert main(["embed", str(tmp_path / "new.txt"), "--out", str(out), *chosen]) == 0
    np.testing.assert_allclose(np.load(out), make_encoder(both).encode(NEW), atol=1e-5)
    assert main(["fit", "x.txt", "--out", "m", *chosen, "--key-env", "K"]) == 2
