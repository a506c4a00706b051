"""Lessons: what to refuse, what to accept after all, and that the promise survives them."""

from __future__ import annotations

import json
import threading

import numpy as np
import pytest

import outscope
from outscope import (
    ClasswiseNNKDetector,
    InputError,
    KNNDetector,
    NNKDetector,
    NoPromiseWarning,
    TextDetector,
)
from outscope.cli import main
from outscope.decisions.threshold import ConformalThreshold
from outscope.errors import InScopeExampleWarning

KINDS = (NNKDetector, ClasswiseNNKDetector)
SETTINGS = (
    {},
    {"kernel": "cosine"},
    {"precision": "int4"},
    {"whitening": 0.5, "lengths": 0.5},
    {"normalize": False},
)


def around(place, n, seed):
    noise = np.random.default_rng([seed, place]).normal(0, 0.13, (n, 32))
    return (3 * np.eye(32)[place] + 3 * noise).astype(np.float32)


def inside(n, seed):
    return np.concatenate([around(place, n, seed) for place in range(6)])


X, Y = inside(60, 0), np.repeat(np.arange(6), 60)
HELD, FRESH = inside(30, 1), inside(40, 2)
TOLD, SEEN, UNSEEN = around(10, 12, 3), around(10, 80, 4), around(20, 80, 5)
QUERIES = np.concatenate([FRESH, SEEN, UNSEEN])


