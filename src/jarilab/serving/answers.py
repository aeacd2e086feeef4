"""What a server says: JSON, and mistakes in a sentence that gives back nothing of a malformed request."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from jarilab.core.errors import UserError
from jarilab.pages.kit.page import to_json
from jarilab.serving.queue import Refusal

SHOWN = 400
"""Characters of the beginning and of the end of an error that are told: it may quote all of what was asked."""


class Mistake(BaseModel):
    """What every answer of class 4xx and 5xx holds."""

    error: str


MISTAKES = {
    400: "What was asked cannot be answered; `error` says why.",
    403: "Another page asks.",
    404: "There is nothing at this path.",
    405: "This path has other methods.",
    408: "The body did not come in time.",
    413: "The body is too large.",
    415: "The body is no application/json.",
    421: "The server is called by a name that it does not have.",
    422: "A field is missing, unknown, or out of its limits.",
    503: "Too many wait, the time is over, or the server ends; Retry-After says when to ask again.",
}
DOCUMENTED: dict[int | str, dict[str, Any]] = {
    status: {"model": Mistake, "description": text} for status, text in MISTAKES.items()
}
"""The mistakes, as OpenAPI lists them."""


def answer(content: Any, status: int = 200) -> Response:
    """Anything as JSON."""
    return Response(to_json(content), status, media_type="application/json")


def refused(refusal: Refusal) -> Response:
    """A refusal as an answer."""
    response = mistake(refusal.text, refusal.status)
    if refusal.retry_after is not None:
        response.headers["Retry-After"] = str(refusal.retry_after)
    return response


def mistake(text: str, status: int) -> Response:
    """What went wrong: the beginning and the end where it is long, since the end says what to do."""
    if len(text) > 2 * SHOWN:
        text = f"{text[:SHOWN]} ... {text[-SHOWN:]}"
    # A path or a text may hold what UTF-8 cannot.
    return answer({"error": text.encode(errors="replace").decode()}, status)


def tell_mistakes(app: FastAPI) -> None:
    """Every mistake is answered as JSON, in a sentence."""
    reader = _Reader(app)

    @app.exception_handler(UserError)
    async def wrong(_: Request, error: UserError) -> Response:
        return mistake(str(error), 400)

    @app.exception_handler(Refusal)
    async def not_served(_: Request, error: Refusal) -> Response:
        return refused(error)

    @app.exception_handler(RequestValidationError)
    async def misread(_: Request, error: RequestValidationError) -> Response:
        return mistake(reader.sentence(error.errors()[0]), 422)

    @app.exception_handler(HTTPException)
    async def nothing(_: Request, error: HTTPException) -> Response:
        if error.status_code == 400:  # FastAPI's word for JSON that Python cannot hold
            return mistake("the body is no JSON that can be read; nest less deeply", 400)
        response = mistake(f"{error.detail}; /openapi.json lists what there is", error.status_code)
        response.headers.update(error.headers or {})
        return response


class _Reader:
    """Tells what pydantic found, in words of the server alone."""

    def __init__(self, app: FastAPI):
        self._app = app

    @cached_property
    def _known(self) -> set[str]:
        return set(_words(self._app.openapi().get("components", {})))

    def sentence(self, problem: Any) -> str:
        kind, text = problem["type"], problem["msg"].removeprefix("Value error, ")
        if kind == "json_invalid":
            return "the body is no JSON"
        if kind == "union_tag_invalid":  # whose message quotes the tag
            text = f"expected tags: {problem['ctx']['expected_tags']}"
        if kind == "extra_forbidden":
            text = f"{text}; /openapi.json lists the fields"
        return f"{self._where(problem['loc'][1:])}: {text}"

    def _where(self, parts: tuple[int | str, ...]) -> str:
        """The place of the problem, as far as its words are the server's own."""
        told: list[str] = []
        for part in parts:
            if not isinstance(part, int) and part not in self._known:
                break
            told.append(str(part))
        return ".".join(told) or "the body"


def _words(schema: Any) -> Iterator[str]:
    """The names of fields, and of kinds of them, in a schema."""
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
