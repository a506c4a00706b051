"""ONNX export: the graph gives the detector's own scores, in ONNX Runtime."""

from __future__ import annotations

import numpy as np
import pytest
from plugs import INSIDE, OUTSIDE, fitted

from outscope import ClasswiseNNKDetector, InputError, KNNDetector, MissingExtraError, NNKDetector
from outscope.cli import main
from outscope.engine.kernels.nnls import solve_batch

onnx = pytest.importorskip("onnx", reason="onnx is not installed")
runtime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")

from outscope.integrations.onnx_export import export_onnx, onnx_model  # noqa: E402
from outscope.integrations.onnx_graph import Graph  # noqa: E402
from outscope.integrations.onnx_solver import solve_energy  # noqa: E402

PAPER = {"kernel": "cosine", "update": "mod", "n_neighbors": 20, "n_fit_neighbors": None}


def scorer(model):
    quiet = runtime.SessionOptions()
    quiet.intra_op_num_threads = quiet.inter_op_num_threads = 1
    content = model if isinstance(model, str) else model.SerializeToString()
    session = runtime.InferenceSession(content, quiet, providers=["CPUExecutionProvider"])
    return lambda rows: session.run(["ood_score", "is_ood"], {"rows": rows.astype(np.float32)})


@pytest.fixture(scope="module")
def queries(blobs):
    train, _, fresh, far = blobs
    zero, lengths = np.zeros((1, 24)), 10.0 ** np.arange(-3, 3)[:, None]
    return np.concatenate([train[::5], fresh, far, -train[:9], zero, fresh[:6] * lengths])


@pytest.mark.parametrize(
    "made",
    [
        NNKDetector(),
        NNKDetector(n_atoms=20, precision="int8"),
        NNKDetector(n_atoms=4, n_neighbors=10),
        NNKDetector(n_atoms=30, **PAPER),
        NNKDetector(normalize=False),
        NNKDetector(n_atoms=40, common=0.8),
        NNKDetector(n_atoms=40, whitening=0.7, lengths=0.5),
        ClasswiseNNKDetector(n_atoms=9),
        ClasswiseNNKDetector(n_atoms=9, n_neighbors=4, common=0.0),
        ClasswiseNNKDetector(n_atoms=9, **PAPER),
        ClasswiseNNKDetector(n_atoms=9, whitening=0.0, lengths=0.0, normalize=False),
        ClasswiseNNKDetector(n_atoms=9, whitening=0.5, lengths=0.0, kernel="cosine"),
        ClasswiseNNKDetector(n_atoms=9, whitening=0.5, lengths=1.0),
        NNKDetector(n_atoms=40, support=4.0),
        ClasswiseNNKDetector(n_atoms=9, support=4.0, whitening=0.5, lengths=1.0),
    ],
    ids=str,
)
def test_scores_and_decisions_are_the_detectors_own(made, blobs, queries):
    train, labels, _, _ = blobs
    detector = made.set_params(random_state=0).fit(train, labels)
    ours = detector.ood_score(queries.astype(np.float32))
    scores, strange = scorer(onnx_model(detector))(queries)
    np.testing.assert_allclose(scores, ours, rtol=1e-11, atol=1e-12)
    clear = np.abs(ours - detector.threshold_) > 1e-9
    np.testing.assert_array_equal(strange[clear], detector.decide(ours).is_ood[clear])


def test_classes_of_very_different_sizes(blobs, queries):
    train, labels, _, _ = blobs
    few = np.r_[0:60, 60:63, 120:121]
    detector = ClasswiseNNKDetector(n_atoms=40, random_state=0).fit(train[few], labels[few])
    ours = detector.ood_score(queries.astype(np.float32))
    np.testing.assert_allclose(
        scorer(onnx_model(detector))(queries)[0], ours, rtol=1e-11, atol=1e-12
    )
    one = ClasswiseNNKDetector(n_atoms=9, random_state=0).fit(train)
    ours = one.ood_score(queries.astype(np.float32))
    np.testing.assert_allclose(scorer(onnx_model(one))(queries)[0], ours, rtol=1e-11, atol=1e-12)


@pytest.mark.filterwarnings("ignore::outscope.errors.InScopeExampleWarning")
@pytest.mark.parametrize("lessons", ["refuse", "accept", "both"])
@pytest.mark.parametrize(
    "made",
    [
        NNKDetector(n_atoms=40),
        NNKDetector(n_atoms=30, **PAPER),
        ClasswiseNNKDetector(n_atoms=9, whitening=0.5, lengths=1.0),
        NNKDetector(n_atoms=40, support=4.0, common=0.8),
    ],
    ids=str,
)
def test_what_was_taught_counts(made, lessons, blobs, queries):
    train, labels, fresh, far = blobs
    detector = made.set_params(random_state=0).fit(train, labels)
    before = detector.ood_score(queries.astype(np.float32))
    if lessons != "accept":
        detector.refuse(np.concatenate([fresh[:1], -fresh[30:33]]))
    if lessons != "refuse":
        detector.accept(far[:5])
    ours = detector.ood_score(queries.astype(np.float32))
    assert (ours != before).any()
    np.testing.assert_allclose(
        scorer(onnx_model(detector))(queries)[0], ours, rtol=1e-11, atol=1e-12
    )


