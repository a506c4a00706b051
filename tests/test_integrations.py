"""Other libraries run for real and get the detector's own verdicts."""

from __future__ import annotations

import asyncio
import sys

import numpy as np
import pytest
from plugs import INSIDE, OUTSIDE, examples, fitted, needs
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import Normalizer
from tiny import labelled_texts

from outscope import (
    InputError,
    KNNDetector,
    MissingExtraError,
    NNKDetector,
    TextDetector,
)
from outscope.cli import main
from outscope.integrations.judging import judge, text_detector, text_to_judge


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    return fitted(tmp_path_factory.mktemp("plug"))


def asked(last):
    """A conversation that began in scope, and how it goes on."""
    return [
        {"role": "user", "content": INSIDE},
        {"role": "assistant", "content": "Now, from your usual account?"},
        {"role": "user", "content": last},
    ]


# ---- what they share


def test_verdicts_have_reasons(saved):
    detector, folder = saved
    inside, outside = judge(detector, [INSIDE, OUTSIDE])
    assert (inside["is_ood"], inside["label"]) == (False, "pay")
    assert (outside["is_ood"], outside["label"]) == (True, "out of scope")
    assert outside["ood_score"] == detector.ood_score([OUTSIDE])[0]
    assert outside["reason"].startswith("out of scope: score")
    assert repr(inside["nearest"][0]) in inside["reason"]
    assert inside["promise"] == str(detector.promise_)
    assert judge(text_detector(folder), [OUTSIDE]) == [outside]


@pytest.mark.filterwarnings("ignore::outscope.errors.InScopeExampleWarning")
def test_a_reason_names_the_refused_example(tmp_path):
    detector = fitted(tmp_path)[0]
    (verdict,) = judge(detector.refuse([INSIDE]), [INSIDE])
    assert verdict["refused_like"] == INSIDE
    assert f"like what is to be refused: {INSIDE!r}" in verdict["reason"]


def test_only_detectors_of_texts_are_taken(blobs, tmp_path):
    with pytest.raises(InputError, match="judges rows, not texts"):
        text_detector(NNKDetector().fit(blobs[0]))
    with pytest.raises(ValueError, match="not fitted"):
        text_detector(TextDetector())


def test_a_lost_encoder_is_noticed_at_once(tmp_path):
    texts, labels = labelled_texts(40)
    lengths = TextDetector(lambda texts: np.array([[len(t), 1.0] for t in texts]))
    lengths.fit(texts, labels)
    lengths.save(tmp_path / "model")
    with pytest.raises(InputError, match=r"load it with outscope\.load"):
        text_detector(tmp_path / "model")


@pytest.mark.parametrize(
    ("messages", "text"),
    [
        ("hello", "hello"),
        ([{"role": "user", "content": "one"}, {"role": "assistant", "content": "two"}], "one"),
        (
            [
                {
                    "role": "user",
                    "content": [{"type": "input_text", "text": "a"}, {"type": "text", "text": "b"}],
                }
            ],
            "a\nb",
        ),
        ([{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}], None),
        ([{"role": "system", "content": "be kind"}], None),
        ([], None),
        ("  ", None),
        (asked("yes"), INSIDE),
        (asked(OUTSIDE), OUTSIDE),
        (asked([{"type": "input_image", "image_url": "x"}]), None),
    ],
)
def test_what_the_user_says_now_is_judged(messages, text):
    assert text_to_judge(messages, 5) == text


@pytest.mark.parametrize("turns", [0, -1, 1.5, True, "5"])
def test_turns_are_counted_in_whole_numbers(saved, turns):
    needs("agents"), needs("langchain_core")
    from outscope.integrations.agents import input_guardrail
    from outscope.integrations.langchain import ScopeCheck

    for made in (input_guardrail, ScopeCheck):
        with pytest.raises(InputError, match=r"turns=.*at least 1"):
            made(saved[0], turns=turns)


@pytest.mark.parametrize(
    ("home", "module", "extra"),
    [
        ("agents", "agents", "agents"),
        ("guardrails", "guardrails", "guardrails"),
        ("langchain", "langchain_core", "langchain"),
        ("mcp", "mcp.server.mcpserver", "mcp"),
        ("pyod", "pyod", "pyod"),
    ],
)
def test_a_missing_library_is_named_with_its_install_line(saved, home, module, extra, monkeypatch):
    from importlib import import_module

    name = f"outscope.integrations.{home}"
    monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, module, None)

    def use():
        found = import_module(name)
        getattr(found, "server", getattr(found, "input_guardrail", None))(saved[0])

    with pytest.raises(MissingExtraError, match=rf"pip install 'outscope\[{extra}\]'"):
        use()
    monkeypatch.delitem(sys.modules, name, raising=False)


# ---- OpenAI Agents SDK


