"""TextDetector: from texts to verdicts, saved as one folder, with its own encoder or none."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys

import numpy as np
import pytest
from sklearn.exceptions import NotFittedError
from tiny import labelled_texts, tiny_encoder

import outscope
from outscope import (
    InputError,
    ModelFileError,
    NNKDetector,
    NoPromiseWarning,
    Promise,
    TextDetector,
)
from outscope.decisions.threshold import HELD_OUT
from outscope.demo import corpus, run_demo
from outscope.detectors.methods import METHODS
from outscope.text.encoders import TransformerEncoder

TEXTS, LABELS = labelled_texts(60)
FAR = ["how tall is a mountain", "what is the weather", "close the window"]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return str(tiny_encoder(tmp_path_factory.mktemp("models") / "tiny"))


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("OUTSCOPE_CACHE", str(tmp_path_factory.mktemp("cache")))


@pytest.mark.parametrize(
    "method", [name for name, m in METHODS.items() if m.labels != "classifier"]
)
def test_every_method_of_embeddings_reads_texts(tiny, method, tmp_path):
    detector = TextDetector(tiny, method, holdout=20).fit(TEXTS, LABELS)
    verdicts = detector.predict([*TEXTS[:6], *FAR])
    scores = detector.ood_score([*TEXTS[:6], *FAR])
    assert [v.ood_score for v in verdicts] == scores.tolist()
    assert np.mean(scores[6:]) > np.mean(scores[:6])
    for verdict in verdicts:
        assert verdict.is_ood == (verdict.ood_score > detector.threshold_)
        assert verdict.is_ood == (verdict.label == "out of scope")
        assert 0 < verdict.p_value <= 1
        assert set(verdict.nearest) <= set(TEXTS)
        assert bool(verdict.nearest) == (method not in ("kmeans", "c-kmeans", "mahalanobis"))
    inside = [v.label for v in verdicts[:6] if not v.is_ood]
    assert set(inside) <= set(LABELS)
    detector.save(tmp_path / "model")
    np.testing.assert_array_equal(outscope.load(tmp_path / "model").ood_score(FAR), scores[6:])
    # The same with the detector given as an object, which is saved too.
    given = TextDetector(tiny, detector._new_detector(), holdout=20).fit(TEXTS, LABELS)
    given.save(tmp_path / "given")
    np.testing.assert_array_equal(outscope.load(tmp_path / "given").ood_score(FAR), scores[6:])


def test_classes_are_named(tiny):
    detector = TextDetector(tiny, holdout=0).fit(TEXTS, LABELS).set_threshold(value=1e9)
    assert [v.label for v in detector.predict(TEXTS)] == LABELS
    assert detector.predict(TEXTS[:1])[0].p_value is None
    blind = TextDetector(tiny).fit(TEXTS)
    assert blind.predict(FAR)[0].label is None


def test_the_threshold_keeps_its_promise_and_moves(tiny):
    detector = TextDetector(tiny, contamination=0.1, holdout=0.3).fit(TEXTS, LABELS)
    assert detector.predict(FAR)[0].p_value is not None
    tight = detector.threshold_
    assert detector.set_threshold(fpr=0.4).threshold_ < tight
    detector.calibrate(TEXTS[:30], fpr=0.2)
    assert detector.is_ood(TEXTS[:30]).mean() <= 0.2
    assert detector.p_value(FAR).shape == (3,)


def test_a_saved_folder_holds_the_encoder_and_works_elsewhere(tiny, tmp_path):
    own = tmp_path / "mine"
    shutil.copytree(tiny, own)
    encoder = TransformerEncoder(str(own), layer=-2, max_length=9)
    detector = TextDetector(encoder).fit(TEXTS, LABELS)
    before = detector.ood_score(FAR)
    detector.save(tmp_path / "model")
    shutil.move(tmp_path / "model", tmp_path / "moved")
    shutil.rmtree(own)
    code = (
        "import sys, numpy as np, outscope\n"
        f"d = outscope.load({str(tmp_path / 'moved')!r})\n"
        f"sys.stdout.buffer.write(d.ood_score({FAR!r}).tobytes())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    np.testing.assert_allclose(np.frombuffer(done.stdout), before, atol=1e-6)
    manifest = json.loads((tmp_path / "moved" / "manifest.json").read_text())
    assert manifest["score_direction"] == "higher_is_ood"
    assert str(tmp_path) not in json.dumps(manifest)


def test_another_encoder_is_refused(tiny, tmp_path):
    TextDetector(tiny).fit(TEXTS).save(tmp_path / "model")
    other = str(tiny_encoder(tmp_path / "other", seed=1))
    with pytest.raises(ModelFileError, match="not the one this detector was fitted with"):
        outscope.load(tmp_path / "model", encoder=other)
    assert outscope.load(tmp_path / "model", encoder=tiny).ood_score(FAR).shape == (3,)
    weights = next((tmp_path / "model").glob("encoder-*/model.safetensors"))
    weights.write_bytes(weights.read_bytes()[:-1] + b"!")
    with pytest.raises(ModelFileError, match="not the one"):
        outscope.load(tmp_path / "model").ood_score(FAR)


def test_a_damaged_or_missing_encoder_is_told_and_saving_repairs_it(tiny, tmp_path):
    own = shutil.copytree(tiny, tmp_path / "own")
    detector = TextDetector(str(own)).fit(TEXTS)
    detector.save(tmp_path / "model")
    (part,) = (tmp_path / "model").glob("encoder-*")
    (part / "model.safetensors").write_bytes(b"cut")
    detector.save(tmp_path / "model")
    assert outscope.load(tmp_path / "model").ood_score(FAR).shape == (3,)
    TextDetector(TransformerEncoder(tiny, layer=1)).fit(TEXTS).save(tmp_path / "model")
    assert len(list((tmp_path / "model").glob("encoder-*"))) == 1
    (own / "model.safetensors").write_bytes(b"other")
    with pytest.raises(ModelFileError, match="changed since the fit"):
        detector.save(tmp_path / "again")
    shutil.rmtree(next((tmp_path / "model").glob("encoder-*")))
    with pytest.raises(ModelFileError, match="is missing; copy the whole folder"):
        outscope.load(tmp_path / "model")


def test_held_out_texts_are_enough_for_the_rate_or_none_are_taken(tiny):
    texts = [f"{text} {i}" for i, text in enumerate(TEXTS * 10)]
    for rate, held in ((0.05, 109), (0.01, 149)):
        detector = TextDetector(tiny, contamination=rate).fit(texts)
        assert detector.promise_ == Promise(rate, held, HELD_OUT)
    with pytest.warns(NoPromiseWarning, match="at least 999 in-scope texts"):
        assert TextDetector(tiny, contamination=0.001).fit(texts).promise_ is None
    own = TextDetector(tiny, NNKDetector(contamination=0.2)).fit(TEXTS)
    assert own.detector_.contamination == 0.2


def test_explanations_point_to_the_texts_that_were_given(tiny):
    texts = [f"{text} {i}" for i, text in enumerate(TEXTS * 7)]
    detector = TextDetector(tiny).fit(texts)
    for line, text in zip(detector.remembered_lines_, detector.remembered_texts_, strict=True):
        assert texts[line] == text


def test_a_function_must_be_given_again(tmp_path):
    def lengths(texts):
        return [[len(t), t.count("o"), 1.0] for t in texts]

    detector = TextDetector(lengths).fit(TEXTS)
    detector.save(tmp_path / "model")
    with pytest.raises(InputError, match="'lengths', which is not saved"):
        outscope.load(tmp_path / "model").ood_score(FAR)
    again = outscope.load(tmp_path / "model", encoder=lengths)
    np.testing.assert_array_equal(again.ood_score(FAR), detector.ood_score(FAR))
    with pytest.raises(ModelFileError, match="not the one"):
        outscope.load(tmp_path / "model", encoder=lambda texts: [[1.0, 2.0, 3.0]] * len(texts))
    NNKDetector().fit(np.eye(5)).save(tmp_path / "rows")
    with pytest.raises(InputError, match="not of texts"):
        outscope.load(tmp_path / "rows", encoder=lengths)


@pytest.mark.parametrize(
    ("texts", "labels", "words"),
    [
        ([], None, "0 texts"),
        (["a", "", "  "], None, r"2 of 3 texts are empty \(the first is texts\[1\]\)"),
        (["a", "b"], ["x"], "1 labels but X has 2 rows"),
        ("abc", None, "one text"),
        (["a", None], None, r"texts\[1\] is a NoneType"),
    ],
)
def test_texts_that_cannot_be_fitted_are_named(tiny, texts, labels, words):
    with pytest.raises(ValueError, match=words):
        TextDetector(tiny).fit(texts, labels)


def test_a_failed_fit_loses_nothing(tiny):
    detector = TextDetector(tiny).fit(TEXTS)
    before = detector.ood_score(FAR)
    with pytest.raises(ValueError, match="holdout=500"):
        detector.set_params(holdout=500).fit(TEXTS)
    np.testing.assert_array_equal(detector.ood_score(FAR), before)


def test_what_is_asked_too_early_or_of_nothing(tiny):
    detector = TextDetector(tiny)
    for use in (
        lambda: detector.ood_score(FAR),
        lambda: detector.threshold_,
        lambda: detector.predict(FAR),
        lambda: detector.is_ood(FAR),
        lambda: detector.p_value(FAR),
        lambda: detector.calibrate(FAR),
        lambda: detector.set_threshold(fpr=0.1),
        lambda: detector.judge(np.ones((1, 32))),
    ):
        with pytest.raises(NotFittedError):
            use()
    detector.set_params(holdout=0).fit(TEXTS)
    with pytest.raises(InputError, match="1 of 61 texts are empty"):
        detector.calibrate([*TEXTS, ""])
    with pytest.raises(InputError, match="0 texts"):
        detector.ood_score([])
    with pytest.raises(InputError, match="calibrat"):
        detector.p_value(FAR)
    assert np.isfinite(detector.ood_score(["", "word " * 500, "🚲", "日本語"])).all()


@pytest.mark.parametrize("method", ["msp", "energy", "d2u", "blood"])
def test_classifier_methods_say_that_they_need_one(tiny, method):
    with pytest.raises(InputError, match="plain encoder; fine-tune it first"):
        TextDetector(tiny, method).fit(TEXTS)


def test_the_demo_tells_near_and_far_from_in_scope():
    inside = corpus("in_scope")
    assert len({row["label"] for row in inside}) == 12
    texts = [row["text"] for row in [*inside, *corpus("out_of_scope")]]
    assert len(set(texts)) == len(texts)
    outcome = run_demo()
    assert outcome.far >= 0.95
    assert outcome.near >= 0.85
    assert len(outcome.choice()) == 12


def test_texts_are_explained_by_the_texts_behind_the_atoms(tiny):
    detector = TextDetector(tiny, holdout=20).fit(TEXTS, LABELS)
    found = detector.explain([*TEXTS[:2], *FAR], n_atoms=2)
    known = dict(zip(detector.remembered_rows_.tolist(), detector.remembered_texts_, strict=True))
    assert [one.ood_score for one in found] == detector.ood_score([*TEXTS[:2], *FAR]).tolist()
    for one, verdict in zip(found, detector.predict([*TEXTS[:2], *FAR]), strict=True):
        assert len(one.evidence) <= 2
        assert one.is_ood == verdict.is_ood
        rows = one.evidence[0].rows
        assert {known[row] for row in rows} <= set(TEXTS)
        assert set(verdict.nearest) & {known[row] for row in rows}
    with pytest.raises(InputError, match="KNNDetector cannot explain"):
        TextDetector(tiny, "knn", holdout=20).fit(TEXTS, LABELS).explain(FAR)