@pytest.fixture(scope="module", params=KINDS)
def fitted(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("fitted") / "model"
    request.param(random_state=0).fit(X, Y).calibrate(HELD).save(folder)
    return folder


@pytest.fixture
def detector(fitted):
    return outscope.load(fitted)


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("kind", KINDS)
def test_refusing_raises_what_is_like_it_and_lowers_nothing(kind, settings):
    detector = kind(random_state=0, n_atoms=40 if kind is NNKDetector else 8, **settings).fit(X, Y)
    before = detector.ood_score(QUERIES)
    usual = np.abs(before).mean()
    after = detector.refuse(TOLD).ood_score(QUERIES)
    raised = after - before
    assert (raised >= 0).all()
    own, seen, unseen = np.split(raised, [len(FRESH), len(FRESH) + len(SEEN)])
    assert seen.mean() > 0.2 * usual
    assert seen.mean() > 1.5 * unseen.mean()
    assert np.mean(own > 0) < 0.5
    assert own.mean() < 0.1 * seen.mean()
    assert set(detector.read(SEEN).told.refused) <= set(range(len(TOLD)))


def test_undo_gives_the_same_bits_and_the_same_cut(detector):
    before, cut, told = detector.ood_score(QUERIES), detector.threshold_, detector.promise_
    detector.refuse(TOLD)
    once, cut_once = detector.ood_score(QUERIES), detector.threshold_
    assert detector.promise_ == told
    detector.accept(SEEN[:2], names=["first", "second"])
    assert [lesson.verb for lesson in detector.lessons_] == ["refuse", "accept"]
    assert detector.lessons_[1].examples == ("first", "second")
    assert not np.array_equal(detector.ood_score(QUERIES), once)
    detector.undo()
    assert np.array_equal(detector.ood_score(QUERIES), once)
    assert detector.threshold_ == cut_once
    detector.undo()
    assert np.array_equal(detector.ood_score(QUERIES), before)
    assert detector.threshold_ == cut
    assert detector.lessons_ == ()
    with pytest.raises(InputError, match="no lesson to take back"):
        detector.undo()


def test_scores_do_not_depend_on_the_batch_the_order_or_the_threads(detector):
    detector.refuse(TOLD).accept(UNSEEN[:2])
    together, order = (
        detector.ood_score(QUERIES),
        np.random.default_rng(0).permutation(len(QUERIES)),
    )
    detector.n_jobs = 2
    assert np.array_equal(detector.ood_score(QUERIES[order]), together[order])
    one_by_one = np.concatenate(
        [detector.ood_score(QUERIES[i : i + 1]) for i in range(len(QUERIES))]
    )
    assert np.array_equal(one_by_one, together)
    assert np.array_equal(detector.read(QUERIES).ood_score, together)


def test_what_fit_is_told_is_a_lesson_too(detector):
    other = type(detector)(random_state=0).fit(X, Y, outside=TOLD).calibrate(HELD)
    detector.refuse(TOLD)
    assert np.array_equal(other.ood_score(QUERIES), detector.ood_score(QUERIES))
    assert other.lessons_ == detector.lessons_
    # Told before: all calibration rows count as they are; told after: as they were kept.
    assert other.threshold_ == detector.threshold_
    assert other.fit(X, Y).lessons_ == ()


def test_a_taught_model_is_saved_with_its_lessons(detector, tmp_path):
    detector.refuse(TOLD).accept(SEEN[:1])
    detector.save(tmp_path / "model")
    loaded = outscope.load(tmp_path / "model")
    assert np.array_equal(loaded.ood_score(QUERIES), detector.ood_score(QUERIES))
    assert loaded.lessons_ == detector.lessons_
    assert np.array_equal(loaded.undo().ood_score(QUERIES), detector.undo().ood_score(QUERIES))
    assert loaded.threshold_ == detector.threshold_


def test_the_threshold_is_set_again_from_rows_that_are_kept(detector):
    detector.refuse(TOLD)
    scores = detector.ood_score(HELD)
    assert detector.threshold_ == pytest.approx(ConformalThreshold(scores).cut(0.05), rel=1e-12)
    assert detector.p_value(HELD).min() > 0
    detector.set_threshold(value=7.0)
    assert detector.refuse(around(11, 3, 0)).threshold_ == 7.0


def test_false_alarms_stay_below_the_rate_that_is_promised():
    rates = []
    for draw in range(60):
        detector = NNKDetector(random_state=draw).fit(inside(15, 100 + draw))
        detector.calibrate(inside(10, 200 + draw))
        # In scope and next to what is refused: many calibration rows change their scores.
        near = around(0, 5, 300 + draw) + around(10, 5, 300 + draw)
        with pytest.warns() if detector.also_in_scope(near) else _nothing():
            detector.refuse(near).accept(around(12, 2, draw))
        assert detector.promise_ is not None
        rates.append(detector.is_ood(inside(50, 400 + draw)).mean())
    assert np.mean(rates) <= 0.05 + np.std(rates) / 60**0.5
    assert np.mean(rates) > 0.02


class _nothing:  # noqa: N801
    def __enter__(self):
        return self

    def __exit__(self, *_):
        return False


def test_accepting_brings_in_what_is_like_it_and_nothing_else(detector):
    before, flagged = detector.ood_score(QUERIES), detector.is_ood(UNSEEN)
    assert flagged.all()
    detector.accept(UNSEEN[:20])
    after = detector.ood_score(QUERIES)
    assert not detector.is_ood(UNSEEN[:20]).any()
    lowered = after < before
    assert lowered[-len(UNSEEN) :].mean() > 0.25
    # What is lowered is as near as in-scope rows are; everything else keeps its bits.
    assert (after[lowered] <= detector.outside_.reach_).all()
    assert np.array_equal(after[~lowered], before[~lowered])
    assert not lowered[: len(FRESH) + len(SEEN)].any()


def test_the_last_word_on_the_same_thing_counts(detector):
    detector.refuse(TOLD)
    assert detector.is_ood(TOLD).all()
    detector.accept(TOLD[:1])
    assert detector.is_ood(TOLD).tolist() == [False] + [True] * (len(TOLD) - 1)
    detector.refuse(TOLD[:1])
    assert detector.is_ood(TOLD[:1]).all()


def test_many_examples_are_learned_into_fewer_atoms(detector):
    own = detector.stored_bytes_
    detector.refuse(around(10, 500, 6))
    side = detector.outside_.refused_
    assert len(side.atoms_) == 400
    assert side.precision_ == detector.plan_.precision
    assert detector.stored_bytes_ == own + side.stored_bytes_
    assert detector.teaching_bytes_ > 500 * 32
    detector.undo().refuse(around(10, 200, 6))
    assert len(detector.outside_.refused_.atoms_) == 200
    again = type(detector)(precision="int8", random_state=0).fit(X, Y, outside=TOLD)
    assert again.outside_.refused_.stored_atoms_.dtype == np.int8


def test_copies_among_the_examples_are_all_named(detector):
    detector.refuse(np.repeat(TOLD[:3], 2, axis=0))
    assert (detector.read(SEEN).told.refused >= 0).all()


def test_an_example_that_is_also_in_scope_gets_a_warning_that_names_both(detector):
    with pytest.warns(InScopeExampleWarning, match=r"'X\[1\]' is like 'training row \d+'"):
        detector.refuse(np.concatenate([TOLD[:1], X[:1]]))
    assert len(detector.lessons_) == 1


def test_fit_finds_every_copy_among_its_rows():
    with pytest.warns(InScopeExampleWarning) as caught:
        NNKDetector(random_state=0).fit(X, outside=np.concatenate([TOLD[:1], X[[7, 300]]]))
    assert "'outside[1]' is like 'training row 7'" in str(caught[0].message)
    assert "'outside[2]' is like 'training row 300'" in str(caught[0].message)


def test_reasons_name_the_refused_example(detector):
    detector.refuse(TOLD, names=[f"told {i}" for i in range(len(TOLD))])
    reasons = detector.explain(np.concatenate([SEEN[:5], FRESH[:5]]))
    assert all(one.refused_like.startswith("told ") for one in reasons[:5])
    assert [one.refused_like for one in reasons[5:] if not one.is_ood] == [None] * sum(
        not one.is_ood for one in reasons[5:]
    )
    assert detector.explain(TOLD[4:5])[0].refused_like == "told 4"
    assert "refused_like" in reasons[0].as_dict()


def test_an_estimate_follows_the_scores():
    detector = NNKDetector(random_state=0).fit(X)
    near, cut = (around(0, 4, 8) + around(10, 4, 8)) / 2, detector.threshold_
    near, held = np.concatenate([near, inside(3, 7)]), detector.held_out_scores_
    scores = detector.refuse(near).ood_score(inside(100, 9))
    assert detector.promise_ is None
    rate = detector.is_ood(inside(100, 9)).mean()
    assert 0.02 < rate < 0.08
    assert detector.threshold_ > cut
    assert (scores > cut).mean() >= rate
    assert not np.array_equal(detector.held_out_scores_, held)
    assert 0.05 < detector.set_threshold(fpr=0.1).is_ood(inside(100, 9)).mean() < 0.15
    detector.undo()
    assert np.array_equal(detector.held_out_scores_, held)


def test_a_lesson_near_the_border_lifts_few_in_scope_rows_over_the_threshold(detector):
    near, new = (around(0, 4, 8) + around(10, 4, 8)) / 2, inside(100, 9)
    cut, before = detector.threshold_, detector.ood_score(new)
    after = detector.refuse(near).ood_score(new)
    assert detector.is_ood(near).all()
    assert (before > cut).mean() <= (after > cut).mean() < (before > cut).mean() + 0.01


def test_one_example_lifts_fewer_in_scope_rows_than_many(detector):
    told = around(0, 20, 8) / 2 + around(10, 20, 8) / 2
    lifted = [
        (detector.after("refuse", told[:n]).ood_score(FRESH) > detector.ood_score(FRESH)).mean()
        for n in (1, 20)
    ]
    assert lifted[0] < 0.05 < lifted[1]


@pytest.mark.filterwarnings("ignore::outscope.errors.InScopeExampleWarning")
def test_a_text_that_looked_in_scope_is_refused_once_it_was_told(detector):
    new = FRESH[~detector.is_ood(FRESH)][::10]
    assert all(detector.after("refuse", row[None]).is_ood(row[None])[0] for row in new)


def test_without_kept_rows_the_promise_is_withdrawn():
    small = NNKDetector(max_bytes=4000, random_state=0).fit(X).calibrate(HELD)
    cut = small.threshold_
    assert small.teaching_bytes_ == 0
    with pytest.warns(NoPromiseWarning, match="calibrate again"):
        small.refuse(TOLD)
    assert small.promise_ is None
    assert small.threshold_ == cut
    assert small.is_ood(SEEN).all()
    assert small.calibrate(HELD).promise_ is not None


@pytest.mark.parametrize("kind", KINDS)
def test_lessons_last_while_learning_goes_on(kind):
    detector = kind(random_state=0).partial_fit(X[::2], Y[::2]).refuse(TOLD)
    detector.partial_fit(X[1::2], Y[1::2])
    assert detector.is_ood(SEEN).all()
    assert detector.is_ood(FRESH).mean() < 0.2
    assert detector.undo().lessons_ == ()
    assert np.isfinite(detector.ood_score(QUERIES)).all()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"X": TOLD[:, :5]}, "X has 5 features"),
        ({"X": TOLD[:0]}, "X: Found array with 0 sample"),
        ({"X": np.full((1, 32), np.nan)}, "NaN"),
        ({"X": TOLD, "names": ["one"]}, "names has 1 entries for 12 rows"),
        ({"X": np.ones((10_001, 32))}, "10,001 examples"),
    ],
)
def test_a_lesson_that_cannot_be_used_changes_nothing(detector, given, words):
    before = detector.ood_score(QUERIES)
    with pytest.raises(InputError, match=words):
        detector.accept(**given)
    assert detector.lessons_ == ()
    assert np.array_equal(detector.ood_score(QUERIES), before)