@pytest.fixture
def answering():
    """The SDK, and an agent whose model answers here instead of over the network."""
    sdk = needs("agents")
    sdk.set_tracing_disabled(True)  # the examples below run in the same process
    from openai.types.responses import ResponseOutputMessage, ResponseOutputText

    class Parrot(sdk.Model):
        asked = 0

        async def get_response(self, *_, **__):
            self.asked += 1
            text = ResponseOutputText(text="Here you are.", type="output_text", annotations=[])
            message = ResponseOutputMessage(
                id="1", content=[text], role="assistant", status="completed", type="message"
            )
            return sdk.ModelResponse(output=[message], usage=sdk.Usage(), response_id=None)

        def stream_response(self, *_, **__):
            raise NotImplementedError

    return sdk, Parrot()


def test_an_agent_stops_before_it_answers_off_topic(saved, answering):
    sdk, model = answering
    from outscope.integrations.agents import input_guardrail

    agent = sdk.Agent(name="support", model=model, input_guardrails=[input_guardrail(saved[0])])
    quiet = sdk.RunConfig(tracing_disabled=True)
    result = asyncio.run(sdk.Runner.run(agent, INSIDE, run_config=quiet))
    assert result.final_output == "Here you are."
    (passed,) = result.input_guardrail_results
    assert passed.output.output_info["label"] == "pay"
    assert model.asked == 1
    conversation = [
        {"role": "user", "content": INSIDE},
        {"role": "assistant", "content": "Here you are."},
        {"role": "user", "content": OUTSIDE},
    ]
    with pytest.raises(sdk.InputGuardrailTripwireTriggered) as stopped:
        asyncio.run(sdk.Runner.run(agent, conversation, run_config=quiet))
    output = stopped.value.guardrail_result.output
    assert output.tripwire_triggered
    assert output.output_info == judge(saved[0], [OUTSIDE])[0]
    assert model.asked == 1  # the model never saw it
    result = asyncio.run(sdk.Runner.run(agent, asked("yes"), run_config=quiet))
    (passed,) = result.input_guardrail_results
    assert passed.output.output_info == judge(saved[0], [INSIDE])[0]
    agent.input_guardrails = [input_guardrail(saved[0], turns=1)]
    result = asyncio.run(
        agent.input_guardrails[0].run(agent, asked("yes"), sdk.RunContextWrapper(None))
    )
    question = asked("yes")[1]["content"]
    assert result.output.output_info == judge(saved[0], [question])[0]
    picture = [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]
    with pytest.raises(sdk.InputGuardrailTripwireTriggered):
        asyncio.run(sdk.Runner.run(agent, picture, run_config=quiet))


# ---- LangChain


def test_a_runnable_judges_texts_and_messages(saved):
    needs("langchain_core")
    from langchain_core.messages import AIMessage, HumanMessage
    from langchain_core.prompts import ChatPromptTemplate
    from langchain_core.runnables import RunnableLambda

    from outscope.integrations.langchain import ScopeCheck

    check = ScopeCheck(saved[1])
    inside, outside = judge(saved[0], [INSIDE, OUTSIDE])
    assert check.batch([INSIDE, OUTSIDE]) == [inside, outside]
    assert check.batch([]) == []
    route = check | RunnableLambda(lambda verdict: "no" if verdict["is_ood"] else "yes")
    assert route.batch([INSIDE, OUTSIDE]) == ["yes", "no"]
    assert asyncio.run(route.ainvoke(OUTSIDE)) == "no"
    talk = [HumanMessage(OUTSIDE), AIMessage("No."), HumanMessage(INSIDE)]
    assert check.invoke(talk) == inside
    replied = [HumanMessage(INSIDE), AIMessage("Today?"), HumanMessage("yes please")]
    assert check.invoke(replied) == inside
    assert ScopeCheck(saved[0], turns=1).invoke(replied) == judge(saved[0], ["Today?"])[0]
    prompt = ChatPromptTemplate.from_messages([("system", "be kind"), ("human", "{question}")])
    assert (prompt | check).invoke({"question": OUTSIDE}) == outside
    with pytest.raises(InputError, match="no text by a user"):
        check.invoke([AIMessage("No.")])
    bad, good = check.batch([[AIMessage("No.")], INSIDE], return_exceptions=True)
    assert isinstance(bad, InputError)
    assert good == inside


# ---- MCP


def test_an_agent_calls_the_tools_over_stdio(saved):
    needs("mcp")
    from mcp import Client, StdioServerParameters

    detector, folder = saved
    started = StdioServerParameters(
        command=sys.executable,
        args=["-m", "outscope", "mcp", folder],
        env={"PYTHONPATH": ":".join(filter(None, sys.path))},
    )

    async def talk():
        async with Client(started) as client:
            tools = {tool.name: tool for tool in (await client.list_tools()).tools}
            found = await client.call_tool("score", {"texts": [INSIDE, OUTSIDE]})
            why = await client.call_tool("explain", {"text": INSIDE, "n_atoms": 2})
            empty = await client.call_tool("score", {"texts": []})
            none = await client.call_tool("explain", {"text": INSIDE, "n_atoms": 0})
            return tools, found, why, empty, none

    tools, found, why, empty, none = asyncio.run(asyncio.wait_for(talk(), 60))
    assert set(tools) == {"score", "explain"}
    assert "ood_score (higher = stranger)" in tools["score"].description
    assert found.structured_content["results"] == judge(detector, [INSIDE, OUTSIDE])
    evidence = why.structured_content["evidence"]
    assert 1 <= len(evidence) <= 2
    assert set(evidence[0]["texts"]) <= set(detector.remembered_texts_)
    assert empty.is_error
    assert "give 1 to 1000 in a call" in empty.content[0].text
    assert "n_atoms=0: expected at least 1" in none.content[0].text


