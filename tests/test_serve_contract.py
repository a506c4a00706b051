"""The service keeps to its OpenAPI document, whatever is sent (schemathesis)."""

from __future__ import annotations

import hypothesis
import pytest
from serving import text_detector, vector_detector

schemathesis = pytest.importorskip("schemathesis")
from schemathesis.specs.openapi.checks import positive_data_acceptance  # noqa: E402

from outscope.serve import Settings, create_app  # noqa: E402

EXAMPLES = hypothesis.settings(
    max_examples=15,
    phases=[hypothesis.Phase.generate],
    database=None,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(hypothesis.HealthCheck),
)


@pytest.fixture(scope="module")
def operations():
    models = {"texts": text_detector(), "rows": vector_detector()[0]}
    app = create_app(models, settings=Settings(open_admin=True))
    schema = schemathesis.openapi.from_asgi("/openapi.json", app)
    return [found.ok() for found in schema.get_all_operations()]


def test_every_answer_is_in_the_document(operations):
    assert len(operations) == 10
    for operation in operations:

        @EXAMPLES
        @hypothesis.given(operation.as_strategy())
        def keeps_to_it(case):
            # What a document cannot say, such as the width of vectors, is answered with 422.
            case.call_and_validate(excluded_checks=[positive_data_acceptance])

        keeps_to_it()
