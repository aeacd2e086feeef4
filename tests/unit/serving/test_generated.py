"""Requests generated from the OpenAPI schemas of both servers never cause a server error."""

from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from helpers.runs import language_run, tiny, train
from jarilab.explorer import open_explorer, server
from jarilab.runs.loaded import load
from jarilab.serving.application import Server
from jarilab.serving.guard import Guard
from jarilab.serving.prometheus import Metrics
from jarilab.serving.requests import Serving

# schemathesis itself draws by the `random` module now and then.
pytestmark = pytest.mark.filterwarnings("ignore::hypothesis.errors.HypothesisDeprecationWarning")

HOST = "127.0.0.1:8000"
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]


@pytest.fixture(scope="module")
def guards(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Guard]:
    folder = tmp_path_factory.mktemp("runs")
    train(folder / "add", tiny("rotary"))
    language_run(folder)
    limits = Serving(inputs=4, characters=64)
    return {
        "add": Server(load(folder / "add"), limits).application({HOST}),
        "language": Server(load(folder / "run"), limits).application({HOST}),
        "explorer": server.application(open_explorer([folder / "add"]), "1+2", {HOST}),
    }


def sent_to(guard: Guard, examples: int, paths: str = "") -> list[int]:
    """The statuses of generated requests, right and wrong ones, to each method and path that holds `paths`."""
    app: Any = guard.app
    schema = schemathesis.openapi.from_dict(app.openapi())
    schema.app = guard
    schema.config.base_url = f"http://{HOST}"
    statuses: list[int] = []
    how = settings(
        max_examples=examples,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )

    def ask(case: Any) -> None:
        response = case.call(headers={"Host": HOST})
        statuses.append(response.status_code)
        case.validate_response(response, checks=CHECKS)
        assert response.status_code < 400 or len(response.content) < 2000

    for result in schema.get_all_operations():
        operation = result.ok()
        if paths not in operation.path:
            continue
        # Of a path that takes nothing, nothing can be wrong.
        for mode in list(schemathesis.GenerationMode)[: 2 if operation.method == "post" else 1]:
            strategy = operation.as_strategy(generation_mode=mode)
            how(given(strategy)(ask))()
    return statuses


@pytest.mark.parametrize(
    ("which", "examples"), [("add", 12), pytest.param("language", 25, marks=pytest.mark.long), ("explorer", 8)]
)
def test_generated_requests_cause_no_server_error(guards: dict[str, Guard], which: str, examples: int) -> None:
    statuses = sent_to(guards[which], examples)
    assert {200, 422} <= set(statuses)
    assert len(statuses) > 2 * examples  # right ones and wrong ones


@pytest.mark.long
@pytest.mark.parametrize("which", ["add", "language", "explorer"])
def test_many_generated_requests_cause_no_server_error(guards: dict[str, Guard], which: str) -> None:
    assert len(sent_to(guards[which], 400)) > 2 * 400


def test_server_error_is_detected(guards: dict[str, Guard], monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> Any:
        raise RuntimeError("broken")

    monkeypatch.setattr(Metrics, "text", broken)
    with pytest.raises(BaseException, match="Server error"):
        sent_to(guards["add"], 2, "metrics")
