"""Fine-tuning and what it gives: a classifier that is an encoder, resumable, the same each time."""

from __future__ import annotations

import os
import shutil
import sys

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from tiny import labelled_texts, tiny_encoder

import outscope
from outscope import BLOODDetector, InputError, ModelFileError, TextDetector, make_encoder
from outscope.cli import main
from outscope.text.classifier import Classifier
from outscope.text.encoders import TransformerEncoder
from outscope.text.losses import margin_contrastive
from outscope.text.seen import hashes, set_aside
from outscope.text.smoothness import squared_norms
from outscope.text.training import Plan, blocks_of, train

TEXTS, LABELS = labelled_texts(60)
PLAN = Plan(epochs=12, batch_size=8, learning_rate=3e-3, max_length=16, seed=3)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return tiny_encoder(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def trained(tiny, tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained") / "encoder"
    train(tiny, TEXTS, LABELS, folder, plan=PLAN, validation=(TEXTS, LABELS))
    return folder


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("OUTSCOPE_CACHE", str(tmp_path_factory.mktemp("cache")))


def test_the_head_alone_gives_logits_of_embeddings_at_hand(trained):
    encoder = make_encoder(trained)
    found = encoder.logits_of(encoder.features(TEXTS))
    np.testing.assert_allclose(found, encoder.features(TEXTS, "logits"), atol=1e-5)
    with pytest.raises(InputError, match="last layer"):
        make_encoder(trained, layer=-2).logits_of(found)


def logits(folder):
    return make_encoder(folder).features(TEXTS, "logits")


def test_it_learns_and_loads_as_encoder_and_classifier(tiny, trained):
    encoder = make_encoder(trained)
    assert encoder.classes == sorted(set(LABELS))
    found = np.array(encoder.classes)[encoder.features(TEXTS, "logits").argmax(axis=1)]
    assert np.mean(found == LABELS) > 0.95
    assert encoder.encode(TEXTS).shape == (60, 32)
    assert np.abs(encoder.encode(TEXTS) - make_encoder(tiny).encode(TEXTS)).max() > 0.01
    card = Classifier.load(trained).card
    assert card["validation_accuracy"] > 0.95
    assert card["learning_rate"] == 3e-3


@pytest.mark.parametrize("loss", ["cross-entropy", "margin-contrastive"])
def test_a_seed_gives_the_same_network_whole_or_resumed(tiny, tmp_path, loss):
    plan = Plan(loss=loss, epochs=3, batch_size=8, learning_rate=1e-3, max_length=16, seed=5)
    train(tiny, TEXTS, LABELS, tmp_path / "a", plan=plan)

    class StopError(Exception):
        pass

    def stop(step):
        if step.step == 2 * step.steps // 3 + 2:
            raise StopError

    with pytest.raises(StopError):
        train(tiny, TEXTS, LABELS, tmp_path / "b", plan=plan, watch=stop)
    assert not (tmp_path / "b").exists()
    steps = []
    train(tiny, TEXTS, LABELS, tmp_path / "b", plan=plan, watch=lambda s: steps.append(s.step))
    assert min(steps) > 8, "it began anew instead of going on"
    np.testing.assert_array_equal(logits(tmp_path / "b"), logits(tmp_path / "a"))
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []
    train(tiny, TEXTS, LABELS, tmp_path / "c", plan=Plan(**{**vars(plan), "seed": 6}))
    assert np.abs(logits(tmp_path / "c") - logits(tmp_path / "a")).max() > 1e-3


def test_a_damaged_checkpoint_is_said_and_done_without(tiny, tmp_path, caplog):
    plan = Plan(epochs=3, batch_size=8, learning_rate=1e-3, max_length=16, seed=5)
    train(tiny, TEXTS, LABELS, tmp_path / "a", plan=plan)

    def stop(step):
        if step.step == step.steps:
            raise KeyboardInterrupt

    def interrupted():
        with pytest.raises(KeyboardInterrupt):
            train(tiny, TEXTS, LABELS, tmp_path / "b", plan=plan, watch=stop)
        (kept,) = tmp_path.glob(".b.checkpoint-*")
        return kept

    damages = (
        ("checkpoint.safetensors", lambda content: content[: len(content) // 2]),
        ("checkpoint.safetensors", lambda content: content[:-9] + b"!" + content[-8:]),
        ("checkpoint.json", lambda content: content[:20]),
    )
    for name, damage in damages:
        kept = interrupted()
        (kept / name).write_bytes(damage((kept / name).read_bytes()))
        caplog.clear()
    train(tiny, TEXTS, LABELS, tmp_path / "b", plan=plan)
    assert [f"{kept.name} is damaged" in r.getMessage() for r in caplog.records] == [True]
    np.testing.assert_array_equal(logits(tmp_path / "b"), logits(tmp_path / "a"))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "b"]


def test_a_full_disk_is_one_line_and_costs_one_epoch(tiny, tmp_path):
    """The disk is full from the second epoch on; then there is room again."""
    plan = Plan(epochs=3, batch_size=8, learning_rate=1e-3, max_length=16, seed=5)
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)

    def fill(step):
        if step.step == step.steps // 3 + 1:
            resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, before[1]))

    try:
        with pytest.raises(InputError, match=r"cannot write to .*too large.* make room and start"):
            train(tiny, TEXTS, LABELS, tmp_path / "b", plan=plan, watch=fill)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert [p.name[:14] for p in tmp_path.iterdir()] == [".b.checkpoint-"]
    steps = []
    train(tiny, TEXTS, LABELS, tmp_path / "b", plan=plan, watch=lambda s: steps.append(s.step))
    assert min(steps) == max(steps) // 3 + 1, "the good checkpoint was lost"
    train(tiny, TEXTS, LABELS, tmp_path / "a", plan=plan)
    np.testing.assert_array_equal(logits(tmp_path / "b"), logits(tmp_path / "a"))


