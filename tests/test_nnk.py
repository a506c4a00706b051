"""What the NNK detectors add: explanations, classes, the paper's settings."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from tiny import learned_scores

from outscope import ClasswiseNNKDetector, InputError, NNKDetector, load, make_detector
from outscope.methods import METHODS
from outscope.metrics import auroc
from outscope.nnk import PAPER


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
    assert detector.shared_ is not None  # these classes are tight, and no size was asked for
    own = sum(len(d.atoms_) for d in detector.dictionaries_)
    assert len(detector.atoms_) == own + len(detector.shared_.atoms_)


def test_a_byte_budget_is_shared_among_classes(blobs):
    detector = ClasswiseNNKDetector(max_bytes=4 * 24 * 9, random_state=0).fit(*blobs[:2])
    assert [len(d.atoms_) for d in detector.dictionaries_] == [3, 3, 3]
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
    metric = 8 * 24 * 24
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


def test_collapsed_classes_are_measured_by_how_they_vary():
    X, y, queries, is_ood = collapsed()
    detector = ClasswiseNNKDetector(random_state=0).fit(X, y)
    assert detector.metric_.shape == (12, 12)
    plain = ClasswiseNNKDetector(bandwidth=detector.bandwidth_, random_state=0).fit(X, y)
    assert plain.metric_ is None
    alone = ClasswiseNNKDetector(10, random_state=0).fit(X, y)  # a size leaves the metric alone
    assert auroc(is_ood, alone.ood_score(queries)) > 0.99
    found = auroc(is_ood, detector.ood_score(queries))
    assert found > auroc(is_ood, plain.ood_score(queries)) + 0.1
    assert (detector.nearest_class(queries[: len(y)]) == y).mean() > 0.95
    why = detector.explain(queries[:1])[0]
    assert why.label == y[0]
    assert why.ood_score == pytest.approx(detector.ood_score(queries[:1])[0], abs=1e-9)


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


def test_tight_classes_are_judged_in_two_ways_unless_a_size_is_asked_for():
    X, y, queries, _ = collapsed()
    both = ClasswiseNNKDetector(random_state=0).fit(X, y)
    paper = NNKDetector(len(X) // 4, random_state=0, **PAPER).fit(X).ood_score(queries)
    for settings in ({"n_atoms": 10}, {"max_bytes": 3000}, {"max_atoms": 5}, {"normalize": False}):
        alone = ClasswiseNNKDetector(**settings, random_state=0).fit(X, y)
        assert alone.metric_ is not None
        assert alone.shared_ is None
    halved = ClasswiseNNKDetector(max_atoms=0.5, random_state=0).fit(X, y)
    assert len(halved.shared_.atoms_) == len(both.shared_.atoms_) / 2
    # Half of the score is that of the paper's settings, the other that of the classes.
    shared = both.shared_._coder.ood_score(queries, 20)
    assert np.corrcoef(shared, paper)[0, 1] > 0.95
    own = 2.0 * both.ood_score(queries) - shared
    size = len(both.atoms_) - len(both.shared_.atoms_)
    alone = ClasswiseNNKDetector(size // 6, random_state=0).fit(X, y)
    assert np.corrcoef(own, alone.ood_score(queries))[0, 1] > 0.95
    assert both.stored_bytes_ == both.atoms_.nbytes + both.metric_.nbytes


def test_half_collapsed_classes_are_known_by_near_neighbours():
    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(4), 50)
    loose = np.eye(4, 30)[y] + 0.14 * rng.normal(size=(200, 30))
    near = np.repeat(loose[::5], 5, axis=0) + 0.01 * rng.normal(size=(200, 30))
    assert ClasswiseNNKDetector(random_state=0).fit(loose, y).metric_ is None
    half = ClasswiseNNKDetector(random_state=0).fit(near, y)
    assert half.metric_ is not None
    assert half.shared_ is None
    rows = near @ half.metric_
    spread = np.median(((rows[:, None] - rows[None]) ** 2).sum(axis=2))
    assert half.bandwidth_ == pytest.approx(spread / 2, rel=0.1)
    assert len(half.atoms_) == len(near)
    assert len(ClasswiseNNKDetector(5, random_state=0).fit(near, y).atoms_) == 20


def test_crowded_classes_are_judged_by_the_nearest_row():
    rng = np.random.default_rng(0)
    y = np.arange(2400) % 2
    # Few directions hold the variance within a class, so that many rows crowd there.
    loading = 0.05 * rng.normal(size=(3, 30))
    X = 2.0 * np.eye(2, 30)[y] + rng.normal(size=(2400, 3)) @ loading
    crowded = ClasswiseNNKDetector(random_state=0).fit(X, y)
    assert crowded.metric_ is not None
    assert crowded.shared_ is None
    assert len(crowded.atoms_) == len(X)
    rows = X @ crowded.metric_
    assert crowded.bandwidth_ < np.sort(((rows - rows[0]) ** 2).sum(axis=1))[1]
    few = ClasswiseNNKDetector(random_state=0).fit(X[:120], y[:120])
    assert few.shared_ is not None
    assert few.bandwidth_ > crowded.bandwidth_


def test_lengths_count_where_classes_crowd(tmp_path):
    rng = np.random.default_rng(0)
    y = np.arange(2400) % 2
    X = 2.0 * np.eye(2, 30)[y] + rng.normal(size=(2400, 3)) @ (0.05 * rng.normal(size=(3, 30)))
    crowded = ClasswiseNNKDetector(random_state=0).fit(X, y)
    scores = crowded.ood_score(X[:9])
    assert (crowded.ood_score(1.5 * X[:9]) > scores + 1).all()
    assert ((crowded.set_params(n_jobs=1).ood_score(X[:9])) == scores).all()
    crowded.save(tmp_path / "model")
    assert (load(tmp_path / "model").ood_score(1.5 * X[:9]) > scores + 1).all()
    few = ClasswiseNNKDetector(random_state=0).fit(X[:120], y[:120])
    assert few.ood_score(1.5 * X[:9]) == pytest.approx(few.ood_score(X[:9]), rel=1e-6)


def test_loose_or_unlabelled_rows_keep_their_distances():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(90, 20)), np.arange(90) % 3
    assert ClasswiseNNKDetector(random_state=0).fit(X, y).metric_ is None
    assert ClasswiseNNKDetector(random_state=0).fit(X).metric_ is None
    assert ClasswiseNNKDetector(random_state=0).fit(X, np.arange(90)).metric_ is None


def test_classes_are_explained_by_a_wider_kernel_than_rows_without_labels():
    rng = np.random.default_rng(0)
    y = np.arange(300) % 5
    X = 1.2 * np.eye(5, 40)[y] + 0.2 * rng.normal(size=(300, 40))
    blind = NNKDetector(random_state=0).fit(X)
    assert ClasswiseNNKDetector(random_state=0).fit(X, y).bandwidth_ > blind.dictionary_.bandwidth_
    alone = ClasswiseNNKDetector(random_state=0).fit(X)
    assert alone.bandwidth_ == pytest.approx(blind.dictionary_.bandwidth_, rel=0.1)


def test_rows_that_lie_far_apart_are_kept_as_they_are():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(400, 60)), np.arange(400) % 4
    assert len(ClasswiseNNKDetector(random_state=0).fit(X, y).atoms_) == 400
    assert len(ClasswiseNNKDetector(10, random_state=0).fit(X, y).atoms_) == 40
    together = np.repeat(X[:100], 4, axis=0) + 0.1 * rng.normal(size=(400, 60))
    assert len(ClasswiseNNKDetector(random_state=0).fit(together, y).atoms_) == 100


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
    assert (learned_scores(detector, X, y) == detector.ood_score(X)).all()


@pytest.mark.parametrize("kind", [NNKDetector, ClasswiseNNKDetector])
def test_what_all_rows_have_in_common_counts_for_less(kind, tmp_path):
    rng = np.random.default_rng(1)
    X = rng.normal(size=(300, 24)).astype(np.float32)
    X[:, 0] += 3.0
    y = np.arange(300) % 3
    queries = rng.normal(size=(50, 24)).astype(np.float32)
    detector = kind(random_state=0).fit(X, y)
    unit_rows = X / np.linalg.norm(X, axis=1, keepdims=True)
    np.testing.assert_allclose(detector.common_, unit_rows.mean(axis=0) / 8, atol=1e-6)
    sigma = detector.bandwidth_ if kind is ClasswiseNNKDetector else detector.dictionary_.bandwidth_
    plain = kind(random_state=0, bandwidth=sigma).fit(X, y)
    assert plain.common_ is None
    expected = 2.0 * queries @ detector.common_ / np.linalg.norm(queries, axis=1)
    if kind is ClasswiseNNKDetector:  # the same dictionaries, asked without the discount
        detector.common_, kept = None, detector.common_
        detector.prepare()
        without = detector.ood_score(queries)
        detector.common_ = kept
        detector.prepare()
    else:
        without = detector.dictionary_.encode(queries).ood_score
    np.testing.assert_allclose(detector.ood_score(queries) - without, expected, atol=1e-6)
    assert [why.ood_score for why in detector.explain(queries)] == detector.ood_score(
        queries
    ).tolist()
    assert detector.stored_bytes_ > sum(d.stored_bytes_ for d in _dictionaries(detector))
    detector.save(tmp_path / "model")
    assert (load(tmp_path / "model").ood_score(queries) == detector.ood_score(queries)).all()
    budget = kind(random_state=0, max_bytes=3000).fit(X, y)
    assert budget.common_ is not None
    assert budget.stored_bytes_ <= 3000
    # Rows that point everywhere have nothing in common, and a tiny budget no room for it.
    assert kind(random_state=0).fit(queries).common_ is None
    tiny = 300 if kind is ClasswiseNNKDetector else 190
    assert kind(random_state=0, max_bytes=tiny).fit(X, y).common_ is None


def _dictionaries(detector):
    return getattr(detector, "dictionaries_", None) or [detector.dictionary_]


@pytest.mark.parametrize("kind", [NNKDetector, ClasswiseNNKDetector])
def test_the_mean_of_few_collapsed_classes_is_nothing_they_have_in_common(kind):
    rng = np.random.default_rng(0)
    y = np.repeat([0, 1], 100)
    X = np.eye(2, 30)[y] + 0.02 * rng.normal(size=(200, 30))
    assert kind(random_state=0).fit(X, y).common_ is None
    assert kind(random_state=0, max_bytes=4000).fit(X, y).common_ is None