def test_a_fit_that_cannot_use_its_examples_leaves_nothing():
    detector = NNKDetector(random_state=0)
    with pytest.raises(InputError, match="outside: X has 5 features"):
        detector.fit(X, outside=TOLD[:, :5])
    assert not hasattr(detector, "offset_")


# ---- texts

WORDS = {
    "refund": ["money", "back", "refund", "charge", "paid"],
    "lock": ["lock", "open", "stuck", "key", "shut"],
    "route": ["map", "way", "street", "left", "north"],
    "hiring": ["job", "hire", "salary", "apply", "career"],
    "weather": ["rain", "sun", "cloud", "wind", "storm"],
}


def sentences(topic, n, seed=0):
    rng = np.random.default_rng([seed, len(topic), ord(topic[0])])
    return [" ".join(rng.choice(WORDS[topic], 3, replace=False)) + f" {i}" for i in range(n)]


def spell(texts):
    """Counts of known words: a small encoder that is exact and quick."""
    known = [word for words in WORDS.values() for word in words]
    rows = np.array([[text.lower().count(word) for word in known] for text in texts], np.float32)
    extra = [[0.02 * (sum(map(ord, text)) % 17)] for text in texts]
    return np.hstack([rows, np.array(extra, np.float32)]) + 0.01


INSIDE = [text for topic in ("refund", "lock", "route") for text in sentences(topic, 60)]
TOPICS = np.repeat(["refund", "lock", "route"], 60)
JOBS, NEW_JOBS = sentences("hiring", 8), sentences("hiring", 8, seed=1)


