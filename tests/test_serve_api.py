"""The routes, called in process: right answers, right errors."""

from __future__ import annotations

import asyncio
import io
import json

import numpy as np
import pytest
from serving import ADMIN, USER, client_of, text_detector, vector_detector
from threadpoolctl import threadpool_info, threadpool_limits

from outscope import KNNDetector, MahalanobisDetector, NNKDetector, load
from outscope.serve import Settings, create_app
from outscope.serve.judging import results_of
from outscope.serve.keys import Keys, hash_key

KEYS = Keys({hash_key(USER): "u"}, {hash_key(ADMIN): "a"})
INSIDE, OUTSIDE = "unlock bike station lock", "zebra quantum opera volcano"


@pytest.fixture(scope="module")
def texts():
    return text_detector()


@pytest.fixture(scope="module")
def rows():
    return vector_detector()


def ask(app, *calls, **headers):
    """Answers of calls, each (method, path, body)."""

    async def run():
        async with client_of(app, **headers) as client:
            return [await client.request(method, path, json=body) for method, path, body in calls]

    return asyncio.run(run())


def post(app, path, body, **headers):
    return ask(app, ("POST", path, body), **headers)[0]


def test_scores_are_those_of_the_library(texts, rows):
    detector, fresh = rows
    app = create_app({"texts": texts, "rows": detector})
    asked = [INSIDE, OUTSIDE, "pay bill"]
    one, many, vectors = ask(
        app,
        ("POST", "/v1/score", {"texts": OUTSIDE}),
        ("POST", "/v1/score", {"texts": asked}),
        ("POST", "/v1/score", {"vectors": fresh.tolist(), "model": "rows"}),
    )
    verdicts = texts.predict(asked)
    assert [r["is_ood"] for r in many.json()["results"]] == [v.is_ood for v in verdicts]
    assert [r["label"] for r in many.json()["results"]] == [v.label for v in verdicts]
    assert one.json()["results"][0]["is_ood"]
    assert one.json()["results"][0]["ood_score"] == verdicts[1].ood_score
    body = vectors.json()
    assert [r["ood_score"] for r in body["results"]] == detector.ood_score(fresh).tolist()
    assert [r["is_ood"] for r in body["results"]] == detector.is_ood(fresh).tolist()
    assert body["threshold"] == detector.threshold_
    assert body["promise"] == str(detector.promise_)


def test_a_rate_for_one_call_changes_nothing(rows):
    detector, fresh = rows
    app = create_app(detector)
    before, cut = detector.threshold_, 0.3
    tried = post(app, "/v1/score", {"vectors": fresh.tolist(), "fpr": cut}).json()
    again = post(app, "/v1/score", {"vectors": fresh.tolist()}).json()
    assert tried["threshold"] < before == again["threshold"] == detector.threshold_
    assert sum(r["is_ood"] for r in tried["results"]) > sum(r["is_ood"] for r in again["results"])
    impossible = post(app, "/v1/score", {"vectors": fresh.tolist(), "fpr": 1e-6})
    assert impossible.status_code == 422
    assert "cannot be promised" in impossible.json()["detail"]


def test_rows_without_json(rows):
    detector, fresh = rows
    app = create_app(detector)
    file = io.BytesIO()
    np.save(file, fresh.astype(np.float64))

    async def run():
        async with client_of(app, **{"content-type": "application/octet-stream"}) as client:
            return [
                await client.post("/v1/score?fpr=0.1", content=content)
                for content in (fresh.tobytes(), file.getvalue(), fresh.tobytes()[:-1], b"")
            ]

    raw, npy, cut, empty = asyncio.run(run())
    assert [r["ood_score"] for r in raw.json()["results"]] == detector.ood_score(fresh).tolist()
    assert raw.json() == npy.json()
    assert raw.json()["fpr"] == 0.1
    assert cut.status_code == empty.status_code == 422


@pytest.mark.parametrize("kind", ["rows", "texts"])
def test_scores_without_json_are_those_of_the_results(kind, request):
    if kind == "rows":
        detector, fresh = request.getfixturevalue("rows")
        body = {"vectors": fresh.tolist(), "fpr": 0.1}
    else:
        detector = text_detector()
        body = {"texts": ["pay bill", "quantum fields", "bike lock station"], "fpr": 0.1}
    app = create_app(detector, settings=Settings(batch=16))
    told = post(app, "/v1/score", body).json()
    bare = post(app, "/v1/score", body, accept="application/octet-stream")
    assert bare.headers["content-type"] == "application/octet-stream"
    scores = np.frombuffer(bare.content, "<f8")
    assert scores.tolist() == [r["ood_score"] for r in told["results"]]
    cut = float(bare.headers["x-outscope-threshold"])
    assert cut == told["threshold"]
    assert (scores > cut).tolist() == [r["is_ood"] for r in told["results"]]
    assert bare.headers["x-outscope-version"] == told["version"]
    wrong = post(app, "/v1/score", {**body, "model": "no"}, accept="application/octet-stream")
    assert wrong.headers["content-type"] == "application/problem+json"


