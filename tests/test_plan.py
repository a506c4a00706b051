"""The plan: few decisions, each continuous, made in one place, obeyed and overridable."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.base import clone

from outscope import ClasswiseNNKDetector, InputError, NNKDetector, load
from outscope.decisions.metrics import auroc
from outscope.learning.geometry import ONE_CLASS, Geometry, Grouping
from outscope.learning.plan import DECISIONS, Plan, make_plan, plan_view

ASKED = NNKDetector().get_params(deep=False)
FIELDS = ("n_atoms", "n_neighbors", "bandwidth", "whitening", "lengths", "common", "precision")


def lying(gap=0.4, spread=1.6, common=0.1, rows=4000, width=100):
    return Geometry(rows=rows, width=width, gap=gap, spread=spread, common=common)


def planned(geometry=None, grouping=ONE_CLASS, **asked):
    asked, geometry = {**ASKED, **asked}, geometry or lying()
    view = plan_view(asked, geometry.rows, geometry.width, grouping)
    return make_plan(asked, geometry, grouping, view)


def test_there_are_at_most_eight_decisions_that_look_at_the_data():
    """Every field that changes with any fact is one of those listed, and none is listed in vain."""
    base, moved = planned(precision="auto"), set()
    for geometry, grouping in (
        (lying(gap=0.1), ONE_CLASS),
        (lying(gap=0.9), ONE_CLASS),
        (lying(common=0.4), ONE_CLASS),
        (lying(rows=50), ONE_CLASS),
        (lying(), Grouping(20, 0.1)),
        (lying(), Grouping(20, 0.9)),
    ):
        one = planned(geometry, grouping, precision="auto")
        moved |= {name for name in FIELDS if getattr(one, name) != getattr(base, name)}
    named = {name.split()[0] for name in DECISIONS}
    # Candidates follow from whether there are classes, and look at no row.
    assert moved - {"n_neighbors"} == named
    assert len(DECISIONS) <= 8


@pytest.mark.parametrize(
    ("facts", "field", "value"),
    [
        ({"gap": 0.4}, "bandwidth", 0.05 * (1 + 0.4**2)),
        ({"gap": 0.01}, "bandwidth", 0.32125),
        ({"gap": 1e-3}, "bandwidth", 0.8),
        ({"gap": 0.0}, "bandwidth", 1.0),
        ({"common": 0.2}, "common", 0.1),
        ({"common": 0.2, "gap": 0.1}, "common", 0.025),
        ({"common": 0.2, "gap": 0.002}, "common", 0.0),
        ({"rows": 400}, "n_atoms", 100),
        ({"rows": 40}, "n_atoms", 40),
        ({"rows": 100_000}, "n_atoms", 2000),
    ],
)
def test_decisions_without_labels(facts, field, value):
    assert getattr(planned(lying(**facts)), field) == pytest.approx(value)


@pytest.mark.parametrize(
    ("classes", "within", "whitening", "lengths"),
    [
        (20, 0.5, 0.0, 0.0),
        (20, 0.75, 0.225, 0.0),
        (20, 1.0, 0.45, 0.0),
        (20, 0.05, 0.45, 0.9),
        (2, 0.05, 0.0, 0.9),
        (1, 1.0, 0.0, 0.0),
    ],
)
def test_decisions_from_labels(classes, within, whitening, lengths):
    plan = planned(grouping=Grouping(classes, within))
    assert (plan.whitening, plan.lengths) == pytest.approx((whitening, lengths))
    if classes > 1:
        assert plan.bandwidth == pytest.approx(1.6 / 13)


def test_no_decision_jumps():
    """A fact that moves by a thousandth moves each decision by little: no seed flips a regime."""
    for name, values in {
        "gap": np.geomspace(0.02, 1.5, 400),
        "common": np.linspace(0.0, 0.9, 400),
    }.items():
        plans = [planned(lying(**{name: v})) for v in values]
        for field in ("bandwidth", "common"):
            found = np.array([getattr(plan, field) for plan in plans])
            assert np.abs(np.diff(found)).max() < 0.1 * max(np.ptp(found), 0.05)
    plans = [planned(grouping=Grouping(30, w)) for w in np.linspace(0.0, 1.0, 400)]
    for field in ("whitening", "lengths", "bandwidth"):
        assert np.abs(np.diff([getattr(plan, field) for plan in plans])).max() < 0.022


@pytest.mark.parametrize("seed", range(10))
def test_no_seed_flips_a_regime(seed):
    """Where half of the variance lies within classes, ten draws are planned alike."""
    rng = np.random.default_rng(seed)
    y = np.arange(600) % 6
    X = np.eye(6, 30)[y] + rng.normal(size=(600, 30)) / 6.0
    plan = ClasswiseNNKDetector(random_state=seed).fit(X, y).plan_
    first = ClasswiseNNKDetector(random_state=0).fit(X[:500], y[:500]).plan_
    for field in ("whitening", "lengths", "bandwidth", "common"):
        assert getattr(plan, field) == pytest.approx(getattr(first, field), abs=0.05)


def clusters(n=400, seed=0, width=30):
    rng = np.random.default_rng(seed)
    y = np.arange(n) % 5
    X = np.eye(5, width)[y] + 0.15 * rng.normal(size=(n, width)) + 0.3
    return X.astype(np.float32), y


@pytest.mark.parametrize("kind", [NNKDetector, ClasswiseNNKDetector])
@pytest.mark.parametrize("field", FIELDS)
def test_giving_what_the_plan_chose_gives_the_same_bits(kind, field):
    X, y = clusters()
    chosen = kind(precision="auto", random_state=0).fit(X, y)
    given = clone(chosen).set_params(**{field: getattr(chosen.plan_, field)}).fit(X, y)
    assert given.plan_ == chosen.plan_
    queries, _ = clusters(seed=1)
    np.testing.assert_array_equal(given.ood_score(queries), chosen.ood_score(queries))


def test_the_plan_is_saved_and_says_why(tmp_path):
    X, y = clusters()
    detector = ClasswiseNNKDetector(random_state=0).fit(X, y)
    detector.save(tmp_path / "model")
    plan = load(tmp_path / "model").plan_
    assert plan == detector.plan_
    assert dict(plan.reasons) == {name: why for name, _, why in detector.planned_}
    assert Plan.from_rows(plan.rows()) == plan
    told = {name: reason for name, _, reason in plan.rows()}
    assert "5 classes" in told["whitening"]
    assert all(told.values())


@pytest.mark.parametrize("kind", [NNKDetector, ClasswiseNNKDetector])
def test_what_all_rows_have_in_common_counts_less(kind, tmp_path):
    X, y = clusters()
    detector = kind(common=0.1, whitening=0.0, lengths=0.0, random_state=0).fit(X, y)
    unit = X / np.linalg.norm(X, axis=1, keepdims=True)
    np.testing.assert_allclose(detector.common_, 0.1 * unit.mean(axis=0), atol=1e-6)
    plain = kind(common=0.0, whitening=0.0, lengths=0.0, random_state=0).fit(X, y)
    assert plain.common_ is None
    queries, _ = clusters(50, seed=1)
    more = 2.0 * queries @ detector.common_ / np.linalg.norm(queries, axis=1)
    np.testing.assert_allclose(
        detector.ood_score(queries) - plain.ood_score(queries), more, atol=1e-6
    )
    detector.save(tmp_path / "model")
    assert (load(tmp_path / "model").ood_score(queries) == detector.ood_score(queries)).all()


def tight(n_classes=6, each=60, width=12):
    """Classes that vary along a few directions only, and rows off those directions."""
    rng = np.random.default_rng(0)
    centres = 10.0 * np.eye(n_classes, width)
    y = np.repeat(np.arange(n_classes), each)
    scale = np.where(np.arange(width) < 3, 1.5, 0.05)
    X, inside, strange = (centres[y] + rng.normal(size=(len(y), width)) * scale for _ in range(3))
    strange[:, -1] += 1.0
    return X, y, np.concatenate([inside, strange]), np.repeat([0, 1], len(y))


def test_whitening_weighs_directions_by_how_rows_vary_within_classes(tmp_path):
    X, y, queries, is_ood = tight()
    detector = ClasswiseNNKDetector(random_state=0).fit(X, y)
    assert detector.plan_.whitening > 0.3
    plain = ClasswiseNNKDetector(whitening=0.0, lengths=0.0, random_state=0).fit(X, y)
    assert plain.metric_ is None
    found = auroc(is_ood, detector.ood_score(queries))
    assert found > auroc(is_ood, plain.ood_score(queries)) + 0.05
    assert (detector.nearest_class(queries[: len(y)]) == y).mean() > 0.95
    scores = detector.ood_score(queries)
    assert (detector.set_params(n_jobs=1).ood_score(queries) == scores).all()
    assert [detector.ood_score(row[None])[0] for row in queries[:20]] == scores[:20].tolist()
    detector.save(tmp_path / "model")
    assert (load(tmp_path / "model").ood_score(queries) == scores).all()
    whitened = NNKDetector(whitening=0.5, random_state=0).fit(X)
    assert whitened.metric_.shape == (12, 12)
    told = [why.ood_score for why in whitened.explain(queries[:3])]
    assert told == whitened.ood_score(queries[:3]).tolist()


def test_collapsed_classes_keep_something_of_their_lengths():
    X, y, _, _ = tight()
    detector = ClasswiseNNKDetector(random_state=0).fit(X, y)
    assert 0.5 < detector.plan_.lengths < 1.0
    # Half as long is strange; unit rows could not tell.
    assert np.median(detector.ood_score(0.5 * X)) > np.quantile(detector.held_out_scores_, 0.95)
    unit = ClasswiseNNKDetector(lengths=0.0, random_state=0).fit(X, y)
    assert unit.ood_score(0.5 * X[:9]) == pytest.approx(unit.ood_score(X[:9]), abs=1e-6)


def test_few_rows_and_tiny_budgets_learn_no_metric():
    X, y, _, _ = tight()
    few = ClasswiseNNKDetector(random_state=0).fit(X[::4], y[::4])
    assert (few.plan_.whitening, few.plan_.lengths) == (0.0, 0.0)
    assert "too few" in few.plan_.reasons["whitening"]
    small = ClasswiseNNKDetector(max_bytes=1100, random_state=0).fit(X, y)
    assert small.metric_ is None
    assert small.stored_bytes_ <= 1100
    for wrong in ({"whitening": -1}, {"lengths": "long"}, {"common": np.nan}):
        with pytest.raises(InputError, match=next(iter(wrong))):
            NNKDetector(**wrong).fit(X)


@pytest.mark.parametrize("method", ["nnk-means", "c-nnk-means", "knn"])
def test_a_verdict_takes_one_coding_pass(method, monkeypatch):
    """Score, p-value, decision, class and reasons are read off one look at the rows."""
    from outscope import TextDetector
    from outscope.engine.blocks import Engine

    def letters(some):
        return [[t.count(c) + 0.1 for c in "abcdeinorst lpwy"] for t in some]

    texts = [f"pay my {w} now" for w in ["bill", "rent", "loan", "card", "fees"]] * 20
    texts = [f"{text} {'x' * (i % 7)}" for i, text in enumerate(texts)]
    detector = TextDetector(letters, method, holdout=30).fit(texts, [t[7:9] for t in texts])
    rows, passes = detector.rows_of(texts[:40]), []
    run = Engine.run
    monkeypatch.setattr(Engine, "run", lambda *a, **k: (passes.append(1), run(*a, **k))[1])
    verdicts = detector.judge(rows)
    assert len(passes) == 1
    assert all(v.nearest for v in verdicts)
    if method != "knn":
        passes.clear()
        reasons = detector.detector_.explain(rows)
        assert len(passes) == 1
        for verdict, why in zip(verdicts, reasons, strict=True):
            assert verdict.ood_score == why.ood_score
            assert verdict.is_ood == why.is_ood
            assert verdict.label in (why.label, "out of scope")
