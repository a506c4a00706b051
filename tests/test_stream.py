"""Detectors that go on learning: what a stream keeps, forgets, leaves out and promises."""

from __future__ import annotations

import copy

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from outscope import ClasswiseNNKDetector, InputError, NNKDetector, load
from outscope.decisions.metrics import auroc
from outscope.decisions.threshold import without_strange
from outscope.detectors.classwise import YOUNG_CLASS
from outscope.learning import stream as learning

KINDS = [NNKDetector, ClasswiseNNKDetector]
SETTINGS = [
    {},
    {"kernel": "cosine", "update": "mod"},
    {"precision": "int8"},
    {"precision": "int4", "max_atoms": 0.5},
    {"entropy": 1.0},
    {"kernel": "cosine", "entropy": 0.05},
    {"n_atoms": 40, "max_bytes": 9000},
    {"whitening": 0.5, "lengths": 0.3},
]


def some(n, seed=0, classes=4, width=16, first=0, noise=0.7):
    """Rows around the corners of a simplex, and their classes."""
    rng = np.random.default_rng(seed)
    y = first + rng.integers(0, classes, n)
    X = 4.0 * np.eye(width)[y] + noise * rng.normal(size=(n, width))
    return X.astype(np.float32), np.array(["a", "b", "c", "d", "e", "f", "g", "h"])[y]


def streamed(detector, X, y, size=50, **options):
    for i in range(0, len(X), size):
        detector.partial_fit(X[i : i + size], y[i : i + size], **options)
    return detector


@pytest.mark.parametrize("kind", KINDS)
def test_the_first_rows_are_fitted_as_by_fit(kind):
    X, y = some(300)
    whole, started = kind(random_state=0).fit(X, y), kind(random_state=0).partial_fit(X, y)
    np.testing.assert_array_equal(whole.ood_score(X), started.ood_score(X))
    assert whole.threshold_ == started.threshold_
    assert started.rows_seen_ == 300


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_a_stream_ends_near_one_fit_with_the_same_signs(kind, settings):
    X, y = some(700)
    fresh, far = some(200, 1)[0], some(200, 2, first=4)[0]
    truth = np.repeat([0, 1], 200)
    one = kind(random_state=0, **settings).fit(X, y)
    found = streamed(kind(random_state=0, **settings), X, y)
    queries = np.concatenate([fresh, far])
    scores = found.ood_score(queries)
    assert auroc(truth, scores) > auroc(truth, one.ood_score(queries)) - 0.01
    np.testing.assert_array_equal(found.score_samples(queries), -scores)
    np.testing.assert_array_equal(
        found.predict(queries), np.where(scores > found.threshold_, -1, 1)
    )
    assert found.is_ood(fresh).mean() < max(0.15, one.is_ood(fresh).mean() + 0.03)
    assert found.promise_ is None
    if found.max_bytes:
        assert found.stored_bytes_ <= found.max_bytes


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("begun", ["fit", "partial_fit"])
def test_saving_in_between_changes_no_bit(kind, settings, begun, tmp_path):
    X, y = some(700)
    ahead = getattr(kind(random_state=0, **settings), begun)(X[:200], y[:200])
    ahead.partial_fit(X[200:330], y[200:330], half_life=2000)
    ahead.save(tmp_path / "model")
    loaded = load(tmp_path / "model")
    assert loaded.stored_bytes_ == ahead.stored_bytes_
    assert loaded.stream_bytes_ == ahead.stream_bytes_ > 0
    for detector in (ahead, loaded):
        with threadpool_limits(1 if detector is ahead else 2, user_api="blas"):
            detector.set_params(n_jobs=1 if detector is ahead else 2)
            for i in range(330, 700, 90):
                detector.partial_fit(X[i : i + 90], y[i : i + 90], half_life=2000)
    np.testing.assert_array_equal(ahead.ood_score(X), loaded.ood_score(X))
    np.testing.assert_array_equal(ahead.atoms_, loaded.atoms_)
    np.testing.assert_array_equal(ahead.representatives_, loaded.representatives_)
    assert ahead.threshold_ == loaded.threshold_
    loaded.save(tmp_path / "again")
    np.testing.assert_array_equal(load(tmp_path / "again").ood_score(X), ahead.ood_score(X))


@pytest.mark.parametrize("scale", [1.0, 1e30])
@pytest.mark.parametrize("kind", KINDS)
def test_learning_again_gives_what_fit_gives(kind, scale):
    """Also where the plan keeps lengths, as for collapsed classes: rows are kept as they came."""
    X, y = some(150)
    X = X.astype(np.float64) * scale
    found = streamed(kind(random_state=0), X, y)
    assert found.stream_.new_rows_ == 0
    whole = kind(random_state=0).fit(found.stream_.kept_rows_, y)
    np.testing.assert_array_equal(found.ood_score(X), whole.ood_score(X))
    np.testing.assert_array_equal(found.held_out_scores_, whole.held_out_scores_)
    assert kind is NNKDetector or found.plan_.lengths > 0.0