@pytest.mark.parametrize(
    ("umask", "folder", "file"), [(0o077, 0o700, 0o600), (0o022, 0o755, 0o644)]
)
def test_files_are_as_open_as_the_umask_says(tiny, tmp_path, umask, folder, file):
    before, found = os.umask(umask), {}

    def look(step):
        for path in tmp_path.rglob("*"):
            found[path] = path.stat().st_mode & 0o777

    try:
        two = Plan(**{**vars(QUICK), "epochs": 2})
        train(tiny, TEXTS, LABELS, tmp_path / "a", plan=two, watch=look)
        look(None)
    finally:
        os.umask(before)
    modes = {path.name: mode for path, mode in found.items()}
    assert modes["a"] == folder
    for name in (
        "checkpoint.safetensors",
        "model.safetensors",
        "head.safetensors",
        "seen.safetensors",
    ):
        assert modes.pop(name) == file
    assert set(modes.values()) == {folder, file}


QUICK = Plan(epochs=1, batch_size=8, learning_rate=1e-3, max_length=16, seed=5)


def distinct(n):
    """Texts that are no copies of each other."""
    texts, labels = labelled_texts(n)
    return [f"{text} {i}" for i, text in enumerate(texts)], labels


def test_an_encoder_knows_what_it_was_trained_on(tiny, tmp_path):
    texts, labels = distinct(90)
    card = train(tiny, texts, labels, tmp_path / "a", plan=QUICK, validation=(["hi"], ["pay"])).card
    assert (card["trained_on"], card["set_aside"]) == (61, 29)
    encoder = make_encoder(tmp_path / "a")
    seen = encoder.has_seen(texts)
    assert seen.sum() == 61
    assert {label for label, told in zip(labels, seen, strict=True) if not told} == set(labels)
    np.testing.assert_array_equal(encoder.has_seen([f"  {t.upper()}\n" for t in texts]), seen)
    assert not encoder.has_seen(["something new", "hi", "\ud800"]).any()
    loaded = SentenceTransformer(str(tmp_path / "a"), device="cpu")
    np.testing.assert_array_equal(make_encoder(loaded).has_seen(texts), seen)
    again = Classifier.load(tmp_path / "a")
    again.save(tmp_path / "copy")
    np.testing.assert_array_equal(make_encoder(tmp_path / "copy").has_seen(texts), seen)

    # Trained further: nothing is forgotten, and what was seen is not set aside.
    more = [*texts, *(f"{text} more" for text in texts[:30])]
    train(tmp_path / "a", more, labels + labels[:30], tmp_path / "b", plan=QUICK, holdout=25)
    later = make_encoder(tmp_path / "b").has_seen(more)
    assert later[:90][seen].all()
    assert (~later).sum() == 25

    # A folder of before: unknown, and so is what comes of it.
    (tmp_path / "a" / "seen.safetensors").unlink()
    assert make_encoder(tmp_path / "a").has_seen(texts) is None
    train(tmp_path / "a", texts, labels, tmp_path / "c", plan=QUICK)
    assert make_encoder(tmp_path / "c").has_seen(texts) is None
    assert make_encoder(tmp_path / "c").features(texts, "logits").shape == (90, 3)
    (tmp_path / "b" / "seen.safetensors").write_bytes(b"cut")
    with pytest.raises(ModelFileError, match=r"seen\.safetensors cannot be read"):
        make_encoder(tmp_path / "b").has_seen(texts)