@pytest.fixture
def router():
    return TextDetector(spell, cache=False).fit(INSIDE, TOPICS)


def test_verdicts_name_the_text_that_was_refused(router, tmp_path):
    assert router.predict(NEW_JOBS)[0].refused_like is None
    router.refuse(JOBS)
    verdicts = router.predict([*NEW_JOBS, INSIDE[0]])
    assert {v.refused_like for v in verdicts[:-1]} <= set(JOBS)
    assert verdicts[-1].refused_like is None
    assert verdicts[0].as_dict()["refused_like"] in JOBS
    router.save(tmp_path / "model")
    loaded = outscope.load(tmp_path / "model", encoder=spell)
    assert loaded.predict(NEW_JOBS) == verdicts[:-1]
    assert loaded.lessons_ == router.lessons_
    assert not loaded.accept(NEW_JOBS[:1]).is_ood(NEW_JOBS[:1]).any()
    assert loaded.undo().predict(NEW_JOBS) == verdicts[:-1]


def test_fit_takes_texts_to_refuse_and_warns_of_copies():
    told = [*JOBS, INSIDE[3].upper()]
    with pytest.warns(InScopeExampleWarning) as caught:
        router = TextDetector(spell, cache=False).fit(INSIDE, TOPICS, outside=told)
    words = str(caught[0].message)
    assert repr(INSIDE[3].upper()) in words
    assert repr(INSIDE[3]) in words
    assert router.lessons_[0].examples == tuple(told)
    assert router.promise_ is not None