@pytest.mark.parametrize("kind", KINDS)
def test_held_out_scores_are_of_rows_not_yet_learned(kind):
    rates = []
    for seed in range(4):
        X, y = some(1050, seed)
        detector = kind(random_state=0).fit(X[:350], y[:350])
        streamed(detector, X[350:], y[350:], guard=False)
        rates.append(detector.is_ood(some(2000, 100 + seed)[0]).mean())
        assert len(detector.held_out_scores_) == 500
    # Scores fall while the dictionary grows, so the cut is on the high side.
    assert 0.02 < np.mean(rates) < 0.055


@pytest.mark.parametrize("kind", KINDS)
def test_a_dictionary_grows_to_its_planned_size(kind):
    X, y = some(2000)
    detector = kind(random_state=0).fit(X[:400], y[:400])
    before = len(detector.atoms_)
    streamed(detector, X[400:], y[400:], guard=False)
    assert before < 110
    assert 450 < len(detector.atoms_) <= 504


def test_limits_hold_after_every_call():
    X, y = some(900)
    detector = NNKDetector(max_atoms=25, random_state=0)
    for i in range(0, 900, 60):
        assert len(detector.partial_fit(X[i : i + 60]).atoms_) <= 25
    small = ClasswiseNNKDetector(max_bytes=6000, random_state=0)
    for i in range(0, 900, 60):
        assert small.partial_fit(X[i : i + 60], y[i : i + 60]).stored_bytes_ <= 6000


def test_settled_streams_keep_no_rows(monkeypatch):
    monkeypatch.setattr("outscope.detectors.streaming.KEPT_ROWS", 500)
    X, y = some(1200)
    detector = streamed(ClasswiseNNKDetector(random_state=0), X, y)
    assert detector.stream_.kept_rows_ is None
    assert detector.rows_seen_ == 1200
    # A row more or less at a time: what atoms stand for adds up to the rows.
    mass = sum(learning.remembered(one) for one in detector.dictionaries_)
    assert mass == pytest.approx(1200)


@pytest.mark.parametrize("kind", KINDS)
def test_representatives_are_numbered_over_all_calls(kind):
    X, y = some(600)
    detector = streamed(kind(random_state=0).fit(X[:100], y[:100]), X[100:], y[100:], guard=False)
    behind = detector.representatives_
    assert behind.max() > 400
    for found in (streamed(kind(random_state=0), X, y), detector):
        for row, one in zip(y, found.explain(X[:200]), strict=False):
            for evidence in one.evidence:
                assert [y[i] for i in evidence.rows] == list(evidence.labels)
            assert one.label == row or one.ood_score > 0.1


def test_forgetting_lets_go_of_what_no_longer_comes():
    old = some(600, classes=2)[0]
    new = some(1200, 1, classes=2, first=2)[0]
    gone = some(100, 5, classes=2)[0]
    kept, left = NNKDetector(random_state=0).fit(old), NNKDetector(random_state=0).fit(old)
    for i in range(0, 1200, 50):
        kept.partial_fit(new[i : i + 50], guard=False)
        left.partial_fit(new[i : i + 50], guard=False, half_life=100)
    assert learning.remembered(left.dictionary_) < 180
    assert left.ood_score(gone).mean() > kept.ood_score(gone).mean()
    assert len(left.atoms_) < len(kept.atoms_)
    started = NNKDetector(random_state=0)
    for i in range(0, 1200, 50):
        started.partial_fit(new[i : i + 50], half_life=100)
    assert 80 < len(started.stream_.kept_rows_) < 230


