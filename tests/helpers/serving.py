"""One request to a run, without a network."""

import asyncio
from typing import Any

import httpx

from jarilab.runs.loaded import OpenRun
from jarilab.serving.application import Server
from jarilab.serving.requests import Serving

HOST = "127.0.0.1:8000"


def served(run: OpenRun, body: Any, limits: Serving | None = None, **headers: str) -> httpx.Response:
    """What the server of a run answers to `POST /predict`."""
    app: Any = Server(run, limits or Serving()).application({HOST})

    async def main() -> httpx.Response:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url=f"http://{HOST}", timeout=60) as client:
            return await client.post("/predict", json=body, headers=headers)

    return asyncio.run(main())
