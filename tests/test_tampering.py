"""Files from others: models, encoders, vectors and inputs that were tampered with or damaged."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
from conftest import public_detectors
from fuzz_models import make, settings, write_signed
from tiny import labelled_texts, tiny_encoder

import outscope
from outscope import InputError, ModelFileError, TextDetector
from outscope.io.models import MANIFEST, pack, rules_of
from outscope.text.choosing import make_encoder

HERE = Path(__file__).parent
# Enough for every run of the tests; OUTSCOPE_FUZZ asks for more.
CASES = int(os.environ.get("OUTSCOPE_FUZZ", "10000"))
TEXTS, LABELS = labelled_texts(60)


def run_script(name, *arguments, seconds=600):
    """A script in a process of its own: a crash is a failure, not the end of the tests."""
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", HERE / name, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=seconds,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), *sys.path])},
    )
    assert done.returncode == 0, f"exit {done.returncode}\n{done.stderr[-3000:]}"
    return done.stdout


def test_models_that_were_tampered_with_never_crash():
    run_script("fuzz_models.py", CASES, seconds=CASES / 20 + 60)


def test_damaged_caches_never_crash_and_never_lie():
    run_script("fuzz_cache.py", CASES, seconds=CASES / 20 + 60)


def test_damaged_inputs_never_crash():
    run_script("fuzz_inputs.py", CASES, seconds=CASES / 20 + 60)


# ---- what a model file may hold


@pytest.mark.parametrize("kind", public_detectors(), ids=lambda kind: kind.__name__)
def test_every_attribute_and_parameter_is_declared(kind, blobs):
    for changes in settings(kind):
        fitted = make(kind, changes, *blobs[:2])
        learned = {n for n in vars(fitted) if n.endswith("_") and n[0] != "_"}
        undeclared = learned - set(kind._fitted)
        assert not undeclared, f"declare {undeclared} in {kind.__name__}._fitted, so load checks it"
        unruled = set(fitted.get_params(deep=False)) - set(rules_of(kind))
        assert not unruled, f"give {unruled} a rule in {kind.__name__}._rules, so load checks it"


def test_what_is_not_declared_is_not_saved(blobs, tmp_path):
    detector = outscope.KNNDetector().fit(blobs[0])
    detector.extra_ = 1.0
    with pytest.raises(
        InputError, match=r"KNNDetector\.extra_ .*declare it in KNNDetector\._fitted"
    ):
        detector.save(tmp_path / "m")


def saved(detector, folder):
    detector.save(folder)
    manifest = json.loads((folder / MANIFEST).read_text())
    return manifest, safetensors.numpy.load((folder / manifest["arrays"]).read_bytes())


def refused(folder, manifest, arrays, words):
    write_signed(folder, manifest, arrays)
    with pytest.raises(ModelFileError, match=words) as caught:
        outscope.load(folder)
    assert "\n" not in str(caught.value)


def test_each_attribute_is_checked(detector, blobs, tmp_path):
    """Without it, as nothing sensible, and, for arrays, of another shape, type or range."""
    manifest, arrays = saved(make(type(detector), {}, *blobs[:2]), tmp_path)
    fitted, kind = manifest["state"]["fitted"], type(detector)
    for name, value in list(fitted.items()):
        field = kind._fitted[name]
        for wrong in ([], {"$names": ["a"]}, {"$estimator": "NNKMeans"}, 1e999, -7, 2**64):
            if wrong == -7 and name == "offset_":
                continue
            refused(tmp_path, *changed(manifest, name, wrong), arrays, "does not hold together")
        if not field.optional:
            refused(
                tmp_path, *changed(manifest, name, None, drop=True), arrays, f"{name} is missing"
            )
        if value == {"$array": name}:
            for array in (arrays[name][..., None], arrays[name].astype("f2")):
                refused(tmp_path, manifest, {**arrays, name: array}, f"{name} is not")
            worst = arrays[name].copy()
            worst.flat[0] = np.nan if worst.dtype.kind == "f" else np.iinfo(worst.dtype).min
            refused(tmp_path, manifest, {**arrays, name: worst}, f"{name} is not")


def changed(manifest, name, value, drop=False):
    manifest = json.loads(json.dumps(manifest))
    manifest["state"]["fitted"][name] = value
    if drop:
        del manifest["state"]["fitted"][name]
    return (manifest,)


def test_each_parameter_is_checked(detector, blobs, tmp_path):
    manifest, arrays = saved(make(type(detector), {}, *blobs[:2]), tmp_path)
    for name in manifest["state"]["parameters"]:
        for wrong in ("bananas", -1.5, [1], {"$strings": ["a"]}, 1e999):
            other = json.loads(json.dumps(manifest))
            other["state"]["parameters"][name] = wrong
            refused(tmp_path, other, arrays, "does not hold together")
        if name in getattr(type(detector), "_added", ()):
            continue  # models saved before it was added are still read
        other = json.loads(json.dumps(manifest))
        del other["state"]["parameters"][name]
        refused(tmp_path, other, arrays, "has other parameters")


def test_deep_manifests_and_other_classes_are_refused(blobs, tmp_path):
    manifest, arrays = saved(outscope.NNKDetector(random_state=0).fit(blobs[0]), tmp_path)
    text = json.dumps(manifest)
    for depth in (500, 5000, 100_000):
        (tmp_path / MANIFEST).write_text(text.replace('"auto"', "[" * depth + "]" * depth, 1))
        with pytest.raises(ModelFileError):
            outscope.load(tmp_path)
    deep = [[]]
    for _ in range(300):
        deep = [deep]
    manifest["state"]["fitted"]["common_"] = deep
    refused(tmp_path, manifest, arrays, "does not hold together")
    manifest["state"]["fitted"]["dictionary_"] = json.loads(text)["state"]
    refused(tmp_path, manifest, arrays, "does not hold together")


def test_an_unfitted_detector_in_a_file_is_refused(blobs, tmp_path):
    manifest, arrays = saved(outscope.KNNDetector().fit(blobs[0]), tmp_path)
    manifest["state"]["fitted"] = {}
    refused(tmp_path, manifest, arrays, "not fitted")


def test_column_names_come_back(detector, blobs, tmp_path):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(blobs[0], columns=[f"c{i}" for i in range(blobs[0].shape[1])])
    fitted = type(detector)(**detector.get_params()).fit(frame, blobs[1])
    fitted.save(tmp_path / "m")
    back = outscope.load(tmp_path / "m")
    assert back.feature_names_in_.tolist() == list(frame.columns)
    assert back.feature_names_in_.dtype == object
    np.testing.assert_array_equal(back.ood_score(frame), fitted.ood_score(frame))
    with pytest.raises(ValueError, match="feature names"):
        back.ood_score(frame[frame.columns[::-1]])


def test_column_names_come_back_without_pandas(detector, blobs, tmp_path):
    fitted = detector.fit(*blobs[:2])
    fitted.feature_names_in_ = np.array([f"c{i}" for i in range(24)], dtype=object)
    fitted.save(tmp_path / "m")
    back = outscope.load(tmp_path / "m").feature_names_in_
    assert back.dtype == object
    assert back.tolist() == fitted.feature_names_in_.tolist()


def test_labels_that_are_no_text_are_named(blobs, tmp_path):
    labels = np.where(np.arange(180) % 2 == 0, "pay", "b\udc80d")
    with pytest.raises(ValueError, match=r"b.udc80d.*surrogate"):
        outscope.ClasswiseNNKDetector(random_state=0).fit(blobs[0], labels).save(tmp_path / "m")
    assert not (tmp_path / "m").exists()


def test_the_manifest_says_whether_rows_are_scaled(detector, blobs):
    fitted = detector.fit(*blobs[:2])
    unchanged = np.allclose(fitted.ood_score(3.0 * blobs[2]), fitted.ood_score(blobs[2]), rtol=1e-4)
    assert fitted._notes()["normalize"] == unchanged


# ---- encoders


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return tiny_encoder(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("OUTSCOPE_CACHE", str(tmp_path_factory.mktemp("cache")))


def edit_json(file, **changes):
    found = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps({**found, **changes}))


def evil_module(folder):
    modules = json.loads((folder / "modules.json").read_text())
    modules.append({"idx": 2, "name": "2", "path": "", "type": "evil.Module"})
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "evil.py").write_text("raise SystemExit('executed')")


ATTACKS = {
    "module": evil_module,
    "auto_map": lambda f: edit_json(f / "config.json", auto_map={"AutoModel": "evil.Model"}),
    "trust": lambda f: edit_json(f / "tokenizer_config.json", trust_remote_code=True),
    "kernel": lambda f: edit_json(f / "config.json", attn_implementation="evil/kernel"),
    "elsewhere": lambda f: edit_json(
        f / "sentence_bert_config.json", config_args={"_configuration_file": "other.json"}
    ),
    "activation": lambda f: edit_json(f / "1_Pooling/config.json", activation_function="os.abort"),
    "adapter": lambda f: edit_json(
        f / "adapter_config.json", auto_mapping={"parent_library": "evil"}
    ),
    "pickle": lambda f: (f / "model.safetensors").rename(f / "pytorch_model.bin"),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_an_encoder_folder_that_brings_code_is_refused(tiny, tmp_path, attack):
    folder = shutil.copytree(tiny, tmp_path / "evil-encoder")
    ATTACKS[attack](folder)
    with pytest.raises(ModelFileError, match=r"never loads|pickled") as caught:
        make_encoder(str(folder))
    assert "evil-encoder" in str(caught.value)
    if attack != "pickle":
        from outscope.text.network import load_model

        if attack not in ("auto_map",):  # which a model of the hub may offer: nobody asks for it
            with pytest.raises(ModelFileError):
                load_model(folder, None)


@pytest.fixture(scope="module")
def text_model(tiny, tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved") / "model"
    cache = tmp_path_factory.mktemp("cache")
    TextDetector(str(tiny), holdout=20, cache=cache, random_state=0).fit(TEXTS, LABELS).save(folder)
    return folder


@pytest.mark.parametrize("attack", [*ATTACKS, "python", "link"])
def test_an_encoder_saved_with_a_model_that_brings_code_is_refused(text_model, tmp_path, attack):
    model = shutil.copytree(text_model, tmp_path / "model")
    (encoder,) = model.glob("encoder-*")
    if attack == "python":
        (encoder / "modeling.py").write_text("raise SystemExit")
    elif attack == "link":
        (encoder / "vocab.txt").unlink(missing_ok=True)
        (encoder / "vocab.txt").symlink_to("/etc/passwd")
    else:
        ATTACKS[attack](encoder)
    with pytest.raises(ModelFileError):
        outscope.load(model)


@pytest.mark.parametrize(
    "encoder",
    [
        "@../outside",
        "@/etc",
        "@encoder-0123456789abcdef",
        "/etc",
        "../outside",
        "~",
        "outside",
        ".",
    ],
)
def test_a_manifest_cannot_send_us_elsewhere(text_model, tiny, tmp_path, encoder, monkeypatch):
    model = shutil.copytree(text_model, tmp_path / "model")
    shutil.copytree(tiny, tmp_path / "outside")
    monkeypatch.chdir(tmp_path)
    (model / "encoder-0123456789abcdef").symlink_to(tmp_path / "outside")
    manifest = json.loads((model / MANIFEST).read_text())
    arrays = safetensors.numpy.load((model / manifest["arrays"]).read_bytes())
    manifest["state"]["parameters"]["encoder"] = encoder
    refused(model, manifest, arrays, "encoder")


TEXT_LIES = {
    "cache": ("parameters", "/etc"),
    "holdout": ("parameters", "all"),
    "detector": ("parameters", {"$estimator": "NNKMeans", "parameters": {}, "fitted": {}}),
    "encoder_settings_": ("fitted", '{"trust_remote_code": true}'),
    "encoder_fingerprint_": ("fitted", "short"),
    "remembered_texts_": ("fitted", ["one"]),
    "remembered_rows_": ("fitted", {"$array": "remembered_lines_"}),
    "labels_": ("fitted", None),
    "class_means_": ("fitted", {"$array": "remembered_rows_"}),
    "detector_": ("fitted", None),
}


@pytest.mark.parametrize("name", TEXT_LIES)
def test_a_text_detector_is_checked_too(text_model, tmp_path, name):
    model = shutil.copytree(text_model, tmp_path / "model")
    manifest = json.loads((model / MANIFEST).read_text())
    arrays = safetensors.numpy.load((model / manifest["arrays"]).read_bytes())
    part, value = TEXT_LIES[name]
    if name == "remembered_rows_":
        arrays["remembered_rows_"] = arrays["remembered_rows_"][::-1].copy()
        value = {"$array": "remembered_rows_"}
    manifest["state"][part][name] = value
    refused(model, manifest, arrays, "does not hold together")


def test_all_of_a_text_detector_is_declared(text_model):
    found = outscope.load(text_model)
    pack(found)
    assert set(found.get_params(deep=False)) <= set(rules_of(TextDetector))