def test_a_saved_detector_brings_the_record_along(tiny, tmp_path):
    texts, labels = distinct(60)
    train(tiny, texts, labels, tmp_path / "a", plan=QUICK, holdout=0.5)
    TextDetector(str(tmp_path / "a"), "knn").fit(texts).save(tmp_path / "model")
    shutil.rmtree(tmp_path / "a")
    found = outscope.load(tmp_path / "model")._checked_encoder().has_seen(texts)
    assert (~found).sum() == 30


def test_texts_are_set_aside_whatever_their_class_and_with_their_copies():
    none = np.empty(0, np.uint64)
    texts = [f"text {i}" for i in range(601)]
    texts[:40] = [text.upper() + " " for text in texts[300:340]]
    aside = set_aside(texts, 0.2, 1, none)
    assert aside.sum() == 120
    np.testing.assert_array_equal(aside[:40], aside[300:340])
    np.testing.assert_array_equal(aside, set_aside(texts, 0.2, 1, none))
    assert (aside != set_aside(texts, 0.2, 2, none)).any()
    chosen = np.mean([set_aside(texts, 0.2, seed, none) for seed in range(200)], axis=0)
    assert 0.05 < chosen.min() < chosen.max() < 0.35, "every text has the same chance"
    assert set_aside(texts[:60], 20, 1, hashes(texts[:30]))[30:].sum() == 20
    assert not set_aside(texts, "auto", 1, None).any(), "what was seen before is unknown"
    for bad in (-1, 601, 1.5e9, True, "some", float("nan")):
        with pytest.raises(InputError, match="holdout="):
            set_aside(texts, bad, 1, none)


def test_frozen_parts_stay_as_they_were(tiny, tmp_path):
    plan = Plan(epochs=1, batch_size=8, learning_rate=1e-2, frozen=2)
    train(tiny, TEXTS, LABELS, tmp_path / "a", plan=plan)
    before = make_encoder(tiny)._network().core
    after = make_encoder(tmp_path / "a")._network().network.core
    same = [torch.equal(p, q) for p, q in zip(before.parameters(), after.parameters(), strict=True)]
    first = len(list(before.embeddings.parameters())) + len(list(blocks_of(before)[0].parameters()))
    assert all(same[:first])
    assert not any(same[first : first + 4])


def test_contrastive_loss_is_its_formula():
    rng = np.random.default_rng(0)
    vectors, labels = rng.normal(size=(9, 5)), np.repeat([0, 1, 2], 3)
    gaps = ((vectors[:, None] - vectors[None]) ** 2).sum(axis=2)
    margin = max(gaps[i, j] for i in range(9) for j in range(9) if labels[i] == labels[j])
    total = 0.0
    for i in range(9):
        near = [gaps[i, j] for j in range(9) if labels[i] == labels[j] and i != j]
        far = [max(0.0, margin - gaps[i, j]) for j in range(9) if labels[i] != labels[j]]
        total += np.mean(near) + np.mean(far)
    found = margin_contrastive(torch.tensor(vectors), torch.tensor(labels))
    assert float(found) == pytest.approx(total / 9 / 5)
    alone = margin_contrastive(torch.tensor(vectors), torch.arange(9))
    assert float(alone) == 0.0


