"""Many clients of `jarilab serve RUN` for minutes: what they are told, how long they wait, and what the server holds.

    python benchmarks/serve_soak.py RUN --minutes 10 --clients 32
    python benchmarks/serve_soak.py RUN --light --requests 100000 --clients 8
    python benchmarks/serve_soak.py RUN --throughput      # batches beside one input at a time

Of ten requests seven are good ones, one is a stream, one is left before its answer, one is wrong or too large. With
--light each has one short input, and small mistakes, so that a busy machine answers many of them.
"""

import argparse
import asyncio
import random
import re
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx

WRONG: list[Any] = [
    {},
    {"inputs": ["1+1"], "options": {"beam_size": 10**9}},
    {"inputs": ["1+1"] * 10_000},
    {"inputs": ["9" * 2_000_000]},
    [[[[]]]],
]
WRONG_LIGHT: list[Any] = [{}, {"inputs": ["1+1"], "options": {"beam_size": 10**9}}, [[[[]]]], {"inputs": "x"}]


class Served:
    """The command, on a free port."""

    def __init__(self, run: str, *flags: str):
        command = [sys.executable, "-m", "jarilab", "serve", run, "--port", "0", *flags]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.address = self.process.stdout.readline().split()[0]

    @property
    def megabytes(self) -> float:
        """Memory that it holds."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(r"VmRSS:\s+(\d+)", status)
        return int(found[1]) / 1024 if found else 0.0

    @property
    def files(self) -> int:
        """Files and sockets that it has open."""
        return len(list(Path(f"/proc/{self.process.pid}/fd").iterdir()))

    def end(self) -> int:
        """Ask it to end; gives the exit code."""
        self.process.terminate()
        return self.process.wait(60)


def body_of(draw: random.Random, lines: list[str]) -> dict[str, Any]:
    inputs = draw.choices(lines, k=draw.choice((1, 1, 1, 4, 16)))
    return {"inputs": inputs, "options": draw.choice(({}, {}, {"beam_size": 4}))}


async def ask(client: httpx.AsyncClient, draw: random.Random, lines: list[str], light: bool) -> str:
    """One request; gives what became of it."""
    kind = draw.randrange(10)
    if kind == 0:
        wrong = draw.choice(WRONG_LIGHT if light else WRONG)
        return str((await client.post("/predict", json=wrong)).status_code)
    body = {"inputs": [draw.choice(lines)]} if light else body_of(draw, lines)
    if kind == 1:
        try:
            await asyncio.wait_for(client.post("/predict", json=body), draw.random() / 20)
        except TimeoutError:
            return "left"
        return "200"
    accept = {"accept": "text/event-stream"} if kind == 2 else {}
    response = await client.post("/predict", json=body, headers=accept)
    if response.status_code == 503:
        await asyncio.sleep(float(response.headers["retry-after"]))
    return str(response.status_code)


async def soak(served: Served, lines: list[str], clients: int, minutes: float, requests: float, light: bool) -> None:
    """Ask for some minutes, or until there were so many requests."""
    told: Counter[str] = Counter()
    seconds: list[float] = []
    end = time.monotonic() + 60 * minutes

    def goes_on() -> bool:
        return time.monotonic() < end and told.total() < requests

    async def one(number: int) -> None:
        draw = random.Random(number)
        async with httpx.AsyncClient(base_url=served.address, timeout=60) as client:
            while goes_on():
                begun = time.monotonic()
                try:
                    what = await ask(client, draw, lines, light)
                except httpx.HTTPError as error:
                    what = type(error).__name__
                told[what] += 1
                seconds.append(time.monotonic() - begun)

    async def sample() -> None:
        print("| minutes | requests | memory, MB | files | median, s | 99 %, s |", flush=True)
        print("| --- | --- | --- | --- | --- | --- |")
        begun = time.monotonic()
        while goes_on():
            await asyncio.sleep(min(30.0, max(0.1, end - time.monotonic())))
            recent = sorted(seconds) or [0.0]
            seconds.clear()
            median, late = recent[len(recent) // 2], recent[int(len(recent) * 0.99)]
            row = f"{(time.monotonic() - begun) / 60:.1f} | {told.total():,} | {served.megabytes:.0f} | "
            print(f"| {row}{served.files} | {median:.3f} | {late:.3f} |", flush=True)

    await asyncio.gather(sample(), *(one(number) for number in range(clients)))
    print("; ".join(f"{what}: {count:,}" for what, count in sorted(told.items())))


async def rate(served: Served, lines: list[str], clients: int, seconds: float) -> float:
    """Inputs a second, one in a request."""
    count, end = 0, time.monotonic() + seconds

    async def one(number: int) -> None:
        nonlocal count
        draw = random.Random(number)
        async with httpx.AsyncClient(base_url=served.address, timeout=60) as client:
            while time.monotonic() < end:
                response = await client.post("/predict", json={"inputs": [draw.choice(lines)]})
                count += response.status_code == 200

    await asyncio.gather(*(one(number) for number in range(clients)))
    return count / seconds


def throughput(run: str, lines: list[str], clients: int) -> None:
    print("| inputs in a batch, at most | clients | answers a second |\n| --- | --- | --- |")
    for batch, several in ((1, 1), (1, clients), (32, clients)):
        served = Served(run, "--batch-size", str(batch))
        print(f"| {batch} | {several} | {asyncio.run(rate(served, lines, several, 15)):.1f} |")
        served.end()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--lines", default="1+2,12-30,7+7,21+8,30-1", help="inputs, by commas")
    parser.add_argument("--requests", type=int, default=10**9, help="end after so many (default: no limit)")
    parser.add_argument("--light", action="store_true", help="one short input a request")
    parser.add_argument("--throughput", action="store_true")
    options = parser.parse_args()
    lines = options.lines.split(",")
    if options.throughput:
        throughput(options.run, lines, options.clients)
        return
    served = Served(options.run)
    asyncio.run(soak(served, lines, options.clients, options.minutes, options.requests, options.light))
    print(f"ended with code {served.end()}")


if __name__ == "__main__":
    main()