def test_mcp_refuses_what_it_cannot_serve(blobs, tmp_path, capsys):
    needs("mcp")
    KNNDetector().fit(blobs[0]).save(tmp_path / "rows")
    assert main(["mcp", str(tmp_path / "rows")]) == 2
    assert "judges rows, not texts" in capsys.readouterr().err


# ---- PyOD and scikit-learn


def test_pyod_treats_it_as_its_own(blobs):
    needs("pyod")
    from pyod.utils.data import evaluate_print  # noqa: F401  (its data helpers import cleanly)
    from sklearn.base import clone

    from outscope.integrations.pyod import OutscopeOD

    train, _, fresh, far = blobs
    found = OutscopeOD(contamination=0.05).fit(train)
    assert found.decision_scores_.shape == (len(train),)
    assert found.labels_.sum() == np.sum(found.decision_scores_ > found.threshold_) == 9
    assert found.predict(far).tolist() == [1] * len(far)
    assert found.predict(fresh).mean() <= 0.2  # 0.05 is asked for; 60 rows
    assert found.decision_function(far).min() > found.decision_function(fresh).max()
    chances = found.predict_proba(np.concatenate([fresh, far]))
    assert chances[:60, 1].mean() < chances[60:, 1].mean()
    again = clone(OutscopeOD(NNKDetector(n_atoms=30, random_state=0), folds=2)).fit(train)
    assert len(again.detector_.atoms_) == 30
    assert OutscopeOD(KNNDetector()).fit(train[:1]).decision_scores_.shape == (1,)


def test_pyod_finds_the_strange_rows_it_was_trained_on(blobs):
    """A row that became an atom explains itself; the scores of training rows must not be that."""
    needs("pyod")
    from outscope.integrations.pyod import OutscopeOD

    train = blobs[0]
    rng = np.random.default_rng(0)
    strange = 6.0 * rng.normal(size=(8, train.shape[1]))
    found = OutscopeOD(contamination=8 / 188).fit(np.concatenate([train, strange]))
    assert found.labels_[-8:].tolist() == [1] * 8


def test_pyod_embeds_texts_for_it(saved):
    needs("pyod")
    from pyod.models.embedding import EmbeddingOD

    from outscope.integrations.pyod import OutscopeOD

    encode = saved[0]._checked_encoder().encode
    model = EmbeddingOD(encoder=encode, detector=OutscopeOD(), contamination=0.1)
    model.fit(labelled_texts(90)[0])
    assert isinstance(model.detector_, OutscopeOD)
    assert model.predict([INSIDE, OUTSIDE]).tolist() == [0, 1]


def test_scikit_learn_pipelines(blobs):
    train, labels, fresh, far = blobs
    pipeline = make_pipeline(Normalizer(), NNKDetector(random_state=0)).fit(train, labels)
    assert pipeline.predict(far).tolist() == [-1] * len(far)
    assert pipeline.score_samples(far).max() < pipeline.score_samples(fresh).min()
    alone = NNKDetector(random_state=0).fit(Normalizer().transform(train), labels)
    given = Normalizer().transform(fresh)
    np.testing.assert_array_equal(pipeline.decision_function(fresh), alone.decision_function(given))


# ---- the examples in the documents

LIBRARIES = {
    "OpenAI Agents SDK": "agents",
    "LangChain": "langchain_core",
    "MCP": "mcp",
    "PyOD": "pyod",
    "scikit-learn": "pyod",  # for its data
    "ONNX": "onnxruntime",
}
SAID = {
    "OpenAI Agents SDK": "out of scope: score",
    "LangChain": "['an answer to send money to bob', 'Ask me about payments.']",
    "MCP": "out of scope: score",
    "ONNX": "[ True  True  True]",
}


@pytest.mark.parametrize("name", LIBRARIES)
def test_examples_run(name, saved, monkeypatch, capsys):
    needs(LIBRARIES[name])
    monkeypatch.chdir(saved[1].removesuffix("model"))
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    monkeypatch.setenv("OPENAI_AGENTS_DISABLE_TRACING", "1")
    text = examples()[name].replace(
        'command="outscope", args=[', 'command=PYTHON, args=["-m", "outscope", '
    )
    path = {"PYTHONPATH": ":".join(filter(None, sys.path))}
    text = text.replace('"model"]))', '"model"], env=PATH))')
    exec(compile(text, name, "exec"), {"PYTHON": sys.executable, "PATH": path})
    assert SAID.get(name, "") in capsys.readouterr().out


def test_every_example_is_run_somewhere():
    assert set(examples()) == {*LIBRARIES, "guardrails-ai", "NeMo Guardrails"}
    assert all(len(text.splitlines()) <= 12 for text in examples().values())
