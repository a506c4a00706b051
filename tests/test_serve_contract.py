"""The service keeps to its OpenAPI document, whatever is sent (schemathesis)."""

from __future__ import annotations

import hypothesis
import pytest
from serving import text_detector, vector_detector

schemathesis = pytest.importorskip("schemathesis")

from outscope.serve import Settings, create_app  # noqa: E402

SETTINGS = Settings(open_admin=True)
app = create_app({"texts": text_detector(), "rows": vector_detector()[0]}, settings=SETTINGS)
schema = schemathesis.openapi.from_asgi("/openapi.json", app)


@schema.parametrize()
@hypothesis.settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(hypothesis.HealthCheck),
)
def test_every_answer_is_in_the_document(case):
    case.call_and_validate()
