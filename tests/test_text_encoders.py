"""Encoders: the model's own vectors, each text once, and always the same encoder."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
import threading

import numpy as np
import pytest
from tiny import labelled_texts, tiny_encoder

from outscope import InputError, MissingExtraError, ModelFileError, TextDetector, make_encoder
from outscope.text import weights
from outscope.text.cache import VectorCache
from outscope.text.encoders import FunctionEncoder, TransformerEncoder, check_texts
from outscope.text.weights import DEFAULT, find_encoder, folder_fingerprint

STRANGE = ["", " ", "word " * 900, "emoji 🚲🎉", "日本語", "مرحبا", "a\x00b", "tab\there", "\u200b"]
TEXTS = labelled_texts(70)[0] + STRANGE


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return tiny_encoder(tmp_path_factory.mktemp("models") / "tiny")


def test_vectors_are_those_of_sentence_transformers():
    """On the real default, with texts of every length and script."""
    from sentence_transformers import SentenceTransformer

    encoder = make_encoder()
    ours = encoder.encode(TEXTS)
    theirs = SentenceTransformer(str(encoder.folder), device="cpu").encode(TEXTS)
    assert ours.shape == (len(TEXTS), 384)
    np.testing.assert_allclose(ours, theirs, atol=1e-5)


def test_a_text_is_encoded_alike_alone_and_in_company(tiny):
    encoder = make_encoder(tiny)
    whole = encoder.encode(TEXTS)
    for i in (0, 33, len(TEXTS) - 1):
        np.testing.assert_allclose(encoder.encode([TEXTS[i]])[0], whole[i], atol=1e-6)


def test_texts_that_are_cut_are_told_once(tiny, caplog):
    encoder = make_encoder(tiny)
    encoder.encode(["pay my bill " * 11 + "x"] * 2 + ["open the door"])
    encoder.encode(["pay my bill " * 99])
    assert [record.getMessage() for record in caplog.records] == [
        "2 of 3 texts are longer than the 32 tokens that the encoder reads; it does not see "
        "their ends"
    ]


def test_a_layer_is_the_mean_over_its_real_tokens(tiny):
    import torch

    encoder = TransformerEncoder(tiny, layer=-2)
    found = encoder.encode(["pay my bill", "send money to bob please now"])
    network = encoder._network()
    tokens = network.pad(network.tokenize(["pay my bill"]))
    with torch.no_grad():
        state = network.core(**tokens, output_hidden_states=True).hidden_states[-2]
    np.testing.assert_allclose(found[0], state[0].mean(dim=0).numpy(), atol=1e-6)
    with pytest.raises(InputError, match="layer=9"):
        TransformerEncoder(tiny, layer=9).encode(["a"])


def test_an_object_and_a_function_are_encoders_too(tiny):
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(tiny), device="cpu")
    texts = ["pay my bill", "open the door"]
    np.testing.assert_allclose(make_encoder(model).encode(texts), model.encode(texts), atol=1e-6)
    lengths = make_encoder(lambda texts: [[len(t), 1.0] for t in texts])
    assert lengths.encode(["a", "bcd"]).tolist() == [[1.0, 1.0], [3.0, 1.0]]
    with pytest.raises(InputError, match="expected one row for each"):
        make_encoder(lambda texts: [1.0]).encode(["a", "b"])
    with pytest.raises(InputError, match="type int cannot encode"):
        make_encoder(5)


def test_the_weights_of_an_object_are_hashed_once_until_they_change(tiny, monkeypatch):
    import torch
    from sentence_transformers import SentenceTransformer

    from outscope.text import network

    model = SentenceTransformer(str(tiny), device="cpu")
    encoder, hashed = make_encoder(model), []
    original = network.Network._hash
    monkeypatch.setattr(
        network.Network, "_hash", lambda *a: hashed.append(original(*a)) or hashed[-1]
    )
    first = encoder.fingerprint()
    assert encoder.fingerprint() == first == make_encoder(model).fingerprint()
    assert len(hashed) == 2
    detector = TextDetector(encoder, "knn", cache=False).fit(TEXTS[:40])
    detector.ood_score(TEXTS[:5])
    detector.ood_score(TEXTS[:5])
    assert len(hashed) == 2, "scoring hashed the weights again"
    weights = model[0].auto_model.embeddings.word_embeddings.weight
    with torch.no_grad():
        weights[7, 3] += 1.0
    assert encoder.fingerprint() != first
    weights.data[0, 0] -= 1.0  # uncounted by torch
    encoder.fingerprint()
    assert len(set(hashed)) == 3
    model[0].auto_model.embeddings.word_embeddings.weight = torch.nn.Parameter(weights.clone())
    encoder.fingerprint()
    assert len(hashed) == 5, "the weights lie elsewhere now"


def test_only_fine_tuning_makes_texts_seen(tiny):
    for encoder in (tiny, lambda texts: np.ones((len(texts), 2))):
        assert make_encoder(encoder).has_seen(["a", "b"]).tolist() == [False, False]


def test_a_static_model_is_an_encoder(tiny, tmp_path):
    from model2vec import StaticModel
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(tiny / "tokenizer.json"))
    vectors = np.random.default_rng(0).normal(size=(tokenizer.get_vocab_size(), 8))
    StaticModel(vectors.astype(np.float32), tokenizer).save_pretrained(tmp_path / "static")
    encoder = make_encoder(tmp_path / "static")
    assert type(encoder).__name__ == "StaticEncoder"
    rows = encoder.features(["pay my bill", "open door"], cache=VectorCache(tmp_path))
    assert rows.shape == (2, 8)
    with pytest.raises(InputError, match="has no logits"):
        encoder.features(["a"], "logits")


def test_the_device_may_come_from_the_environment(tiny, monkeypatch):
    monkeypatch.setenv("OUTSCOPE_DEVICE", "abacus")
    with pytest.raises(InputError, match="device='abacus'"):
        make_encoder(tiny).encode(["a"])


def test_nothing_is_computed_twice(tiny, tmp_path, monkeypatch):
    cache = VectorCache(tmp_path)
    first = make_encoder(tiny).features(TEXTS + TEXTS[:9], cache=cache)
    again = make_encoder(tiny)
    monkeypatch.setattr(again, "_compute", lambda *a: pytest.fail("a forward pass"))
    np.testing.assert_array_equal(again.features(TEXTS + TEXTS[:9], cache=cache), first)
    other = TransformerEncoder(tiny, layer=1)
    assert np.abs(other.features(TEXTS, cache=cache) - first[: len(TEXTS)]).max() > 1e-3


def test_a_cache_that_cannot_be_used_is_said_once_and_worked_without(tiny, tmp_path, caplog):
    (tmp_path / "vectors.sqlite").mkdir()
    encoder, cache = make_encoder(tiny), VectorCache(tmp_path)
    short = TEXTS[:40]
    rows = encoder.features(short, cache=cache)
    np.testing.assert_array_equal(rows, encoder.features(short))
    assert len(caplog.records) == 1
    assert "going on without it" in caplog.text


def test_a_cache_is_shared_by_threads(tiny, tmp_path):
    encoder = make_encoder(tiny)
    expected = encoder.features(TEXTS)
    found = []
    threads = [
        threading.Thread(
            target=lambda: found.append(encoder.features(TEXTS, cache=VectorCache(tmp_path)))
        )
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    for rows in found:
        np.testing.assert_allclose(rows, expected, atol=1e-6)
    with sqlite3.connect(tmp_path / "vectors.sqlite") as database:
        count = database.execute("SELECT count(*) FROM sealed").fetchone()[0]
    database.close()
    assert count == len(set(TEXTS))


def test_a_fingerprint_is_that_of_the_files(tiny, tmp_path):
    copied = tmp_path / "elsewhere"
    shutil.copytree(tiny, copied)
    assert folder_fingerprint(copied) == folder_fingerprint(tiny)
    other = tiny_encoder(tmp_path / "other", seed=1)
    assert folder_fingerprint(other) != folder_fingerprint(tiny)
    assert TransformerEncoder(tiny).fingerprint() != TransformerEncoder(tiny, layer=1).fingerprint()
    shout = FunctionEncoder(lambda texts: [[len(t), 2.0] for t in texts])
    assert shout.fingerprint() != FunctionEncoder(lambda t: [[1.0, 0.0]] * len(t)).fingerprint()


def test_a_changed_file_changes_the_fingerprint_at_once(tiny, tmp_path):
    folder = shutil.copytree(tiny, tmp_path / "mine")
    before = folder_fingerprint(folder)
    weights_file = folder / "model.safetensors"
    weights_file.write_bytes(weights_file.read_bytes()[:-1] + b"!")
    assert folder_fingerprint(folder) != before


def test_damaged_weights_and_devices_that_are_not_there_get_one_line(tiny, tmp_path):
    folder = shutil.copytree(tiny, tmp_path / "mine")
    (folder / "model.safetensors").write_bytes(b"cut")
    with pytest.raises(InputError, match="cannot be loaded"):
        make_encoder(folder).encode(["a"])
    with pytest.raises(InputError, match="device='abacus' cannot be used"):
        TransformerEncoder(tiny, device="abacus").encode(["a"])


def test_the_packaged_weights_are_checked(tmp_path, monkeypatch):
    assert weights._sha256(find_encoder(DEFAULT) / "model.safetensors") == weights.DEFAULT_SHA256
    fake = tmp_path / "model.safetensors"
    fake.write_bytes(b"other weights")
    with pytest.raises(ModelFileError, match="not the official"):
        weights._check_default(fake)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("", "empty"),
        ("./nowhere", "not a model folder"),
        ("/no/such/model", "not a model folder"),
        ("no-such-model-of-ours", "neither a folder nor reachable"),
    ],
)
def test_an_encoder_that_is_not_there_is_named(name, words, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(InputError, match=words):
        make_encoder(name)


def test_a_folder_that_is_no_model_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"without config\.json"):
        make_encoder(str(tmp_path))
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(InputError, match="cannot be loaded"):
        make_encoder(str(tmp_path)).encode(["a"])


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        ("one", "one text"),
        (5, "is a int"),
        ([1], r"texts\[0\] is a int"),
        (["a", None], r"texts\[1\] is a NoneType"),
        (["a", float("nan")], r"texts\[1\] is a float"),
        ({"text": ["a"]}, "is a table"),
        (["a", "b\ud800"], r"texts\[1\] holds half of a surrogate pair at position 1"),
    ],
)
def test_what_is_no_list_of_texts_is_refused(texts, words):
    with pytest.raises(InputError, match=words):
        check_texts(texts)


def test_without_torch_the_install_line_is_given(tiny, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'outscope\[text\]'"):
        make_encoder(tiny).encode(["a"])


def test_torch_is_imported_by_nobody_who_does_not_need_it(tiny, tmp_path):
    """Importing, help, methods, and texts whose vectors are known."""
    (tmp_path / "a.txt").write_text("\n".join(labelled_texts(30)[0]))
    environment = {**os.environ, "OUTSCOPE_CACHE": str(tmp_path / "cache")}
    run = [sys.executable, "-m", "outscope"]
    fit = [*run, "fit", tmp_path / "a.txt", "--encoder", tiny, "--out", tmp_path / "model"]
    subprocess.run(fit, check=True, capture_output=True, env=environment)
    code = (
        "import sys\n"
        "class Refuse:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] in ('torch', 'transformers'): raise SystemExit('torch!')\n"
        "sys.meta_path.insert(0, Refuse())\n"
        "from outscope.cli import main\n"
        "assert main(['methods']) == 0\n"
        f"assert main(['score', {str(tmp_path / 'model')!r}, {str(tmp_path / 'a.txt')!r}]) == 0\n"
        "try: main(['--help'])\n"
        "except SystemExit as end: sys.exit(end.code)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr
