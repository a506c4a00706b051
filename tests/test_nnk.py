"""What the NNK detectors add: explanations, classes, the paper's settings."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

from outscope import ClasswiseNNKDetector, InputError, NNKDetector, load, make_detector
from outscope.detectors.methods import METHODS


@pytest.mark.parametrize("kernel", ["gaussian", "cosine"])
@pytest.mark.parametrize("kind", [NNKDetector, ClasswiseNNKDetector])
def test_an_explanation_names_atoms_rows_and_classes(kind, kernel, blobs):
    X, y, fresh, far = blobs
    detector = kind(kernel=kernel, random_state=0).fit(X, y)
    queries = np.concatenate([fresh, far])
    found = detector.explain(queries, n_atoms=3)
    assert [one.ood_score for one in found] == detector.ood_score(queries).tolist()
    assert [one.is_ood for one in found] == detector.is_ood(queries).tolist()
    truth = np.repeat(["pay", "send", "block"], 20).tolist()
    assert np.mean([one.label == label for one, label in zip(found, truth, strict=False)]) > 0.95
    for one in found[:60]:
        assert 0.0 <= one.unexplained <= 1.0
        assert 1 <= len(one.evidence) <= 3
        shares = [evidence.share for evidence in one.evidence]
        assert shares == sorted(shares, reverse=True)
        for evidence in one.evidence:
            assert [y[row] for row in evidence.rows] == list(evidence.labels)
    inside = np.mean([one.unexplained for one in found[:60]])
    assert inside < np.mean([one.unexplained for one in found[60:]])
    json.dumps([one.as_dict() for one in found])


def test_without_labels_explanations_have_none(blobs):
    found = NNKDetector(random_state=0).fit(blobs[0]).explain(blobs[2][:3])
    assert all(one.label is None and one.evidence[0].labels == () for one in found)


def test_under_the_cosine_kernel_unexplained_is_the_score(blobs):
    detector = NNKDetector(kernel="cosine", random_state=0).fit(blobs[0])
    for one in detector.explain(blobs[2]):
        assert one.unexplained == pytest.approx(one.ood_score, abs=1e-6)


def test_class_labels_find_their_class(blobs):
    X, y, fresh, _ = blobs
    detector = ClasswiseNNKDetector(random_state=0).fit(X, y)
    assert detector.classes_.tolist() == ["block", "pay", "send"]
    assert (detector.nearest_class(fresh) == np.repeat(["pay", "send", "block"], 20)).mean() > 0.95
    assert len(detector.atoms_) == sum(len(d.atoms_) for d in detector.dictionaries_)


def test_a_byte_budget_is_shared_among_classes(blobs):
    detector = ClasswiseNNKDetector(common=0.0, max_bytes=4 * 24 * 9, random_state=0)
    assert [len(d.atoms_) for d in detector.fit(*blobs[:2]).dictionaries_] == [3, 3, 3]
    assert detector.stored_bytes_ == 4 * 24 * 9


PRECISIONS = ["float32", "int8", "int4", "auto"]


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("kind", [NNKDetector, ClasswiseNNKDetector])
def test_a_byte_budget_is_kept_with_all_that_is_stored_or_refused(kind, precision, blobs):
    check_budgets(
        kind(precision=precision, random_state=0), blobs[0], blobs[1], range(10, 9000, 611)
    )


@pytest.mark.embeddings
@pytest.mark.parametrize("kind", [NNKDetector, ClasswiseNNKDetector])
@pytest.mark.parametrize("name", ["clinc150", "clinc150_finetuned"])
def test_a_byte_budget_is_kept_on_real_rows(kind, name, embeddings):
    with embeddings(name) as data:
        X, y = data["train_x"][::5].astype(np.float32), data["train_y"][::5]
    for precision in ("float32", "auto"):
        detector = kind(precision=precision, n_epochs=1, n_plain_epochs=0, random_state=0)
        check_budgets(detector, X, y, (50_000, 1_000_000, 3_000_000))


def check_budgets(detector, X, y, budgets):
    """Each budget is kept, or refused with the least one that is not."""
    least = 0
    for budget in budgets:
        try:
            assert detector.set_params(max_bytes=budget).fit(X, y).stored_bytes_ <= budget
            assert budget >= least
        except InputError as error:
            least = int(re.search(r"give max_bytes=(\d+) or more", str(error))[1])
            assert budget < least
    if least:
        assert detector.set_params(max_bytes=least).fit(X, y).stored_bytes_ <= least
        with pytest.raises(InputError, match=f"max_bytes={least - 1} is too small"):
            detector.set_params(max_bytes=least - 1).fit(X, y)


def test_a_metric_that_would_take_most_of_the_budget_is_done_without(blobs):
    X, y, _, _ = blobs
    metric = 4 * 24 * 24
    assert ClasswiseNNKDetector(30, max_bytes=2 * metric).fit(X, y).metric_ is not None
    without = ClasswiseNNKDetector(30, max_bytes=2 * metric - 1).fit(X, y)
    assert without.metric_ is None
    assert without.stored_bytes_ > metric  # its bytes go to atoms instead


@pytest.mark.parametrize("preset", ["default", "paper"])
@pytest.mark.parametrize("method", METHODS)
def test_every_method_of_the_paper_runs_by_its_name(method, preset, blobs):
    X, y, fresh, far = blobs
    detector = make_detector(method, preset=preset).fit(X, y)
    assert detector.ood_score(far).mean() > detector.ood_score(fresh).mean()


def test_the_paper_preset_is_the_papers():
    detector = make_detector("ec-nnk-means", preset="paper")
    assert (detector.kernel, detector.update, detector.n_neighbors) == ("cosine", "mod", 20)
    assert (detector.n_epochs, detector.n_plain_epochs) == (8, 2)
    assert detector.entropy > 0
    assert make_detector("knn", preset="paper").skip_copies is False


def test_ec_is_small_by_default(blobs):
    X = np.random.default_rng(0).normal(size=(1000, 6))
    assert len(make_detector("nnk-means").fit(X).atoms_) == 250
    assert len(make_detector("ec-nnk-means").fit(X).atoms_) == 200
    by_class = make_detector("c-ec-nnk-means").fit(X, np.arange(1000) % 2)
    assert len(by_class.atoms_) in (125, 126)


@pytest.mark.parametrize("method", ["ec-nnk-means", "c-ec-nnk-means"])
@pytest.mark.parametrize("asked", [{"max_bytes": 10**6}, {"max_atoms": 10**4}, {"entropy": 1e-9}])
def test_a_size_of_ones_own_takes_the_place_of_the_methods(method, asked):
    X, y = np.random.default_rng(0).normal(size=(1000, 6)), np.arange(1000) % 2
    assert len(make_detector(method, **asked).fit(X, y).atoms_) in (250, 251, 1000)
    # What is not asked for leaves the method as it is.
    kept = make_detector(method, max_bytes=None, entropy=0.0)
    assert kept.max_atoms == make_detector(method).max_atoms


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: make_detector("nnk"), "choose one of nnk-means"),
        (lambda: make_detector("knn", preset="best"), "'default' or 'paper'"),
        (lambda: make_detector("knn", n_atoms=3), "n_neighbors"),
    ],
)
def test_wrong_names_are_answered_with_the_right_ones(call, words):
    with pytest.raises(InputError, match=words):
        call()


def collapsed(n_classes=6, each=40, width=12):
    """Tight classes that vary along a few directions only, and rows off those directions."""
    rng = np.random.default_rng(0)
    centres = 10.0 * np.eye(n_classes, width)
    y = np.repeat(np.arange(n_classes), each)
    scale = np.where(np.arange(width) < 3, 1.5, 0.05)
    X = centres[y] + rng.normal(size=(len(y), width)) * scale
    inside = centres[y] + rng.normal(size=(len(y), width)) * scale
    strange = centres[y] + rng.normal(size=(len(y), width)) * scale
    strange[:, -1] += 1.0
    return X, y, np.concatenate([inside, strange]), np.repeat([0, 1], len(y))


def test_a_metric_leaves_bits_and_files_alone(tmp_path):
    X, y, queries, _ = collapsed()
    detector = ClasswiseNNKDetector(random_state=0).fit(X, y)
    scores = detector.ood_score(queries)
    assert (detector.set_params(n_jobs=1).ood_score(queries) == scores).all()
    one_by_one = [detector.ood_score(row[None])[0] for row in queries[:50]]
    assert one_by_one == pytest.approx(scores[:50], abs=1e-9)
    detector.save(tmp_path / "model")
    assert (load(tmp_path / "model").ood_score(queries) == scores).all()
    queries[3, 2] = np.nan
    with pytest.raises(ValueError, match="NaN"):
        detector.ood_score(queries)


@pytest.mark.parametrize("precision", ["int8", "int4", "auto"])
@pytest.mark.parametrize("kind", [NNKDetector, ClasswiseNNKDetector])
def test_few_bit_atoms_are_saved_small_and_score_the_same_when_loaded(
    kind, precision, blobs, tmp_path
):
    X, y, fresh, far = blobs
    queries = np.concatenate([fresh, far])
    detector = kind(precision=precision, random_state=0).fit(X, y)
    beside = [detector.common_, getattr(detector, "metric_", None)]
    beside = sum(part.nbytes for part in beside if part is not None)
    assert detector.stored_bytes_ - beside < detector.atoms_.nbytes / 3
    detector.save(tmp_path / "model")
    loaded = load(tmp_path / "model")
    assert loaded.stored_bytes_ == detector.stored_bytes_
    assert (loaded.ood_score(queries) == detector.ood_score(queries)).all()