@pytest.mark.parametrize("made", [NNKDetector(n_atoms=30), ClasswiseNNKDetector(n_atoms=30)])
def test_more_neighbours_than_columns(made, blobs, queries):
    """Under the cosine kernel the 20 atoms of each problem depend on each other."""
    detector = made.set_params(**PAPER, random_state=0).fit(blobs[0][:, :8], blobs[1])
    ours = detector.ood_score(queries[:, :8].astype(np.float32))
    scores = scorer(onnx_model(detector))(queries[:, :8])[0]
    np.testing.assert_allclose(scores, ours, rtol=1e-9, atol=1e-9)


def test_a_detector_that_searches_with_an_index_is_exported_exactly(blobs, queries, monkeypatch):
    pytest.importorskip("faiss", reason="faiss is not installed")
    detector = NNKDetector(n_atoms=40, search="faiss", random_state=0).fit(blobs[0])
    exact = NNKDetector(n_atoms=40, random_state=0).fit(blobs[0])
    monkeypatch.setattr("outscope.engine.approximate.FEWEST", 8)
    np.testing.assert_allclose(
        scorer(onnx_model(detector))(queries)[0],
        exact.ood_score(queries.astype(np.float32)),
        rtol=1e-11,
        atol=1e-12,
    )


def test_local_problems_are_solved_exactly():
    """Random problems, many with equal or dependent atoms, against the engine's solver."""
    rng, k, p = np.random.default_rng(0), 12, 400
    atoms = rng.normal(size=(p, k, 8)) * rng.uniform(0.2, 1.0, size=(p, 1, 1)) + 0.5
    atoms[::3, 5] = atoms[::3, 2]
    atoms[1::3, 7] = 0.5 * (atoms[1::3, 3] + atoms[1::3, 4])
    grams = atoms @ atoms.transpose(0, 2, 1)
    targets = (atoms @ rng.normal(size=(p, 8, 1)))[:, :, 0]
    codes = np.empty((p, k))
    solve_batch(grams, targets, codes)
    graph = Graph()
    energy = solve_energy(graph, "gram", "targets", k)
    helper, double = onnx.helper, onnx.TensorProto.DOUBLE
    given = [
        helper.make_tensor_value_info("gram", double, ["p", k, k]),
        helper.make_tensor_value_info("targets", double, ["p", k]),
    ]
    found = [helper.make_tensor_value_info(energy, double, ["p", 1])]
    opset = [helper.make_opsetid("", 18)]
    model = helper.make_model(graph.finish("g", given, found), opset_imports=opset, ir_version=8)
    session = runtime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    got = session.run(None, {"gram": grams, "targets": targets})[0][:, 0]
    want = (codes * targets).sum(axis=1)
    np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-9)


def test_rows_with_nan_are_not_in_scope(blobs):
    detector = NNKDetector(n_atoms=20, random_state=0).fit(blobs[0])
    rows = blobs[2][:3].copy()
    rows[1, 4] = np.nan
    scores, strange = scorer(onnx_model(detector))(rows)
    assert np.isnan(scores).tolist() == [False, True, False]
    assert strange[1]
    np.testing.assert_allclose(scores[[0, 2]], detector.ood_score(rows[[0, 2]]), rtol=1e-11)


def test_export_from_the_command_line(blobs, tmp_path, capsys):
    detector = NNKDetector(n_atoms=20, random_state=0).fit(blobs[0]).calibrate(blobs[2], fpr=0.1)
    detector.save(tmp_path / "model")
    file = tmp_path / "scorer.onnx"
    assert main(["export", str(tmp_path / "model"), "--out", str(file)]) == 0
    assert "rows (n, 24) float32" in capsys.readouterr().err
    scores, strange = scorer(str(file))(blobs[3])
    np.testing.assert_allclose(scores, detector.ood_score(blobs[3]), rtol=1e-11)
    assert strange.all()
    notes = {entry.key: entry.value for entry in onnx.load(file).metadata_props}
    assert float(notes["threshold"]) == detector.threshold_
    assert "10 %" in notes["promise"]


def test_of_a_model_of_texts_the_rest_after_the_encoder_is_exported(tmp_path, capsys):
    detector, folder = fitted(tmp_path)
    file = tmp_path / "scorer.onnx"
    assert main(["export", folder, "--out", str(file)]) == 0
    assert "the file does not contain" in capsys.readouterr().err
    texts = [INSIDE, OUTSIDE]
    scores, strange = scorer(str(file))(detector.rows_of(texts))
    np.testing.assert_allclose(scores, detector.ood_score(texts), rtol=1e-11)
    assert strange.tolist() == [False, True]


def test_what_cannot_be_exported_says_so(blobs, tmp_path, capsys, monkeypatch):
    with pytest.raises(InputError, match="KNNDetector cannot be exported to ONNX; give"):
        onnx_model(KNNDetector().fit(blobs[0]))
    detector = NNKDetector(n_atoms=20).fit(blobs[0])
    with pytest.raises(InputError, match=r"ends in \.onnx"):
        export_onnx(detector, tmp_path / "scorer.pb")
    detector.save(tmp_path / "model")
    assert main(["export", str(tmp_path / "model"), "--out", str(tmp_path / "no" / "a.onnx")]) == 2
    assert "no" in capsys.readouterr().err
    monkeypatch.setitem(__import__("sys").modules, "onnx", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'outscope\[onnx\]'"):
        onnx_model(detector)


@pytest.mark.embeddings
def test_on_real_embeddings(embeddings):
    data = embeddings("banking77")
    rows = data["train_x"][:4000].astype(np.float32)
    queries = data["test_x"][::8].astype(np.float32)
    detector = NNKDetector(random_state=0).fit(rows)
    scores, _ = scorer(onnx_model(detector))(queries)
    assert np.abs(scores - detector.ood_score(queries)).max() < 1e-12
