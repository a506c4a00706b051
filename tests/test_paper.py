"""The paper's runs: tasks, records that survive anything, tables and claims from them."""

from __future__ import annotations

import json
import re

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tiny import WORDS, tiny_encoder

from outscope import InputError
from outscope.cli import main
from outscope.paper.claims import Claim, _verdict_on, best_gap, claims
from outscope.paper.features import Store, training_told
from outscope.paper.published import chosen, printed, published
from outscope.paper.records import Records
from outscope.paper.rendering import Report, markdown, page
from outscope.paper.report import PICTURED, build_report, task_to_picture
from outscope.paper.runner import Choice, Job, plan, run
from outscope.paper.settings import CLASS_ATOMS, NNK, Variant, grid, make, variants
from outscope.paper.tables import Setting, latest, measure_table
from outscope.paper.tasks import RATIOS, Task, load_task


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A small Banking77 of eight classes in the layout of the public files."""
    folder = tmp_path_factory.mktemp("data")
    rng = np.random.default_rng(0)
    (folder / "banking77").mkdir()
    for split, n in (("train", 320), ("test", 96)):
        labels = np.arange(n) % 8
        texts = [
            " ".join([WORDS[4 * y], WORDS[4 * y + 1], *rng.choice(WORDS, 2)]) + f" {i}"
            for i, y in enumerate(labels)
        ]
        table = pa.table({"text": texts, "label": [f"c{y}" for y in labels]})
        pq.write_table(table, folder / "banking77" / f"{split}.parquet")
    return folder


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    return str(tiny_encoder(tmp_path_factory.mktemp("models") / "tiny"))


@pytest.fixture(scope="module")
def finished(data, encoder, tmp_path_factory):
    """Records of two draws at one ratio, all methods of a pre-trained encoder."""
    folder = tmp_path_factory.mktemp("paper")
    records = Records(folder / "records.jsonl")
    store = Store(folder / "store", data, encoder, lambda words: None)
    run(plan(choice(encoder)), store, records)
    return records, store


def choice(encoder, **changes):
    base = Choice(("banking77",), (50,), ("pretrained",), None, (0, 1), encoder, False)
    return base._replace(**changes)


def test_a_task_keeps_out_of_scope_classes_out_of_its_training(data):
    found = load_task(Task("banking77", 50, 3), data)
    inside = set(found.train.labels)
    assert len(inside) == 4
    assert not found.train.is_ood.any()
    for part in (found.validation, found.test):
        assert set(part.labels[~part.is_ood]) == inside
        assert not set(part.labels[part.is_ood]) & inside
    assert not set(found.train.texts) & set(found.validation.texts)
    assert found.counts == (288, 32, 96)
    again, other = (load_task(Task("banking77", 50, seed), data) for seed in (3, 4))
    assert again.train.texts == found.train.texts
    assert set(other.train.labels) != inside


def test_tasks_that_do_not_exist_are_named(data):
    with pytest.raises(InputError, match="unknown"):
        load_task(Task("imdb", 50, 0), data)
    with pytest.raises(InputError, match="no ratio 30"):
        load_task(Task("banking77", 30, 0), data)
    with pytest.raises(InputError, match="does not exist"):
        load_task(Task("clinc150", 100, 0), data)


def test_every_printed_number_is_there():
    counts = {}
    for one in published():
        counts[one.table] = counts.get(one.table, 0) + 1
    assert counts == {
        "AUROC-Results": 84, "AUPR-Results": 84, "FPR@95-Results": 84, "Time-Results": 24,
        "agnews": 80, "pt_margin": 60, "HP1": 54, "HP2": 36,
    }  # fmt: skip
    assert printed("ec-nnk-means", "clinc150", 100, "finetuned", "auroc") == 98.23
    assert printed("knn", "20newsgroups", 50, "contrastive", "auroc") == 77.5
    assert printed("msp", "clinc150", 100, "pretrained", "auroc") is None
    assert chosen("c-ec-nnk-means", "ag_news", 75, "finetuned") == (150, 0.07)
    assert chosen("nnk-means", "20newsgroups", 50, "pretrained") == (4000,)
    assert chosen("nnk-means", "clinc150", 100, "pretrained") == (2000,)


def test_grids_and_presets_are_the_papers():
    assert len(list(grid("ec-nnk-means"))) == 20
    assert len(list(grid("c-kmeans"))) == len(CLASS_ATOMS)
    detector = make(Variant("c-ec-nnk-means", "paper"), (32, 0.03), 7)
    wanted = {
        "kernel": "cosine",
        "update": "mod",
        "n_atoms": 32,
        "entropy": 0.03,
        "max_atoms": None,
    }
    assert {name: detector.get_params()[name] for name in wanted} == wanted
    assert detector.random_state == 7
    assert make(Variant("nnk-means", "small"), (), 0).precision == "auto"
    assert len(variants("pretrained")) == 8 + 4 + 1
    assert len(variants("finetuned")) == 12 + 4 + 1


def test_only_draws_that_every_method_saw_are_compared(finished):
    records, _ = finished
    seen = [r for r in records.all if not (r["seed"] == 1 and r["method"] == "knn")]
    assert {r["seed"] for r in latest(records.all)} == {0, 1}
    assert {r["seed"] for r in latest(seen)} == {0}
    apart = [r for r in seen if not (r["seed"] == 0 and r["method"] == "kmeans")]
    assert {r["seed"] for r in latest(apart)} == {0, 1}


def test_less_training_is_told():
    long, short = Task("ag_news", 50, 0), Task("clinc150", 100, 0)
    assert training_told(short, "pretrained") is None
    assert training_told(short, "finetuned")["most_rows"] is None
    assert training_told(short, "contrastive")["loss"] == "margin-contrastive"
    assert training_told(long, "finetuned")["most_rows"] == 1000
    assert training_told(long, "finetuned")["epochs"] < training_told(short, "finetuned")["epochs"]


def test_one_record_each_and_never_twice(finished, encoder, tmp_path):
    records, store = finished
    assert len(records.all) == 26
    assert {record["status"] for record in records.all} == {"done"}
    assert len({record["key"] for record in records.all}) == 26
    run(plan(choice(encoder)), store, records)
    assert len(Records(records.path).all) == 26
    record = records.find(method="nnk-means", settings="ours", seed=1)[0]
    assert record["metrics"].keys() >= {"auroc", "aupr_in", "aupr_out", "fpr_at_95"}
    assert record["seconds"]["score"] > 0
    assert record["stored_bytes"] >= record["stored_vectors"] * 32 * 4
    record = records.find(method="nnk-means", settings="paper", seed=1)[0]
    assert record["stored_bytes"] == record["stored_vectors"] * 32 * 4
    again = Records(tmp_path / "again.jsonl")
    job = next(job for job in plan(choice(encoder)) if job.key == record["key"])
    run([job], store, again)
    assert again.all[0]["metrics"]["auroc"] == pytest.approx(record["metrics"]["auroc"], abs=1e-3)


def test_a_torn_line_is_dropped_and_the_rest_goes_on(tmp_path):
    path = tmp_path / "r.jsonl"
    records = Records(path)
    records.add({"key": "a", "status": "done"})
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"key": "b", "sta')
    again = Records(path)
    assert path.read_bytes() == whole
    again.add({"key": "b", "status": "failed"})
    again.add({"key": "b", "status": "done"})
    again.add({"key": "b", "status": "done"})
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(line["key"], line["status"]) for line in lines] == [
        ("a", "done"), ("b", "failed"), ("b", "done"),
    ]  # fmt: skip


def test_a_failed_job_is_recorded_and_stops_nothing(finished, encoder, tmp_path):
    _, store = finished
    records = Records(tmp_path / "r.jsonl")
    bad = Job(Task("clinc150", 100, 0), "pretrained", encoder, Variant("knn", "paper"), False)
    good = plan(choice(encoder, methods=("knn",), seeds=(0,)))
    run([bad, *good], store, records)
    assert [record["status"] for record in records.all] == ["failed", "done"]
    assert "does not exist" in records.all[0]["error"]


def test_tuning_takes_the_best_of_the_grid_once(finished, encoder, tmp_path, monkeypatch):
    _, store = finished
    monkeypatch.setattr("outscope.paper.settings.ATOMS", (5, 40))
    records = Records(tmp_path / "r.jsonl")
    run(plan(choice(encoder, methods=("kmeans",), tuned=True)), store, records)
    choices = [record for record in records.all if record.get("kind") == "choice"]
    assert len(choices) == 1
    best = max(choices[0]["tried"], key=lambda one: one["auroc"])
    for record in records.find(method="kmeans", settings="paper"):
        assert record.get("kind") == "choice" or record["hyper_parameters"] == best["values"]


def test_the_report_has_every_table_and_needs_no_network(finished):
    records, _ = finished
    built = build_report(records.all)
    text, html = markdown(built), page(built)
    for words in ("AUROC", "AUPR", "FPR@95", "Inference time", "NNK-Means (ours)", "The claims"):
        assert words in text
        assert words in html
    assert all(f"\n\n{paragraph}\n\n" in text for paragraph in built.intro)
    assert "<script src" not in html
    assert "<link " not in html.split("<script")[0]
    table = measure_table(
        records.all,
        "auroc",
        "pretrained",
        "tiny",
        [Setting("banking77", r) for r in RATIOS["banking77"]],
    )
    assert table.columns == ["Banking77 50 %"]
    values = [row.cells["Banking77 50 %"] for row in table.rows if row.group == "label-blind"]
    assert max(values).best
    assert sum(cell.best for cell in values) >= 1
    assert all(cell.draws == 2 for cell in values)


def test_the_page_can_be_read_on_a_phone(finished):
    """Tables scroll and say so, verdicts wrap, no tool bar lies over a title."""
    built = build_report(finished[0].all)
    html = page(built)
    assert "<meta name='viewport' content='width=device-width,initial-scale=1'>" in html
    assert html.count("<table") == len(re.findall(r"<div class=wide><table", html)) > 4
    style = html.split("<style>")[1].split("</style>")[0]
    assert re.search(r"\.wide\{[^}]*overflow-x:auto", style)
    assert re.search(r'\.cut::before\{content:"scroll sideways', style)
    assert 'classList.toggle("cut",cut)' in html
    assert re.search(r"td\.words[^{]*\{[^}]*white-space:normal", style)
    verdicts = re.findall(r"<td class='([^']+)'><b>(?:holds|nearly|does)", html)
    assert verdicts
    assert all("words" in classes.split() for classes in verdicts)
    assert html.count('"displayModeBar": false') == len(built.figures) > 0
    assert "<h2>AUROC by method and representation, tiny</h2>" in html


def test_a_near_miss_is_no_refutation():
    assert _verdict_on(0.856, 0.86) == "holds here"
    assert _verdict_on(44 / 52, 0.86) == "nearly holds: 85% against 86%"
    assert _verdict_on(0.83, 0.86) == "does not hold here"
    built = Report("t", [], [Claim("c", _verdict_on(0.85, 0.86), "n")], [], [], [])
    assert "<td class='words part'><b>nearly holds: 85% against 86%</b>" in page(built)


def test_claims_follow_from_the_numbers():
    setting = Setting("clinc150", 100)

    def record(method, settings, auroc, seconds, vectors=100):
        return {
            "key": f"{method}/{settings}", "status": "done", "dataset": "clinc150", "ratio": 100,
            "seed": 0, "representation": "finetuned", "encoder": "e", "method": method,
            "settings": settings, "metrics": {"auroc": auroc}, "seconds": {"score": seconds},
            "stored_vectors": vectors, "train_rows": 1000,
        }  # fmt: skip

    records = [
        record("knn", "paper", 0.95, 1.0, 1000),
        record("nnk-means", "paper", 0.94, 0.2),
        *(record(m, "ours", 0.96 + 0.001 * i, 0.05) for i, m in enumerate(NNK)),
        record("nnk-means", "small", 0.951, 0.1),
    ]
    found = {claim.claim: claim for claim in claims(records)}
    told = [claim.verdict for claim in found.values()]
    assert told.count("does not hold here") >= 1
    assert found["the same with our defaults, nothing tuned"].verdict == "holds here"
    assert found["EC-NNK-Means is 11 × faster than KNN on CLINC150"].verdict == "holds here"
    assert "20.0 ×" in found["EC-NNK-Means is 11 × faster than KNN on CLINC150"].numbers
    slower = [
        {**record("knn", "paper", 0.9, 0.2), "representation": "pretrained", "key": "a"},
        *(
            {**record(m, "ours", 0.9, 0.1), "representation": "pretrained", "key": m}
            for m in ("nnk-means", "ec-nnk-means")
        ),
    ]
    both = {claim.claim: claim for claim in claims(records + slower)}
    speed = both["EC-NNK-Means is 11 × faster than KNN on CLINC150"]
    assert speed.verdict == "holds with a restriction"
    assert "pretrained e: EC 2.0 ×" in speed.numbers
    gaps = {("nnk-means", "ours", setting): (96.0, 0, 1), ("knn", "paper", setting): (95.0, 0, 1)}
    assert best_gap(gaps, setting, "ours") == 1.0
    assert best_gap(gaps, setting, "paper") is None


def test_run_and_report_by_command(data, encoder, tmp_path, capsys):
    records = tmp_path / "p" / "records.jsonl"
    shared = ["--records", str(records), "--data", str(data), "--store", str(tmp_path / "s")]
    start = ["paper", "run", *shared, "--encoder", encoder, "--dataset", "banking77"]
    assert main([*start, "--ratio", "25", "--method", "knn", "--method", "nnk-means"]) == 0
    out, err = capsys.readouterr()
    assert out == ""
    assert "4 results wanted, 4 missing" in err
    assert "4 done, 0 failed" in err
    assert main(["paper", "report", "--records", str(records), "--no-figures"]) == 0
    assert (records.parent / "report.html").read_text().startswith("<!doctype html>")
    assert main(["paper", "run", *shared]) == 2
    assert "say what to run" in capsys.readouterr().err
    assert main([*start, "--representation", "other"]) == 2
    assert main(["paper", "report", "--records", str(tmp_path / "none.jsonl")]) == 2
    assert "holds no results" in capsys.readouterr().err


def test_the_picture_is_of_a_task_whose_vectors_are_at_hand():
    def done(task, rows):
        return {
            "key": str(task),
            "status": "done",
            "representation": "pretrained",
            "encoder": "any",
            "method": "knn",
            "settings": "paper",
            "dataset": task.dataset,
            "ratio": task.ratio,
            "seed": task.seed,
            "train_rows": rows,
        }

    small, large = Task("banking77", 25, 0), Task("clinc150", 100, 0)
    assert task_to_picture([done(large, 15000), done(small, 2000)]) == small
    assert task_to_picture([done(small, 2000), done(PICTURED, 3776)]) == PICTURED
    assert task_to_picture([]) == PICTURED