def test_a_stream_has_a_line_for_each_item(rows):
    detector, fresh = rows
    app = create_app(detector, settings=Settings(batch=32, items=50))
    body = {"vectors": fresh.tolist()}
    refused = post(app, "/v1/score", body)
    assert refused.status_code == 413
    *lines, last = (
        json.loads(line)
        for line in post(app, "/v1/score", body, accept="application/x-ndjson").text.splitlines()
    )
    assert [line["index"] for line in lines] == list(range(100))
    assert [line["ood_score"] for line in lines] == detector.ood_score(fresh).tolist()
    assert last["summary"]["items"] == 100
    assert last["summary"]["flagged"] == int(detector.is_ood(fresh).sum())


def test_reasons_and_the_map(texts):
    app = create_app(texts)
    before = post(app, "/v1/explain", {"texts": [INSIDE], "n_atoms": 2}).json()["results"][0]
    (found,) = ask(app, ("GET", "/v1/models/default/map", None))
    after = post(app, "/v1/explain", {"texts": [INSIDE], "n_atoms": 2}).json()["results"][0]
    assert before["position"] is None
    assert len(after["position"]) == 2
    assert after["closest"] == "ride"
    assert 1 <= len(after["evidence"]) <= 2
    assert all(e["texts"] for e in after["evidence"])
    told = found.json()
    assert told["labels"] == ["account", "pay", "ride"]
    assert told["texts"]["text"] == texts.remembered_texts_
    assert len(told["texts"]["x"]) == len(told["texts"]["label"]) == len(told["texts"]["text"])
    assert len(told["atoms"]["x"]) == len(texts.detector_.atoms_)
    # A remembered text lies where it is asked for.
    place = post(app, "/v1/explain", {"texts": told["texts"]["text"][0]}).json()
    x, y = place["results"][0]["position"]
    assert (x, y) == pytest.approx((told["texts"]["x"][0], told["texts"]["y"][0]), abs=2e-3)


def test_detectors_without_reasons(blobs):
    train, labels, fresh, _ = blobs
    models = {"knn": KNNDetector().fit(train), "m": MahalanobisDetector().fit(train, labels)}
    app = create_app(models)
    for name, status in (("knn", 200), ("m", 409)):
        told = post(app, "/v1/explain", {"vectors": fresh[:2].tolist(), "model": name}).json()
        assert [r["evidence"] for r in told["results"]] == [[], []]
        assert told["results"][0]["unexplained"] is None
        assert ask(app, ("GET", f"/v1/models/{name}/map", None))[0].status_code == status


def test_one_blas_thread_while_rows_are_scored(rows):
    detector, fresh = rows
    seen = []

    def place(rows):
        seen.extend(x["num_threads"] for x in threadpool_info() if x["user_api"] == "blas")

    with threadpool_limits(2, user_api="blas"):
        results_of(detector, fresh[:1], 3, place)
    assert set(seen) == {1}


def test_a_verdict_has_the_same_fields_for_rows_and_texts(texts, rows):
    detector, fresh = rows
    labelled = NNKDetector(random_state=0).fit(fresh, ["a", "b"] * 50)
    strange = np.concatenate([fresh[:3], -fresh[:1]])
    verdicts = [result.as_dict() for result in texts.predict([INSIDE])]
    found = results_of(labelled, strange, 0, lambda rows: None)
    assert [*found[0]] == [*verdicts[0]]
    assert [one["is_ood"] for one in found] == labelled.is_ood(strange).tolist()
    assert found[3]["label"] == "out of scope"
    assert found[0]["label"] in ("a", "b", "out of scope")
    assert results_of(detector, strange, 0, lambda rows: None)[0]["label"] is None


