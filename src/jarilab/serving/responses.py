"""JSON responses, and errors as one sentence that quotes nothing of a malformed request."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from jarilab.core.errors import UserError
from jarilab.core.options import problem_of
from jarilab.pages.kit.page import to_json
from jarilab.serving.queue import Refusal

MAX_QUOTED = 400
"""Characters of the beginning and the end of an error, which may quote the whole request."""


class Mistake(BaseModel):
    """The body of every 4xx and 5xx response."""

    error: str


MISTAKES = {
    400: "The request cannot be answered; `error` says why.",
    403: "The request comes from another page.",
    404: "There is nothing at this path.",
    405: "The path has other methods.",
    408: "The body did not arrive in time.",
    413: "The body is too large.",
    415: "The body is not application/json.",
    421: "The request names another host.",
    422: "A field is missing, unknown, or out of its limits.",
    503: "Too many requests wait, the deadline passed, or the server stops; see Retry-After.",
}
DOCUMENTED: dict[int | str, dict[str, Any]] = {
    status: {"model": Mistake, "description": text} for status, text in MISTAKES.items()
}
"""The error responses in OpenAPI."""


def answer(content: Any, status: int = 200) -> Response:
    """A JSON response."""
    return Response(to_json(content), status, media_type="application/json")


def refusal_response(refusal: Refusal) -> Response:
    """The response of a refusal."""
    response = error_response(refusal.text, refusal.status)
    if refusal.retry_after is not None:
        response.headers["Retry-After"] = str(refusal.retry_after)
    return response


def error_response(text: str, status: int) -> Response:
    """The response of an error. A long text is cut in the middle, since its end says what to do."""
    if len(text) > 2 * MAX_QUOTED:
        text = f"{text[:MAX_QUOTED]} ... {text[-MAX_QUOTED:]}"
    # A path may hold characters that UTF-8 cannot encode.
    return answer({"error": text.encode(errors="replace").decode()}, status)


def add_error_handlers(app: FastAPI) -> None:
    """Answer every error as JSON, in one sentence."""
    reader = _ValidationReader(app)

    @app.exception_handler(UserError)
    async def user_error(_: Request, error: UserError) -> Response:
        return error_response(str(error), 400)

    @app.exception_handler(Refusal)
    async def refused(_: Request, error: Refusal) -> Response:
        return refusal_response(error)

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> Response:
        return error_response(reader.sentence(error.errors()[0]), 422)

    @app.exception_handler(HTTPException)
    async def http_error(_: Request, error: HTTPException) -> Response:
        if isinstance(cause := error.__cause__, UnicodeDecodeError):
            byte = cause.object[cause.start]
            return error_response(
                f"the body is no UTF-8: byte 0x{byte:02x} at position {cause.start}; encode it as UTF-8",
                400,
            )
        if error.status_code == 400:  # FastAPI's status for JSON that Python cannot parse
            return error_response("the body is no JSON that can be read; nest less deeply", 400)
        response = error_response(
            f"{error.detail}; /openapi.json lists what there is", error.status_code
        )
        response.headers.update(error.headers or {})
        return response


class _ValidationReader:
    """Describes an error of pydantic without quoting the request."""

    def __init__(self, app: FastAPI):
        self._app = app

    @cached_property
    def _known(self) -> set[str]:
        return set(_words(self._app.openapi().get("components", {})))

    def sentence(self, problem: Any) -> str:
        kind, text = problem["type"], problem_of(problem)
        if kind == "json_invalid":
            return "the body is no JSON"
        if kind == "union_tag_invalid":  # whose message quotes the tag
            text = f"expected tags: {problem['ctx']['expected_tags']}"
        if kind == "extra_forbidden":
            text = f"{text}; /openapi.json lists the fields"
        return f"{self._where(problem['loc'][1:])}: {text}"

    def _where(self, parts: tuple[int | str, ...]) -> str:
        """The field of the problem, as far as the schema knows its names."""
        names: list[str] = []
        for part in parts:
            if not isinstance(part, int) and part not in self._known:
                break
            names.append(str(part))
        return ".".join(names) or "the body"


def _words(schema: Any) -> Iterator[str]:
    """The names of fields and of their kinds in a schema."""
    if isinstance(schema, list):
        for part in schema:
            yield from _words(part)
    if not isinstance(schema, dict):
        return
    yield from schema.get("properties", {})
    if isinstance(schema.get("const"), str):
        yield schema["const"]
    for part in schema.values():
        yield from _words(part)
