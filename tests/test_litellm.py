"""LiteLLM's own proxy asks the service whether a request is in scope."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time

import pytest
from plugs import INSIDE, OUTSIDE, fitted, needs

# The proxy takes 10 seconds on an idle machine.
STARTING = 240
CONFIG = """
model_list:
  - model_name: assistant
    litellm_params: {{model: openai/assistant, api_key: none, mock_response: Here you are.}}
guardrails:
  - guardrail_name: in-scope
    litellm_params:
      guardrail: generic_guardrail_api
      mode: pre_call
      api_base: http://127.0.0.1:{port}
      default_on: true
      additional_provider_specific_params: {{reason: Ask me about payments.}}
general_settings: {{master_key: sk-test}}
"""


def free_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


def wait_for(url, process=None):
    import httpx

    latest = time.monotonic() + STARTING
    while time.monotonic() < latest:
        with contextlib.suppress(httpx.HTTPError):
            if httpx.get(url).status_code == 200:
                return
        assert process is None or process.poll() is None, "the proxy has ended"
        time.sleep(0.2)
    pytest.fail(f"{url} did not answer in {STARTING} seconds")


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    """The port of a running service."""
    needs("litellm.proxy.proxy_cli")
    serve, uvicorn = needs("outscope.serve"), needs("uvicorn")
    app = serve.create_app(fitted(tmp_path_factory.mktemp("serve"))[0])
    port = free_port()
    server = uvicorn.Server(uvicorn.Config(app, port=port, log_level="warning"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    wait_for(f"http://127.0.0.1:{port}/health/live")
    yield port
    server.should_exit = True
    thread.join(10)


@pytest.fixture(scope="module")
def proxy(service, tmp_path_factory):
    """The address of LiteLLM's proxy, whose model answers without a network."""
    folder, port = tmp_path_factory.mktemp("proxy"), free_port()
    (folder / "config.yaml").write_text(CONFIG.format(port=service))
    command = [sys.executable, "-c", "from litellm import run_server; run_server()"]
    options = ["--config", "config.yaml", "--host", "127.0.0.1", "--port", str(port)]
    local = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "NO_PROXY": "127.0.0.1"}
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [*command, *options], cwd=folder, env={**os.environ, **local}, stdout=log, stderr=log
        )
        try:
            wait_for(f"http://127.0.0.1:{port}/health/liveliness", process)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(20)


def ask(proxy, *messages):
    import httpx

    return httpx.post(
        f"{proxy}/v1/chat/completions",
        headers={"Authorization": "Bearer sk-test"},
        json={"model": "assistant", "messages": list(messages)},
        timeout=60,
    )


def user(text):
    return {"role": "user", "content": text}


def test_what_is_in_scope_is_answered(proxy):
    answer = ask(proxy, {"role": "system", "content": "be kind"}, user(INSIDE))
    assert answer.status_code == 200
    assert answer.json()["choices"][0]["message"]["content"] == "Here you are."


def test_what_is_out_of_scope_is_blocked_with_the_reason(proxy):
    answer = ask(proxy, user(OUTSIDE))
    assert answer.status_code == 400
    assert "Ask me about payments." in answer.text


def test_the_last_question_of_a_conversation_counts(proxy):
    said = {"role": "assistant", "content": "Here you are."}
    assert ask(proxy, user(INSIDE), said, user(OUTSIDE)).status_code == 400
    assert ask(proxy, user(OUTSIDE), said, user(INSIDE)).status_code == 200
