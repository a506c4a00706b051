"""Saved models: atomic, checked, without pickle."""

from __future__ import annotations

import json
import shutil
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import outscope
from outscope import ClasswiseNNKDetector, InputError, KNNDetector, ModelFileError, NNKDetector
from outscope.io.models import MANIFEST, _checksum


@pytest.fixture
def model(blobs, tmp_path):
    NNKDetector(random_state=0).fit(*blobs[:2]).save(tmp_path / "model")
    return tmp_path / "model"


def arrays_file(folder):
    (file,) = folder.glob("arrays-*.safetensors")
    return file


def edit(folder, **changes):
    manifest = json.loads((folder / MANIFEST).read_text())
    (folder / MANIFEST).write_text(json.dumps({**manifest, **changes}))


def refused(folder, words):
    with pytest.raises(ModelFileError, match=words) as caught:
        outscope.load(folder)
    assert "\n" not in str(caught.value)


def test_manifest_says_what_is_inside(model):
    manifest = json.loads((model / MANIFEST).read_text())
    assert manifest["schema"] == 1
    assert manifest["score_direction"] == "higher_is_ood"
    assert manifest["kernel"] == "gaussian"
    assert manifest["normalize"] is True
    assert {"outscope", "numpy", "scikit-learn"} <= set(manifest["versions"])
    assert manifest["state"]["parameters"]["n_neighbors"] == "auto"


def test_truncated_arrays_are_refused(model):
    file = arrays_file(model)
    file.write_bytes(file.read_bytes()[:-100])
    refused(model, "truncated or changed")


def test_a_flipped_bit_is_refused(model):
    content = bytearray(arrays_file(model).read_bytes())
    content[-1] ^= 1
    arrays_file(model).write_bytes(content)
    refused(model, "truncated or changed")


def test_missing_arrays_are_refused(model):
    arrays_file(model).unlink()
    refused(model, "missing")


