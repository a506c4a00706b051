"""The encoder on ONNX Runtime: torch's rows, exported once, and models that say what they need."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys

import numpy as np
import pytest
from tiny import labelled_texts, tiny_encoder

import outscope
from outscope import InputError, MissingExtraError, ModelFileError, TextDetector, make_encoder
from outscope.cli import main
from outscope.text import choosing, graph, onnx_encoder
from outscope.text.encoders import TransformerEncoder
from outscope.text.onnx_encoder import OnnxEncoder

STRANGE = ["", " ", "word " * 900, "emoji 🚲🎉", "日本語", "a\x00b", "tab\there"]
TEXTS = labelled_texts(40)[0] + STRANGE


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return tiny_encoder(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("OUTSCOPE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_rows_are_those_of_torch_but_for_rounding():
    """On the real default, which runs on ONNX Runtime by itself where that is installed."""
    encoder = make_encoder()
    assert isinstance(encoder, OnnxEncoder)
    torch_rows = make_encoder(backend="torch").encode(TEXTS)
    np.testing.assert_allclose(encoder.encode(TEXTS), torch_rows, atol=2e-6)
    rough = make_encoder(backend="onnx-int8").encode(TEXTS)
    assert 0.97 < (rough * torch_rows).sum(axis=1).min() < 0.9999, "near, and not the same"


@pytest.mark.parametrize("change", ["as it is", "first token", "bare", "short"])
def test_pooling_and_length_are_the_models_own(tiny, tmp_path, change):
    from sentence_transformers import SentenceTransformer

    folder, settings = tmp_path / "model", {"max_length": 9} if change == "short" else {}
    shutil.copytree(tiny, folder)
    if change == "first token":
        told = json.loads((folder / "1_Pooling" / "config.json").read_text())
        told = {name: value for name, value in told.items() if "pooling_mode" not in name}
        told["pooling_mode"] = "cls"
        (folder / "1_Pooling" / "config.json").write_text(json.dumps(told))
    if change == "bare":
        (folder / "modules.json").unlink()
    model = SentenceTransformer(str(folder), device="cpu")
    if change == "short":
        model.max_seq_length = 9
    found = OnnxEncoder(folder, **settings).encode(TEXTS)
    np.testing.assert_allclose(found, model.encode(TEXTS), atol=2e-6)


@pytest.mark.parametrize("precision", graph.PRECISIONS)
def test_a_row_depends_neither_on_company_nor_on_threads(tiny, precision):
    encoder = OnnxEncoder(tiny, precision=precision, threads=1, batch_size=8)
    whole = encoder.encode(TEXTS)
    for i in (0, 21, len(TEXTS) - 1):
        np.testing.assert_allclose(encoder.encode([TEXTS[i]])[0], whole[i], atol=1e-6)
    np.testing.assert_array_equal(
        OnnxEncoder(tiny, precision=precision, threads=3, batch_size=8).encode(TEXTS), whole
    )


def test_the_export_is_made_once_and_again_if_it_is_damaged(tiny, cache, monkeypatch):
    made = []
    original = onnx_encoder.export
    monkeypatch.setattr(onnx_encoder, "export", lambda *a: made.append(a) or original(*a))
    rows = OnnxEncoder(tiny).encode(TEXTS)
    np.testing.assert_array_equal(OnnxEncoder(tiny).encode(TEXTS), rows)
    assert len(made) == 1
    (file,) = (cache / "onnx").glob("*.onnx")
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 255
    file.write_bytes(content)
    np.testing.assert_array_equal(OnnxEncoder(tiny).encode(TEXTS), rows)
    assert len(made) == 2
    OnnxEncoder(tiny, precision="int8").encode(TEXTS[:2])
    assert len(list((cache / "onnx").glob("*.onnx"))) == 2


def test_without_a_usable_cache_it_works_all_the_same(tiny, cache, caplog):
    cache.write_text("a file where the folder should be")
    assert OnnxEncoder(tiny).encode(TEXTS[:3]).shape == (3, 32)
    assert "is not kept" in caplog.text


def test_texts_that_are_cut_are_told(tiny, caplog):
    OnnxEncoder(tiny).encode(["pay my bill " * 99, "open the door"])
    assert "1 of 2 texts are longer than the 32 tokens that the encoder reads" in caplog.text


def test_fingerprints_tell_the_backends_apart(tiny):
    made = [make_encoder(tiny, backend=b) for b in ("torch", "onnx", "onnx-int8")]
    made.append(make_encoder(tiny, backend="onnx", max_length=9))
    assert len({encoder.fingerprint() for encoder in made}) == 4
    assert isinstance(make_encoder(tiny), TransformerEncoder), "auto is for the default encoder"


@pytest.mark.parametrize("backend", ["onnx", "onnx-int8", "torch"])
def test_a_saved_model_comes_back_with_its_backend(tiny, tmp_path, backend):
    detector = TextDetector(make_encoder(tiny, backend=backend), "knn", cache=False)
    scores = detector.fit(TEXTS[:40]).ood_score(TEXTS)
    detector.save(tmp_path / "model")
    loaded = outscope.load(tmp_path / "model")
    loaded.cache = False
    np.testing.assert_array_equal(loaded.ood_score(TEXTS), scores)
    assert type(loaded._encoder) is type(detector._encoder)
    others = {"onnx": "torch", "onnx-int8": "onnx", "torch": "onnx"}
    with pytest.raises(ModelFileError, match="is not the one this detector was fitted with"):
        outscope.load(tmp_path / "model", encoder=make_encoder(tiny, backend=others[backend]))


def test_where_it_is_not_installed_a_model_says_what_to_install(tiny, tmp_path, monkeypatch):
    TextDetector(make_encoder(tiny, backend="onnx"), "knn", cache=False).fit(TEXTS[:40]).save(
        tmp_path / "model"
    )
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    loaded = outscope.load(tmp_path / "model")
    loaded.cache = False
    with pytest.raises(MissingExtraError, match=r"pip install 'outscope\[onnx\]'"):
        loaded.ood_score(TEXTS)
    monkeypatch.setattr(choosing, "is_installed", lambda: False)
    assert isinstance(make_encoder(), TransformerEncoder)


def test_a_damaged_setting_is_refused(tiny, tmp_path):
    TextDetector(make_encoder(tiny, backend="onnx"), "knn", cache=False).fit(TEXTS[:40]).save(
        tmp_path / "model"
    )
    manifest = tmp_path / "model" / "manifest.json"
    whole = manifest.read_text()
    assert '\\"onnx\\"' in whole
    for other in ('\\"auto\\"', '\\"tensorrt\\"', "5"):
        manifest.write_text(whole.replace('\\"onnx\\"', other))
        with pytest.raises(ModelFileError):
            outscope.load(tmp_path / "model")


@pytest.mark.parametrize(
    ("file", "old", "new", "words"),
    [
        ("config.json", '"model_type": "bert"', '"model_type": "mpnet"', "model_type is 'mpnet'"),
        ("config.json", '"hidden_act": "gelu"', '"hidden_act": "relu"', "hidden_act is 'relu'"),
        ("modules.json", "Pooling", "Dense", "its modules are Transformer, Dense"),
        ("config.json", '"num_hidden_layers": 3', '"num_hidden_layers": 2', "has a weight"),
        ("config.json", '"num_hidden_layers": 3', '"num_hidden_layers": 4', "has no weight"),
    ],
)
def test_a_network_of_another_kind_is_refused(tiny, tmp_path, file, old, new, words):
    folder = tmp_path / "model"
    shutil.copytree(tiny, folder)
    told = (folder / file).read_text()
    assert old in told
    (folder / file).write_text(told.replace(old, new))
    with pytest.raises(InputError, match=f"{words}.*use backend='torch'"):
        OnnxEncoder(folder).encode(["a"])


def test_what_only_torch_gives_is_refused_with_the_way_out(tiny):
    for kind in ("logits", "smoothness"):
        with pytest.raises(InputError, match=f"{kind} need a classifier"):
            OnnxEncoder(tiny).features(["a"], kind)
    with pytest.raises(InputError, match="layer is for backend='torch'"):
        make_encoder(tiny, backend="onnx", layer=-2)
    with pytest.raises(InputError, match="a function runs as it is"):
        make_encoder(len, backend="onnx")
    with pytest.raises(InputError, match="expected auto, torch, onnx, onnx-int8"):
        make_encoder(tiny, backend="tensorrt")


def test_torch_is_never_loaded():
    """From texts to decisions with the real default."""
    words = (
        "import sys; from outscope import TextDetector; "
        "TextDetector(detector='knn', cache=False).fit(['a b', 'b c', 'c d'] * 9); "
        "assert not {'torch', 'transformers', 'sentence_transformers'} & {*sys.modules}"
    )
    subprocess.run([sys.executable, "-W", "ignore", "-c", words], check=True)


def test_the_command_line_takes_a_backend(tiny, tmp_path, capsys):
    file, model = tmp_path / "texts.txt", str(tmp_path / "model")
    file.write_text("\n".join(TEXTS[:40]))
    fit = ["fit", str(file), "--out", model, "--method", "knn", "--encoder", str(tiny)]
    assert main([*fit, "--backend", "tensorrt"]) == 2
    assert "--backend 'tensorrt'" in capsys.readouterr().err
    assert main([*fit, "--backend", "onnx-int8"]) == 0
    assert main(["score", model, str(file)]) == 0
    assert outscope.load(model)._checked_encoder().precision == "int8"
