"""The main promises on real embeddings, where they are at hand."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import nnls

from outscope import ClasswiseNNKDetector, KMeansDetector, KNNDetector, NNKDetector
from outscope.decisions.metrics import auroc

pytestmark = pytest.mark.embeddings


@pytest.fixture(scope="module")
def clinc(embeddings):
    with embeddings("clinc150") as data:
        arrays = {name: data[name] for name in ("train_x", "train_y", "test_x", "oos_test_x")}
    queries = np.concatenate([arrays["test_x"], arrays["oos_test_x"]]).astype(np.float32)
    truth = np.repeat([0, 1], [len(arrays["test_x"]), len(arrays["oos_test_x"])])
    return arrays["train_x"].astype(np.float32), arrays["train_y"], queries, truth


def test_five_hundred_atoms_beat_fifteen_thousand_rows(clinc):
    X, _, queries, truth = clinc
    small = auroc(truth, NNKDetector(500, random_state=0).fit(X).ood_score(queries))
    everything = auroc(truth, KNNDetector(skip_copies=False).fit(X).ood_score(queries))
    assert small > 0.970
    assert small > everything + 0.005


def test_a_dictionary_shrunk_to_a_tenth_beats_k_means_of_that_size(clinc):
    X, _, queries, truth = clinc
    shrunk = NNKDetector(2000, max_atoms=200, random_state=0).fit(X)
    assert len(shrunk.atoms_) == 200
    means = KMeansDetector(200, random_state=0).fit(X)
    assert auroc(truth, shrunk.ood_score(queries)) > auroc(truth, means.ood_score(queries))


def test_labels_help(clinc):
    X, y, queries, truth = clinc
    blind = auroc(truth, NNKDetector(random_state=0).fit(X).ood_score(queries))
    by_class = ClasswiseNNKDetector(25, random_state=0)
    assert auroc(truth, by_class.fit(X, y).ood_score(queries)) > blind + 0.002
    # Parts that are no classes do not.
    parts = np.random.default_rng(0).permutation(y)
    assert auroc(truth, by_class.fit(X, parts).ood_score(queries)) < blind - 0.005


@pytest.mark.parametrize("kernel", ["gaussian", "cosine"])
def test_codes_of_real_rows_equal_scipy_nnls(clinc, kernel):
    X, _, queries, _ = clinc
    model = NNKDetector(800, kernel=kernel, n_epochs=1, random_state=0).fit(X).dictionary_
    atoms, sigma = model.atoms_.astype(float), model.bandwidth_
    rows = queries[::40].astype(float)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    codes = model.encode(queries[::40])
    for row, chosen, weights in zip(rows, codes.neighbors, codes.weights, strict=True):
        local = atoms[chosen]
        gram, target = local @ local.T, local @ row
        if kernel == "gaussian":
            squares = np.diag(gram)
            gram = np.exp(-(squares[:, None] + squares - 2 * gram) / (2 * sigma))
            target = np.exp(-(squares + 1 - 2 * target) / (2 * sigma))
        root = np.linalg.cholesky(gram)
        expected, _ = nnls(root.T, np.linalg.solve(root, target / target.max()))
        np.testing.assert_allclose(weights / target.max(), expected, atol=1e-6)
