"""schemathesis asks what /openapi.json allows, and what it forbids."""

from __future__ import annotations

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import not_a_server_error
from tests.serve.served import SAYS, serving
from tests.test_api import make, says
from tests.text.tool_templates import HERMES

from satchel.serve.app import ENDPOINTS


def test_every_endpoint_is_described() -> None:
    with serving() as served:
        paths = served.get("/openapi.json").json()["paths"]
    described = {(method.upper(), path) for path, found in paths.items() for method in found}
    assert described == {(e.method, e.path.replace(":path", "")) for e in ENDPOINTS}


@pytest.mark.slow
def test_schemathesis_finds_no_fault() -> None:
    with serving(lambda _: make(says(SAYS), template=HERMES)) as served:
        schema = schemathesis.openapi.from_url(f"{served.url}/openapi.json")
        schema = schema.exclude(path="/api/pull")  # that would go out into the world
        n_asked = 0
        for found in schema.get_all_operations():
            operation = found.ok()

            @given(case=operation.as_strategy())
            @settings(
                max_examples=15,
                deadline=None,
                database=None,
                phases=[Phase.generate],
                suppress_health_check=list(HealthCheck),
            )
            def ask(case: schemathesis.Case) -> None:
                nonlocal n_asked
                n_asked += 1
                case.call_and_validate(checks=[not_a_server_error])

            ask()
        assert n_asked > 100
        assert not [line for line in served.log if " fault " in line]
        assert served.busy_pages() == 0