@pytest.mark.parametrize("texts", [[], [" "], ["fine", ""]])
def test_texts_to_refuse_say_something(router, texts):
    with pytest.raises(InputError, match="give texts to refuse"):
        router.refuse(texts)


def test_detectors_without_dictionaries_cannot_be_taught():
    router = TextDetector(spell, "knn", cache=False).fit(INSIDE)
    assert router.lessons_ == ()
    with pytest.raises(InputError, match="KNNDetector cannot be taught"):
        router.refuse(JOBS)
    assert not hasattr(KNNDetector(), "refuse")


def test_other_threads_see_a_lesson_as_a_whole_or_not_at_all(router):
    rows = router.rows_of([*NEW_JOBS, *INSIDE[:20]])
    plain = router.judge(rows)
    taught = router.refuse(JOBS).judge(rows)
    router.undo()
    assert plain != taught
    odd, stop = [], threading.Event()

    def score():
        while not stop.is_set():
            found = router.judge(rows)
            if found not in (plain, taught):
                odd.append(found)

    threads = [threading.Thread(target=score) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(15):
        router.refuse(JOBS).undo()
    stop.set()
    for thread in threads:
        thread.join()
    assert odd == []
    assert router.judge(rows) == plain


def test_lessons_of_many_threads_are_all_kept(router):
    texts = sentences("weather", 6)
    threads = [threading.Thread(target=router.refuse, args=([text],)) for text in texts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(lesson.examples[0] for lesson in router.lessons_) == sorted(texts)


# ---- the command line


def test_a_model_is_taught_from_files(tmp_path, capsys):
    for name, rows in {"in": X, "told": TOLD, "seen": SEEN[:4], "fine": SEEN[:1]}.items():
        np.save(tmp_path / f"{name}.npy", rows)
    at = {name: str(tmp_path / f"{name}.npy") for name in ("in", "told", "seen", "fine")}
    model = str(tmp_path / "model")
    assert main(["fit", at["in"], "--out", model, "--outside", at["told"]]) == 0
    capsys.readouterr()
    assert main(["explain", model, at["seen"]]) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert all(record["refused_like"].startswith("example ") for record in found)
    assert main(["teach", model, "--accept", at["fine"]]) == 0
    told = capsys.readouterr()
    assert "P(false alarm) ≤ 5 %" in told.err
    assert told.out.splitlines()[-1] == "2\taccept\texample 13"
    assert not outscope.load(model).is_ood(SEEN[:1]).any()
    assert main(["teach", model, "--undo"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(TOLD)
    assert main(["info", model]) == 0
    assert json.loads(capsys.readouterr().out)["lessons"] == "refuse 12"
    assert main(["teach", model, "--undo", "--undo"]) == 0
    assert main(["teach", model, "--undo"]) == 2
    assert "no lesson to take back" in capsys.readouterr().err


def test_commands_say_what_cannot_be_taught(tmp_path, capsys):
    np.save(tmp_path / "in.npy", X)
    (tmp_path / "texts.txt").write_text("one\ntwo\n")
    rows, model = str(tmp_path / "in.npy"), str(tmp_path / "model")
    told = ["--outside", rows]
    assert main(["fit", rows, "--out", model, "--method", "knn", *told]) == 2
    assert "knn cannot" in capsys.readouterr().err
    assert main(["fit", rows, "--out", model, "--outside", str(tmp_path / "texts.txt")]) == 2
    assert "holds texts, but rows are needed" in capsys.readouterr().err
    assert main(["fit", rows, "--out", model, "--method", "knn"]) == 0
    capsys.readouterr()
    assert main(["teach", model, "--refuse", rows]) == 2
    assert "KNNDetector, which cannot be taught" in capsys.readouterr().err
