"""guardrails-ai and NeMo Guardrails run for real; they have an environment of their own."""

from __future__ import annotations

import asyncio
import re

import pytest
from conftest import ROOT
from plugs import INSIDE, OUTSIDE, examples, fitted, needs

from outscope.integrations.judging import judge

pytestmark = pytest.mark.filterwarnings("default")


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("guard")
    (folder / ".guardrailsrc").write_text("enable_metrics=false")  # else it reports to its makers
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(folder))  # every guard reads that file again
        needs("guardrails")
        yield fitted(folder)


def guard(saved, **settings):
    from guardrails import Guard

    from outscope.integrations.guardrails import InScope

    return Guard().use(InScope(detector=saved[1], **settings))


def test_what_is_in_scope_passes_with_its_score(saved):
    outcome = guard(saved, on_fail="noop").validate(INSIDE)
    assert outcome.validation_passed
    assert outcome.validated_output == INSIDE


def test_what_is_out_of_scope_fails_with_score_threshold_and_reason(saved):
    made = guard(saved, on_fail="noop")
    outcome = made.validate(OUTSIDE)
    assert not outcome.validation_passed
    expected = judge(saved[0], [OUTSIDE])[0]
    (summary,) = outcome.validation_summaries
    assert summary.failure_reason == expected["reason"]
    log = made.history.last.iterations.last.validator_logs[0]
    found = log.validation_result.metadata
    assert found["score"] == expected["ood_score"]
    assert found["threshold"] == saved[0].threshold_
    assert found["reason"] == expected["reason"]


def test_each_on_fail_does_what_it_says(saved):
    from guardrails.errors import ValidationError

    with pytest.raises(ValidationError, match="out of scope: score"):
        guard(saved, on_fail="exception").validate(OUTSIDE)
    fixed = guard(saved, on_fail="fix", refusal="Ask me about payments.").validate(OUTSIDE)
    assert fixed.validated_output == "Ask me about payments."
    assert not guard(saved, on_fail="refrain").validate(OUTSIDE).validated_output


def test_the_example_runs(saved, monkeypatch, capsys):
    monkeypatch.chdir(saved[1].removesuffix("model"))
    exec(compile(examples()["guardrails-ai"], "guardrails-ai", "exec"), {})
    first, second = capsys.readouterr().out.splitlines()
    assert first == "Ask me about payments."
    assert judge(saved[0], [OUTSIDE])[0]["reason"] in second


def test_nemo_guardrails_loads_it_as_the_example_says(saved, monkeypatch):
    needs("nemoguardrails")
    from langchain_core.language_models import FakeListChatModel
    from nemoguardrails import LLMRails, RailsConfig

    exec(compile(examples()["NeMo Guardrails"], "config.py", "exec"), {})
    monkeypatch.chdir(saved[1].removesuffix("model"))
    document = (ROOT / "docs" / "integrations.md").read_text()
    (yaml,) = re.findall(r"```yaml\n(rails:.*?)```", document, re.S)
    config = RailsConfig.from_content(yaml_content=f"models: []\n{yaml}")
    rails = LLMRails(config, llm=FakeListChatModel(responses=["Here you are."] * 9))

    def ask(text):
        return asyncio.run(rails.generate_async(messages=[{"role": "user", "content": text}]))

    assert ask(INSIDE)["content"] == "Here you are."
    assert "can't respond" in ask(OUTSIDE)["content"]
