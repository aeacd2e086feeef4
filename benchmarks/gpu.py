"""One GPU: what every encoding costs over `none`, a language model's step beside Hugging Face's, recording, writing.

Wall time between two waits for the GPU, medians in turns; memory at its peak. `--small` is for trying the script
itself, on any device: its figures mean nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any, Literal
from unittest import mock

import timing
import torch
from torch import nn

import jarilab
from jarilab.attention.definition import AttentionCall
from jarilab.attention.geometry import geometry_of
from jarilab.attention.heads import site_of
from jarilab.attention.kernels import attend, choose, is_blockwise
from jarilab.core.devices import autocast, device_label, parse_device
from jarilab.core.errors import UserError
from jarilab.encodings import compose
from jarilab.encodings.base import registry
from jarilab.models.base import Generates
from jarilab.models.decoding import replay
from jarilab.models.decoding.greedy_search import greedy
from jarilab.positions.coordinates import Positions, Tokens
from jarilab.positions.masks import Mask
from jarilab.runs.training_options import Training
from jarilab.training.determinism import deterministic
from jarilab.training.optimization import build_optimizers

Optimizer = Literal["muon", "adamw"]
HUGGING_FACE = "Hugging Face"
PARTS = ("attention", "step", "record", "writing")
SHAPE = {"d_model": 768, "n_heads": 12, "n_layers": 12}
SMALL = {"d_model": 32, "n_heads": 4, "n_layers": 2}


class Bench:
    """device: where. small: shapes that only try the script. vocabulary: nanoGPT's, GPT-2's rounded up to 64."""

    def __init__(self, device: torch.device, given: Any, table: timing.Table):
        self.device, self.table = device, table
        self.small, self.rounds, self.lengths, self.models = given.small, given.rounds, given.lengths, given.models
        self.shape = SMALL if self.small else SHAPE
        self.vocabulary = 64 if self.small else 50304
        self.precision = "bfloat16"

    def wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def measure(self, contenders: dict[str, Callable[[], object]]) -> timing.Times:
        def timed(run: Callable[[], object]) -> Callable[[], None]:
            def whole() -> None:
                run()
                self.wait()

            return whole

        waiting = {name: timed(run) for name, run in contenders.items()}
        return timing.measure(waiting, self.rounds, clock=time.perf_counter)

    def peak(self, run: Callable[[], object]) -> float:
        """MB that a call needs beside what was there; 0 where PyTorch counts none."""
        if self.device.type != "cuda":
            return 0.0
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        run()
        self.wait()
        return round((torch.cuda.max_memory_allocated() - before) / 1e6, 1)

    def attention(self) -> None:
        """Forward and backward of one causal attention, each encoding of one axis beside `none`."""
        for length in (64,) if self.small else self.lengths:
            for name in registry.names():
                if 1 in registry.spec(name).target.axes:
                    try:
                        self._encoding(name, length)
                    except (UserError, torch.OutOfMemoryError) as error:
                        print(f"{name} at {length}: {str(error).splitlines()[0]}")

    def _encoding(self, name: str, length: int) -> None:
        runs = {each: self._attention(each, length) for each in dict.fromkeys(("none", name))}
        times = self.measure({each: run for each, (run, _) in runs.items()})
        memory = {each: self.peak(run) for each, (run, _) in runs.items()}
        self.table.add(
            keys=length,
            encoding=name,
            kernel=runs[name][1],
            ms=timing.milliseconds(times, name),
            over_none=timing.ratio(times, name, "none"),
            MB=memory[name],
            MB_of_none=memory["none"],
        )

    def _attention(self, name: str, length: int) -> tuple[Callable[[], object], str]:
        """Its forward and backward, geometry included, and the kernel that it takes."""
        heads = self.shape["n_heads"]
        width = self.shape["d_model"] // heads
        encoding = compose.build(name, site_of(heads * width, heads, causal=True)).to(self.device)
        dtype = torch.bfloat16
        q, k, v = (
            torch.randn(4, heads, length, width, device=self.device, dtype=dtype, requires_grad=True) for _ in range(3)
        )
        x = torch.randn(4, length, heads * width, device=self.device, dtype=dtype)
        places, mask = Positions.sequence(length, device=self.device), Mask(causal=True)
        blockwise = is_blockwise("auto", encoding.hooks, places, places, mask, 0.0)
        gradient = torch.randn_like(v)
        inputs = [q, k, v, *encoding.parameters()]

        def call() -> AttentionCall:
            geometry = geometry_of(encoding, places, places, mask, blockwise=blockwise)
            turned_q, turned_k = encoding.rotate(q, geometry.q_rotation), encoding.rotate(k, geometry.k_rotation)
            states = encoding.key_states(x)
            return AttentionCall(turned_q, turned_k, v, geometry, width**-0.5, states=states)

        def run() -> object:
            with autocast(self.precision, self.device):
                output = attend(call())
            return torch.autograd.grad(output, inputs, gradient.to(output.dtype), allow_unused=True)

        return run, choose(call())

    def step(self) -> None:
        """A step of GPT-2's 124M, batches of 16 x 1,024, compiled, in bfloat16: tokens a second."""
        batch, length = (2, 32) if self.small else (16, 1024)
        ids = torch.randint(self.vocabulary, (batch, length + 1), device=self.device)
        makers = {f"jari {name}": partial(self._jari, name) for name in ("none", "rotary", "alibi", "t5")}
        makers["jari learned"] = partial(self._jari, f"learned:positions={length}")
        makers["jari learned, Muon"] = makers["jari learned"]
        makers[HUGGING_FACE] = partial(self._hugging_face, length)
        contenders = {}
        for name in dict.fromkeys([*(self.models or makers), HUGGING_FACE]):
            begin = time.perf_counter()
            contenders[name] = self._step(makers[name](), ids, "muon" if "Muon" in name else "adamw")
            contenders[name]()
            print(f"{name}: {time.perf_counter() - begin:.0f} s until the first step", flush=True)
        times = self.measure(contenders)
        for name, run in contenders.items():
            seconds = timing.milliseconds(times, name) / 1000
            self.table.add(
                model=name,
                tokens_a_second=round(batch * length / seconds),
                over_hugging_face=timing.ratio(times, HUGGING_FACE, name),
                MB=self.peak(run),
            )

    def _jari(self, spec: str) -> nn.Module:
        return jarilab.LanguageModel(self.vocabulary, **self.shape, encoding=spec, activation="gelu", tied=True)

    def _hugging_face(self, length: int) -> nn.Module:
        from transformers import GPT2Config, GPT2LMHeadModel

        config = GPT2Config(
            vocab_size=self.vocabulary,
            n_positions=length,
            n_embd=self.shape["d_model"],
            n_head=self.shape["n_heads"],
            n_layer=self.shape["n_layers"],
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
        )
        return HuggingFace(GPT2LMHeadModel(config))

    def _step(
        self, model: nn.Module, ids_BL: torch.Tensor, optimizer: Literal["muon", "adamw"]
    ) -> Callable[[], object]:
        model = model.to(self.device)
        if isinstance(model, HuggingFace):
            optimizers = [torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)]
        else:
            optimizers = build_optimizers(model, Training(optimizer=optimizer, lr=1e-4)).values()
        forward = model if self.small else torch.compile(model)

        def run() -> None:
            with autocast(self.precision, self.device):
                scores_BLV = forward(ids_BL[:, :-1])
                loss = nn.functional.cross_entropy(scores_BLV.flatten(0, 1), ids_BL[:, 1:].flatten())
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            for each in optimizers:
                each.step()
                each.zero_grad()

        return run

    def record(self) -> None:
        """A forward of the same shape with gradients off, 1 and 8 rows of 1,024 tokens, recorded and not."""
        model = self._jari("rotary").to(self.device, torch.bfloat16).eval()
        for rows in (1, 8):
            ids_BL = torch.randint(self.vocabulary, (rows, 32 if self.small else 1024), device=self.device)

            def forward(ids_BL: torch.Tensor = ids_BL) -> object:
                with torch.no_grad():
                    return model(ids_BL)

            def recorded(ids_BL: torch.Tensor = ids_BL) -> object:
                with torch.no_grad(), jarilab.record(model) as tape:
                    model(ids_BL)
                return tape

            contenders: dict[str, Callable[[], object]] = {"forward": forward, "recorded": recorded}
            times = self.measure(contenders)
            self.table.add(
                rows=rows,
                ms=timing.milliseconds(times, "recorded"),
                over_forward=timing.ratio(times, "recorded", "forward"),
                **{f"MB_{name}": self.peak(run) for name, run in contenders.items()},
            )

    def writing(self) -> None:
        """Tokens a second after a prompt of 16, greedy, 1 and 64 rows."""
        model: Generates = self._jari("rotary").to(self.device, torch.bfloat16).eval()  # type: ignore[assignment]
        longest = 16 if self.small else 64
        for rows in (1, 64):
            ids = torch.randint(self.vocabulary, (rows, 16), device=self.device)
            replayed = partial(self._write, model, ids, longest)
            # No graph is worth its capture then.
            single = mock.patch.object(replay, "MIN_STEPS", longest + 1)(replayed)
            contenders: dict[str, Callable[[], object]] = {"replayed": replayed, "single": single}
            times = self.measure(contenders)
            for name in contenders:
                seconds = timing.milliseconds(times, name) / 1000
                self.table.add(rows=rows, steps=name, tokens_a_second=round(rows * longest / seconds))

    def _write(self, model: Generates, ids: torch.Tensor, longest: int) -> object:
        none = self.vocabulary  # a token that is never written, so that no row ends early
        prompt = Tokens.of(ids)
        places = jarilab.positions_after(prompt)
        return greedy(model, prompt, first=0, end=none, padding=none, longest=longest, places=places)


class HuggingFace(nn.Module):
    """Scores alone, as ours."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.model(ids, use_cache=False).logits


def main() -> None:
    parser = timing.arguments(__doc__, rounds=7)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--only", choices=PARTS, help="one part of it")
    parser.add_argument("--lengths", type=int, nargs="+", default=[1024, 4096, 16384], help="of attention")
    parser.add_argument("--models", nargs="+", help="of a step, beside Hugging Face's: 'jari rotary' ...; default all")
    parser.add_argument("--small", action="store_true", help="try the script itself, on small shapes")
    given = parser.parse_args()
    device = parse_device(given.device)
    deterministic(threads=1)
    torch.use_deterministic_algorithms(False)
    print(f"{device_label(device)}, PyTorch {torch.__version__}")
    table = timing.Table(given.json)
    bench = Bench(device, given, table)
    for part in PARTS:
        if given.only in (None, part):
            getattr(bench, part)()
    table.close()


if __name__ == "__main__":
    main()