def test_requests_that_arrive_together_share_a_batch(rows):
    detector, fresh = rows
    app = create_app(detector, settings=Settings(batch=16))
    expected = detector.ood_score(fresh)

    async def run():
        async with client_of(app) as client:
            calls = [
                client.post(
                    "/v1/score", json={"vectors": row.tolist(), "fpr": 0.05 + 0.1 * (i % 2)}
                )
                for i, row in enumerate(fresh)
            ]
            answers = await asyncio.gather(*calls)
            counted = (await client.get("/metrics")).text
        return answers, counted

    answers, counted = asyncio.run(run())
    got = [answer.json()["results"][0]["ood_score"] for answer in answers]
    assert got == expected.tolist()
    assert {answer.json()["fpr"] for answer in answers} == {0.05, 0.15000000000000002}
    batches = next(x for x in counted.splitlines() if x.startswith("outscope_batch_size_count"))
    assert float(batches.split()[-1]) < len(fresh)


def test_a_full_queue_says_when_to_come_back(rows):
    detector, fresh = rows
    app = create_app(detector, settings=Settings(batch=8, queue=40))

    async def run():
        async with client_of(app) as client:
            body = {"vectors": fresh[:20].tolist()}
            answers = await asyncio.gather(
                *(client.post("/v1/score", json=body) for _ in range(30))
            )
            return answers, await client.post("/v1/score", json=body)

    answers, later = asyncio.run(run())
    statuses = {answer.status_code for answer in answers}
    assert statuses == {200, 429}
    for answer in answers:
        if answer.status_code == 429:
            assert int(answer.headers["retry-after"]) >= 1
            assert answer.headers["content-type"] == "application/problem+json"
    assert later.status_code == 200


def test_thresholds_are_seen_tried_and_changed(tmp_path, rows):
    rows[0].save(tmp_path / "model")
    app = create_app(tmp_path / "model", keys=KEYS)
    path, admin = "/v1/threshold", {"x-api-key": ADMIN}
    seen = post(app, path, {}, **admin).json()
    tried = post(app, path, {"fpr": 0.2}, **admin).json()
    assert tried["threshold"] < seen["threshold"]
    assert not tried["changed"]
    assert post(app, path, {"fpr": 0.2, "change": True}, **{"x-api-key": USER}).status_code == 403
    assert post(app, path, {}, **admin).json() == seen
    changed = post(app, path, {"fpr": 0.2, "change": True}, **admin).json()
    assert changed["changed"]
    assert changed["saved"]
    assert changed["version"] != seen["version"]
    assert load(tmp_path / "model").threshold_ == changed["threshold"] == tried["threshold"]
    for body in ({"change": True}, {"fpr": 0.1, "value": 1.0}, {"fpr": 2.0}, {"fpr": "0.1"}):
        assert post(app, path, body, **admin).status_code == 422


def test_feedback_teaches_and_is_taken_back(texts):
    app = create_app(texts, settings=Settings(open_admin=True))
    near, known = "pay invoice bike lock", texts.remembered_texts_[0]
    before = texts.threshold_

    def score():
        return post(app, "/v1/score", {"texts": near}).json()["results"][0]

    first = score()
    told = post(app, "/v1/feedback", {"action": "refuse", "texts": [near, known]}).json()
    second = score()
    assert told["texts"] == 2
    assert any(known in said for said in told["warnings"])
    assert second["ood_score"] > first["ood_score"]
    assert second["refused_like"] == near
    assert post(app, "/v1/feedback", {"action": "undo"}).status_code == 200
    assert score() == first
    assert post(app, "/v1/feedback", {"action": "undo"}).status_code == 422
    assert post(app, "/v1/feedback", {"action": "accept"}).status_code == 422
    assert texts.threshold_ == before
    assert not texts.detector_.lessons_, "the caller's detector was changed"


def test_keys_open_what_they_should(rows):
    app = create_app(rows[0], keys=KEYS)
    body = {"vectors": rows[1][0].tolist()}
    assert post(app, "/v1/score", body).status_code == 401
    assert "Bearer" in post(app, "/v1/score", body).headers["www-authenticate"]
    assert post(app, "/v1/score", body, **{"x-api-key": "wrong"}).status_code == 401
    assert post(app, "/v1/score", body, authorization=f"Bearer {USER}").status_code == 200
    assert post(app, "/v1/score", body, authorization=f"Bearer {ADMIN}").status_code == 200
    feedback = {"action": "undo"}
    assert post(app, "/v1/feedback", feedback, **{"x-api-key": USER}).status_code == 403
    assert post(app, "/v1/feedback", feedback).status_code == 401
    for path, status in (("/metrics", 401), ("/health/live", 200), ("/", 200), ("/docs", 200)):
        assert ask(app, ("GET", path, None))[0].status_code == status, path
    keyless = create_app(rows[0])
    assert post(keyless, "/v1/feedback", feedback).json()["type"].endswith("no-admin")


