"""The service keeps to its OpenAPI document, whatever is sent (schemathesis)."""

from __future__ import annotations

import hypothesis
import pytest
from serving import text_detector, vector_detector

schemathesis = pytest.importorskip("schemathesis")

from schemathesis.specs.openapi.checks import positive_data_acceptance  # noqa: E402

from outscope.serve import Settings, create_app  # noqa: E402

SETTINGS = Settings(open_admin=True)
app = create_app({"texts": text_detector(), "rows": vector_detector()[0]}, settings=SETTINGS)
schema = schemathesis.openapi.from_asgi("/openapi.json", app)


@schema.parametrize()
@hypothesis.settings(
    max_examples=25,
    phases=[hypothesis.Phase.generate],
    database=None,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(hypothesis.HealthCheck),
)
def test_every_answer_is_in_the_document(case):
    # What the document cannot say, such as the width of a model's vectors, is answered with 422.
    case.call_and_validate(excluded_checks=[positive_data_acceptance])