def test_squared_norms_are_those_of_the_jacobian():
    """The mean over many pairs is the exact squared Frobenius norm, within two per cent."""
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 4))
    inner = torch.randn(3, 6)
    exact = torch.stack(
        [torch.autograd.functional.jacobian(network, row).square().sum() for row in inner]
    )
    generator = torch.Generator().manual_seed(1)
    copies = inner.repeat(1000, 1).requires_grad_()  # many pairs of each row at a time
    found = squared_norms(
        network(copies), copies, lambda shape: torch.randn(shape, generator=generator), 200
    )
    mean = found.reshape(1000, 3).mean(dim=0)
    np.testing.assert_allclose(mean.numpy(), exact.numpy(), rtol=0.02)


def test_smoothness_of_a_text_does_not_depend_on_its_neighbours(trained):
    encoder = make_encoder(trained)
    whole = encoder.features(TEXTS[:20], "smoothness")
    assert whole.shape == (20, 2)
    assert (whole > 0).all()
    many = TransformerEncoder(trained, pairs=400)
    last = many.features(TEXTS[:5], "last-smoothness")
    assert last.shape == (5, 1)
    every = many.features(TEXTS[:5], "smoothness")  # other draws of the same quantity
    np.testing.assert_allclose(last[:, 0], every[:, -1], rtol=0.6)
    np.testing.assert_allclose(encoder.features(TEXTS[7:8], "smoothness")[0], whole[7], rtol=1e-3)


@pytest.mark.parametrize("method", ["msp", "energy", "d2u", "blood"])
def test_classifier_methods_from_texts_to_a_saved_folder(trained, method, tmp_path):
    detector = TextDetector(str(trained), method, holdout=20).fit(TEXTS, LABELS)
    verdicts = detector.set_threshold(value=1e9).predict(TEXTS)
    if method == "blood":
        assert {v.label for v in verdicts} == {None}
    else:
        assert np.mean([v.label == y for v, y in zip(verdicts, LABELS, strict=True)]) > 0.95
    if method == "blood":
        assert detector.detector_.needs == "last-smoothness"
        assert (
            TextDetector(str(trained), BLOODDetector("mean")).fit(TEXTS).ood_score(TEXTS).min() > 0
        )
    detector.save(tmp_path / "model")
    back = outscope.load(tmp_path / "model")
    np.testing.assert_allclose(back.ood_score(TEXTS[:5]), detector.ood_score(TEXTS[:5]), rtol=1e-5)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"loss": "hinge"}, "loss='hinge'"),
        ({"epochs": 0}, "epochs=0"),
        ({"learning_rate": -1.0}, "learning_rate"),
        ({"learning_rate": 1e9}, "lower learning_rate"),
        ({"loss": "margin-contrastive", "batch_size": 1}, "no pairs"),
    ],
)
def test_plans_that_cannot_work_are_refused(tiny, tmp_path, change, words):
    plan = Plan(**{**vars(PLAN), **change})
    with pytest.raises(InputError, match=words):
        train(tiny, TEXTS, LABELS, tmp_path / "a", plan=plan)
    assert not (tmp_path / "a").exists()


def test_bad_labels_and_full_folders_are_refused(tiny, tmp_path):
    with pytest.raises(InputError, match="1 class"):
        train(tiny, TEXTS, ["a"] * 60, tmp_path / "a", plan=PLAN)
    with pytest.raises(InputError, match="3 values"):
        train(tiny, TEXTS, ["a"] * 3, tmp_path / "a", plan=PLAN)
    with pytest.raises(InputError, match="1 of 60 texts are empty"):
        train(tiny, [*TEXTS[1:], " "], LABELS, tmp_path / "a", plan=PLAN)
    with pytest.raises(InputError, match="no training text has: other"):
        train(tiny, TEXTS, LABELS, tmp_path / "a", plan=PLAN, validation=(["a"], ["other"]))
    with pytest.raises(InputError, match="seed=-1"):
        train(tiny, TEXTS, LABELS, tmp_path / "a", plan=Plan(seed=-1))
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="is a file"):
        train(tiny, TEXTS, LABELS, tmp_path / "file", plan=PLAN)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thing").touch()
    with pytest.raises(InputError, match="holds other files"):
        train(tiny, TEXTS, LABELS, tmp_path / "full", plan=PLAN)
    with pytest.raises(InputError, match=r"cannot write to .*choose another|is a file"):
        train("no such encoder", TEXTS, LABELS, tmp_path / "file" / "a", plan=PLAN)
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to("empty")
    train(tiny, TEXTS, LABELS, tmp_path / "link", plan=QUICK)
    assert logits(tmp_path / "link").shape == (60, 3)