def test_models_are_described(texts, rows):
    app = create_app({"texts": texts, "rows": rows[0]})
    first, second = ask(app, ("GET", "/v1/models", None))[0].json()["models"]
    assert (first["model"], first["kind"], first["default"]) == ("texts", "texts", True)
    assert first["labels"] == ["account", "pay", "ride"]
    assert (second["kind"], second["n_features"], second["default"]) == ("vectors", 8, False)
    assert ask(app, ("GET", "/v1/models/rows", None))[0].json() == second
    missing = ask(app, ("GET", "/v1/models/none", None))[0]
    assert missing.status_code == 404
    assert "texts, rows" in missing.json()["detail"]
    refused = post(app, "/v1/score", {"texts": "a", "model": "rows"})
    assert refused.status_code == 422
    assert "fitted on embeddings" in refused.json()["detail"]


def test_litellm_gets_its_actions(texts):
    app, path = create_app(texts), "/beta/litellm_basic_guardrail_api"

    def action(**body):
        return post(app, path, {"input_type": "request", **body}).json()

    assert action(texts=[INSIDE]) == {"action": "NONE"}
    blocked = action(texts=[INSIDE, OUTSIDE], litellm_call_id="1", images=None, tools=None)
    assert blocked["action"] == "BLOCKED"
    assert blocked["blocked_reason"]
    assert action(texts=[OUTSIDE], input_type="response") == {"action": "NONE"}
    chat = [
        {"role": "system", "content": OUTSIDE},
        {"role": "user", "content": [{"type": "text", "text": INSIDE}]},
        {"role": "assistant", "content": "I see."},
        {"role": "user", "content": "the second one"},
    ]
    said = [OUTSIDE, INSIDE, "I see.", "the second one"]
    assert action(texts=said, structured_messages=chat) == {"action": "NONE"}
    chat[3]["content"] = said[3] = OUTSIDE
    assert action(texts=said, structured_messages=chat)["action"] == "BLOCKED"
    options = {"replacement": "Please ask about bikes.", "reason": "no"}
    replaced = action(
        texts=said, structured_messages=chat, additional_provider_specific_params=options
    )
    assert replaced["action"] == "GUARDRAIL_INTERVENED"
    assert replaced["texts"] == [*said[:3], "Please ask about bikes."]
    odd = post(
        app, path, {"input_type": "request", "additional_provider_specific_params": {"fpr": 7}}
    )
    assert odd.status_code == 422


def test_a_changed_folder_is_followed_and_a_broken_one_is_not(tmp_path, rows):
    detector, fresh = rows
    folder = tmp_path / "model"
    detector.save(folder)
    app = create_app(folder, settings=Settings(reload=0.05))
    other = vector_detector()[0].set_threshold(fpr=0.4)

    async def version(client):
        return (await client.get("/v1/models/default")).json()

    async def until(client, differs):
        for _ in range(100):
            await asyncio.sleep(0.05)
            if (told := await version(client))["threshold"] != differs["threshold"]:
                return told
        return None

    async def run():
        async with app.router.lifespan_context(app), client_of(app) as client:
            first = await version(client)
            other.save(folder)
            second = await until(client, first)
            (folder / "manifest.json").write_text("{}")
            await asyncio.sleep(0.3)
            third = await version(client)
            score = await client.post("/v1/score", json={"vectors": fresh[0].tolist()})
            return first, second, third, score, (await client.get("/metrics")).text

    first, second, third, score, counted = asyncio.run(run())
    assert second["threshold"] == other.threshold_ != first["threshold"]
    assert second["version"] != first["version"]
    assert third["version"] == second["version"]
    assert score.status_code == 200
    assert 'outscope_reloads_total{model="default",outcome="failed"} 1.0' in counted


def test_a_row_names_the_example_for_which_it_is_refused():
    detector, fresh = vector_detector()
    strange = -np.ones((1, 8), np.float32)
    taught = detector.refuse(strange, names=["the odd one"])
    body = {"vectors": np.concatenate([strange, fresh[:1]]).tolist()}
    told = post(create_app(taught), "/v1/score", body).json()["results"]
    scores = taught.ood_score(np.float32(body["vectors"]))
    assert [one["ood_score"] for one in told] == scores.tolist()
    assert [one["refused_like"] for one in told] == ["the odd one", None]