def test_strange_rows_stay_strange_under_the_guard():
    X, _ = some(800, noise=0.4)
    strange = some(60, 3, classes=1, first=6, noise=0.4)[0]
    queries = some(100, 4, classes=1, first=6, noise=0.4)[0]
    guarded, open_ = (NNKDetector(random_state=0).fit(X[:400]) for _ in range(2))
    for i in range(400, 800, 50):
        part = np.concatenate([X[i : i + 50], strange[(i - 400) // 50 * 7 :][:7]])
        guarded.partial_fit(part)
        open_.partial_fit(part, guard=False)
    assert guarded.is_ood(queries).all()
    assert not open_.is_ood(queries).all()
    assert 56 <= guarded.rows_passed_over_ < 56 + 45
    assert open_.rows_passed_over_ == 0
    # Rows in scope are still flagged about as often as asked for.
    assert guarded.is_ood(some(1000, 9, noise=0.4)[0]).mean() < 0.12


def test_the_guard_waits_for_fit_or_calibrate():
    X, y = some(600)
    detector = streamed(NNKDetector(random_state=0), X[:300], y[:300])
    assert detector.rows_passed_over_ == 0
    detector.calibrate(some(200, 1)[0], fpr=0.1)
    assert detector.promise_ is not None
    streamed(detector, X[300:], y[300:])
    assert detector.rows_passed_over_ > 0
    assert detector.promise_ is None
    with pytest.raises(InputError, match="calibration"):
        detector.p_value(X)
    # The rate that was asked for is kept to.
    assert detector.rate_ == 0.1
    assert (detector.held_out_scores_ > detector.threshold_).mean() == pytest.approx(0.1, abs=0.02)


def test_a_threshold_that_is_a_score_stays():
    X = some(300)[0]
    detector = NNKDetector(random_state=0).fit(X[:200]).set_threshold(value=0.3)
    assert detector.partial_fit(X[200:]).threshold_ == 0.3
    detector = NNKDetector(random_state=0).fit(X[:200]).set_threshold(fpr=0.2).partial_fit(X[200:])
    assert (detector.held_out_scores_ > detector.threshold_).mean() == pytest.approx(0.2, abs=0.02)


def test_a_new_class_may_come_in_later():
    X, y = some(400, classes=3)
    more, label = some(200, 1, classes=1, first=5)
    detector = ClasswiseNNKDetector(random_state=0).fit(X, y)
    detector.partial_fit(more[:30], label[:30])
    assert detector.classes_.tolist() == ["a", "b", "c", "f"]
    assert detector.rows_passed_over_ == 0
    assert learning.remembered(detector.dictionaries_[3]) >= YOUNG_CLASS
    streamed(detector, more[30:100], label[30:100])
    assert (detector.nearest_class(more[100:]) == "f").mean() > 0.95
    blind = NNKDetector(random_state=0).fit(X, y).partial_fit(more[:100], label[:100], guard=False)
    assert blind.labels_.tolist() == ["a", "b", "c", "f"]
    assert {one.label for one in blind.explain(more[:50])} == {"f"}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("begun", ["fit", "partial_fit"])
def test_bad_rows_change_nothing(kind, begun):
    X, y = some(200)
    detector = getattr(kind(random_state=0), begun)(X, y).partial_fit(X[:50], y[:50])
    scores, before = detector.ood_score(X), copy.copy(vars(detector))
    broken = X.copy()
    broken[3, 2] = np.nan
    for rows, labels, options, told in (
        (X[:, :5], y, {}, "features"),
        (broken, y, {}, "NaN"),
        (X, y[:10], {}, "labels"),
        (X, None, {}, "give y with every call"),
        (X, np.arange(200), {}, "one type"),
        (X, y, {"half_life": 0}, "half_life"),
        (X, y, {"guard": "no"}, "guard"),
    ):
        with pytest.raises(InputError, match=told):
            detector.partial_fit(rows, labels, **options)
        assert vars(detector) == before
        np.testing.assert_array_equal(detector.ood_score(X), scores)
    with pytest.raises(InputError, match="NaN"):
        kind().partial_fit(broken, y)


def test_labels_cannot_begin_in_the_middle():
    X, y = some(200)
    with pytest.raises(InputError, match="has no labels"):
        NNKDetector().fit(X).partial_fit(X, y)


@pytest.mark.parametrize("kind", KINDS)
def test_fit_begins_anew(kind):
    X, y = some(300)
    detector = streamed(kind(random_state=0), X, y).fit(X, y)
    assert "stream_" not in vars(detector)
    np.testing.assert_array_equal(
        detector.ood_score(X), kind(random_state=0).fit(X, y).ood_score(X)
    )


@pytest.mark.parametrize("kind", KINDS)
def test_rows_may_come_one_by_one_and_again_and_again(kind):
    X, y = some(60)
    detector = kind(random_state=0)
    for i in range(60):
        detector.partial_fit(X[i : i + 1], y[i : i + 1])
    assert detector.rows_seen_ == 60
    for _ in range(5):
        detector.partial_fit(X[:1].repeat(30, axis=0), y[:1].repeat(30))
    assert np.isfinite(detector.ood_score(X)).all()


def test_scores_without_the_strange_ones():
    clean = np.random.default_rng(0).gamma(3.0, size=4000)
    dirty = np.concatenate([2 * clean + 1, np.full(300, 90.0)])
    found = without_strange(dirty, clean)
    assert len(found) == 4300
    assert (np.diff(found) >= 0).all()
    assert np.quantile(found, 0.95) == pytest.approx(np.quantile(2 * clean + 1, 0.95), rel=0.15)
    np.testing.assert_array_equal(without_strange(dirty, np.ones(50)), np.sort(dirty))


def test_a_stream_may_come_from_a_file(tmp_path):
    X = np.random.default_rng(0).normal(size=(900, 6)).astype(np.float32)
    np.save(tmp_path / "rows.npy", X)
    one, other = (NNKDetector(20, random_state=0).partial_fit(X[:300]) for _ in range(2))
    one.partial_fit(X)
    other.partial_fit(tmp_path / "rows.npy")
    assert np.array_equal(one.atoms_, other.atoms_)
    assert one.rows_seen_ == other.rows_seen_ == 1200