def test_a_damaged_classifier_is_refused(trained, tmp_path):
    shutil.copytree(trained, tmp_path / "a")
    (tmp_path / "a" / "head.safetensors").write_bytes(b"short")
    with pytest.raises(ModelFileError, match="whole fine-tuned encoder"):
        make_encoder(tmp_path / "a").features(["a"], "logits")
    (tmp_path / "a" / "classifier.json").write_text('{"format": "other"}')
    with pytest.raises(ModelFileError, match="another kind"):
        make_encoder(tmp_path / "a").features(["a"], "logits")


def test_finetune_embed_fit_and_score_by_command(tiny, tmp_path, capsys, monkeypatch):
    rows = "".join(f"{t},{y}\n" for t, y in zip(TEXTS, LABELS, strict=True))
    (tmp_path / "train.csv").write_text("text,label\n" + rows)
    (tmp_path / "far.txt").write_text("how tall is a mountain\nwhat is the weather\n")

    def run(*arguments):
        code = main([str(a) for a in arguments])
        out, err = capsys.readouterr()
        assert code == 0, err
        return out, err

    settings = ["--epochs", 3, "--batch-size", 8, "--learning-rate", 3e-3, "--encoder", tiny]
    _, err = run("finetune", tmp_path / "train.csv", "--validation", tmp_path / "train.csv",
                 "--out", tmp_path / "encoder", *settings)  # fmt: skip
    assert err.count("validation accuracy") == 3
    assert "set aside 29 of 60 texts for the threshold" in err
    run(
        "embed",
        tmp_path / "train.csv",
        "--out",
        tmp_path / "v.npy",
        "--encoder",
        tmp_path / "encoder",
    )
    assert np.load(tmp_path / "v.npy").shape == (60, 32)
    _, err = run("fit", tmp_path / "train.csv", "--encoder", tmp_path / "encoder",
                 "--method", "energy", "--out", tmp_path / "model")  # fmt: skip
    assert "a threshold alone" in err
    out, _ = run("score", tmp_path / "model", tmp_path / "far.txt")
    assert out.count('"ood_score"') == 2
    out, _ = run("eval", tmp_path / "model", "--inside", tmp_path / "train.csv",
                 "--outside", tmp_path / "far.txt")  # fmt: skip
    assert '"auroc"' in out
    (tmp_path / "held.txt").write_text("\n".join(TEXTS[:40]) + "\n\n")
    _, err = run("fit", tmp_path / "train.csv", "--text-column", "text", "--encoder", tiny,
                 "--calibrate", tmp_path / "held.txt", "--skip-empty", "--method", "c-nnk-means",
                 "--out", tmp_path / "model2")  # fmt: skip
    assert "threshold from training" not in err
    out, _ = run("explain", tmp_path / "model2", tmp_path / "far.txt")
    assert '"texts"' in out
    _, err = run("finetune", tmp_path / "train.csv", "--out", tmp_path / "all", "--holdout", 0,
                 "--epochs", 1, "--encoder", tiny)  # fmt: skip
    assert "without --calibrate" in err
    assert main(["fit", str(tmp_path / "held.txt"), "--fpr", "0", "--out", "x"]) == 2
    assert "--fpr 0.0: expected" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "torch", None)
    assert main(["finetune", str(tmp_path / "train.csv"), "--out", str(tmp_path / "e2")]) == 2
    assert "pip install 'outscope[text]'" in capsys.readouterr().err