def test_a_truncated_manifest_is_refused(model):
    text = (model / MANIFEST).read_text()
    (model / MANIFEST).write_text(text[: len(text) // 2])
    refused(model, "not readable JSON")


def test_a_changed_manifest_is_refused(model):
    edit(model, threshold=99.0)
    refused(model, "checksum differs")


def test_a_newer_schema_is_refused_with_the_way_out(model):
    edit(model, schema=2)
    refused(model, "pip install -U outscope")


@pytest.mark.parametrize("content", ['{"format": "else"}', "[]", "null", '"text"'])
def test_a_foreign_manifest_is_refused(model, content):
    (model / MANIFEST).write_text(content)
    refused(model, "not an Outscope model")


def test_a_missing_folder_an_empty_one_and_a_file_are_refused(tmp_path):
    refused(tmp_path / "nowhere", "does not exist")
    (tmp_path / "empty").mkdir()
    refused(tmp_path / "empty", "no manifest.json")
    (tmp_path / "file").write_text("x")
    refused(tmp_path / "file", "no manifest.json")


def test_saving_over_a_model_replaces_it_whole(model, blobs):
    before = arrays_file(model).name
    KNNDetector().fit(blobs[0]).save(model)
    assert isinstance(outscope.load(model), KNNDetector)
    assert arrays_file(model).name != before


def test_a_save_that_fails_leaves_the_old_model(model, blobs, monkeypatch):
    scores = outscope.load(model).ood_score(blobs[2])
    from pathlib import Path

    def fail(self, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(InputError, match="No space left"):
        KNNDetector().fit(blobs[0]).save(model)
    monkeypatch.undo()
    np.testing.assert_array_equal(outscope.load(model).ood_score(blobs[2]), scores)
    assert not list(model.glob(".writing-*"))


def test_a_folder_with_other_things_is_left_alone(tmp_path, blobs):
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(InputError, match="other files"):
        KNNDetector().fit(blobs[0]).save(tmp_path)
    with pytest.raises(InputError, match="is a file"):
        KNNDetector().fit(blobs[0]).save(tmp_path / "thesis.txt")
    assert [file.name for file in tmp_path.iterdir()] == ["thesis.txt"]


def test_an_unwritable_place_is_named(blobs):
    with pytest.raises(InputError, match="cannot write"):
        KNNDetector().fit(blobs[0]).save("/proc/outscope/model")


@pytest.mark.parametrize("labels", [["x", "y"], [3, 7], [True, False], [0.5, 1.5]])
def test_labels_of_any_type_come_back(blobs, tmp_path, labels):
    y = np.array(labels * 90)
    detector = ClasswiseNNKDetector(random_state=0).fit(blobs[0], y)
    detector.save(tmp_path / "m")
    back = outscope.load(tmp_path / "m")
    np.testing.assert_array_equal(back.classes_, detector.classes_)
    assert back.classes_.dtype.kind == detector.classes_.dtype.kind
    assert back.nearest_class(blobs[2]).tolist() == detector.nearest_class(blobs[2]).tolist()


@pytest.mark.parametrize("content", ['{"name": "my web app"}', "{}", "not json"])
def test_somebody_elses_manifest_is_left_alone(tmp_path, blobs, content):
    (tmp_path / MANIFEST).write_text(content)
    with pytest.raises(InputError, match="other files"):
        KNNDetector().fit(blobs[0]).save(tmp_path)
    assert (tmp_path / MANIFEST).read_text() == content


def test_what_a_save_that_was_cut_off_left_is_no_obstacle(tmp_path, blobs):
    (tmp_path / "arrays-0123456789abcdef.safetensors").write_text("half")
    KNNDetector().fit(blobs[0]).save(tmp_path)
    assert isinstance(outscope.load(tmp_path), KNNDetector)


def test_saving_and_loading_at_once_never_sees_a_broken_model(tmp_path, blobs):
    models = [KNNDetector(k).fit(blobs[0][: 60 + k]) for k in (1, 2, 3)]
    models[0].save(tmp_path / "m")

    def work(i):
        if i % 2:
            return outscope.load(tmp_path / "m").n_neighbors
        return models[i % 3].save(tmp_path / "m")

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(120)))
    assert outscope.load(tmp_path / "m").n_neighbors in (1, 2, 3)


def test_a_manifest_that_points_elsewhere_is_refused(model):
    manifest = json.loads((model / MANIFEST).read_text())
    manifest["arrays"] = "../outside.safetensors"
    manifest["checksum"] = _checksum(manifest)
    (model / MANIFEST).write_text(json.dumps(manifest))
    refused(model, "its own folder")


def test_a_manifest_that_does_not_hold_together_is_refused(model):
    manifest = json.loads((model / MANIFEST).read_text())
    manifest["state"]["parameters"]["bananas"] = 1
    manifest["checksum"] = _checksum(manifest)
    (model / MANIFEST).write_text(json.dumps(manifest))
    refused(model, "does not hold together")


def test_a_moved_folder_still_loads(model, tmp_path):
    shutil.move(model, tmp_path / "elsewhere")
    assert isinstance(outscope.load(tmp_path / "elsewhere"), NNKDetector)


def test_first_atoms_given_as_a_matrix_are_saved(blobs, tmp_path):
    detector = NNKDetector(init=blobs[0][:9], random_state=np.random.RandomState(0)).fit(blobs[0])
    detector.save(tmp_path / "m")
    back = outscope.load(tmp_path / "m")
    np.testing.assert_array_equal(back.init, blobs[0][:9])
    np.testing.assert_array_equal(back.ood_score(blobs[2]), detector.ood_score(blobs[2]))


def test_the_stored_size_is_that_of_the_atoms(blobs, tmp_path):
    rows = np.random.default_rng(0).normal(size=(4000, 64)).astype(np.float32)
    NNKDetector(100, random_state=0).fit(rows).save(tmp_path / "m")
    stored = sum(file.stat().st_size for file in (tmp_path / "m").iterdir())
    assert stored < 4 * 64 * 100 + 8 * 4096 + 20_000
