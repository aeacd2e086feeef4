"""Maps and measures of heads in TensorBoard, for training loops of your own and transformers' Trainer."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Self

import torch
from annotated_types import Ge
from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from jarilab.core.devices import evaluating
from jarilab.core.errors import UserError, import_optional
from jarilab.core.shapes import Tensor
from jarilab.inspect.measure.heads import check_heads
from jarilab.inspect.measure.maps import names_of_sides
from jarilab.inspect.record.capture import Tape, record
from jarilab.training.event_writer import EventWriter, check_is_installed
from jarilab.training.tensorboard_heads import (
    MAX_INPUT_LENGTH,
    HeadName,
    MeasuredInput,
    code_block,
    first_heads,
    map_of,
    write_heads,
)

MAX_CELLS = MAX_INPUT_LENGTH**2
Names = Mapping[str, Sequence[str]] | Sequence[str] | None


class Watch:
    """Writes maps and measures of some heads into TensorBoard while you train a model.

        watch = jarilab.Watch(model, batch, every=100)
        for inputs, targets in loader:
            ...                     # forward, backward and optimizer.step()
            watch.step()

    It records a forward of `batch` when it is made, and then every `every` steps, in evaluation mode and without
    gradients. The training stays the same bit for bit. On several ranks, all must call it; the first one writes.

    model: any model that `jarilab.record` records. batch: some inputs, always the same: a dict of keywords, a tuple of
    arguments, or one tensor. An `attention_mask` in a dict cuts padding off: each input is then computed alone.
    heads: such as `["decoder.1.self:2"]`; by default the first ones of each site, eight at most.
    tokens: for each input, the names of its tokens as in `Tape.measures`; by default their IDs.
    folder: for the files, read by `tensorboard --logdir`. writer: your `SummaryWriter`, used in place of a new one.
    start: steps that the model was trained before; what the folder has from this step on is hidden.
    Raises UserError if the model cannot be recorded, for unknown heads, and if tensorboard is missing.
    """

    def __init__(
        self,
        model: nn.Module,
        batch: Any,
        every: Annotated[int, Ge(1)] = 100,
        *,
        heads: Sequence[str] | None = None,
        tokens: Sequence[Names] | None = None,
        folder: str | Path = "runs/watch",
        writer: Any = None,
        start: int = 0,
    ):
        _check_every(every)
        check_is_installed()
        while isinstance(model, DataParallel | DistributedDataParallel):
            model = model.module
        # A compiled model shares its parameters with its original.
        self.model: nn.Module = getattr(model, "_orig_mod", model)
        self.batch, self.every, self.tokens = batch, every, tokens
        self.steps, self._notices = start, set[str]()
        self.heads = self._select_heads(heads)
        inputs = self._inputs()
        self._writer: EventWriter | None = None
        distributed = torch.distributed
        has_ranks = distributed.is_available() and distributed.is_initialized()
        if not has_ranks or distributed.get_rank() == 0:
            self._writer = EventWriter(Path(folder), start, self._notice_once, writer)
        self._write(inputs)

    def step(self) -> None:
        """Count a step of the training, and write after every `every` steps."""
        self.steps += 1
        if self.steps % self.every == 0:
            self.write()

    def write(self) -> None:
        """Write maps and measures now. What cannot be computed becomes a warning, and the training goes on."""
        try:
            self._write(self._inputs())
        except (UserError, RuntimeError) as error:
            self._notice_once(f"no maps at step {self.steps}: {error}")

    def _write(self, inputs: Sequence[MeasuredInput]) -> None:
        if self._writer is not None:
            write_heads(self._writer, inputs, self.steps)

    def close(self) -> None:
        """Close the files. A `writer` of yours is flushed and stays open."""
        if self._writer is not None:
            self._writer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @staticmethod
    def callback(batch: Any, every: Annotated[int, Ge(1)] = 100, **options: Any) -> Any:
        """A callback for transformers' Trainer, which watches the model that it trains.

        options: as of `Watch`; the folder is `watch` in the Trainer's `output_dir` by default.
        Raises UserError if transformers is missing.
        """
        _check_every(every)
        transformers = import_optional("transformers", "huggingface")

        class WatchCallback(transformers.TrainerCallback):
            watch: Watch

            def on_train_begin(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
                settings = {"folder": Path(args.output_dir) / "watch", **options}
                start = state.global_step
                self.watch = Watch(objects["model"], batch, every, start=start, **settings)

            def on_step_end(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
                self.watch.step()

            def on_train_end(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
                self.watch.close()

        return WatchCallback()

    def _select_heads(self, texts: Sequence[str] | None) -> list[HeadName]:
        """The named heads, or the first ones that have a map; checked by a recorded forward."""
        tapes = self._tapes(None)
        if not tapes:
            raise UserError("expected some inputs to watch, got an empty batch; pass at least one")
        names, tape = tapes[0]
        if self.tokens is not None and len(self.tokens) != len(tapes):
            raise UserError(
                f"expected tokens of {len(tapes)} inputs, got {len(self.tokens)} lists; pass one for each"
            )
        selected: list[HeadName] = []
        for head in first_heads(tape) if texts is None else map(HeadName.read, texts):
            try:
                tape.head(head.site, head.number)
                check_heads(tape.site(head.site))
                rows, columns = map_of(tape, head, names).allowed.shape
                if rows * columns > MAX_CELLS:
                    raise UserError(
                        f"expected at most {MAX_CELLS:,} cells, got {rows} x {columns}; watch shorter inputs"
                    )
            except UserError as error:
                if texts is not None or self.tokens is not None:
                    raise
                self._notice_once(f"{head} is left out: {error}")
                continue
            selected.append(head)
        if not selected:
            raise UserError("expected a head with a map, got none; name heads=[...] to see why")
        return selected

    def _inputs(self) -> list[MeasuredInput]:
        inputs: list[MeasuredInput] = []
        for names, tape in self._tapes({head.site for head in self.heads}):
            text = code_block({f"tokens of the {side}": " ".join(names[side]) for side in names})
            maps = {head: map_of(tape, head, names) for head in self.heads}
            inputs.append(MeasuredInput(len(inputs) + 1, text, maps))
        return inputs

    def _tapes(self, sites: set[str] | None) -> list[tuple[dict[str, list[str]], Tape]]:
        """For each input of the batch the names of its tokens, by sequence, and its tape."""
        tapes: list[tuple[dict[str, list[str]], Tape]] = []
        tokens = iter(self.tokens or ())
        with warnings.catch_warnings(), torch.no_grad(), evaluating(self.model) as device:
            if sites is not None:
                # What cannot be recorded was reported by the first forward.
                warnings.simplefilter("ignore")
            for arguments, keywords in self._calls(device):
                with record(self.model, sites) as tape:
                    self.model(*arguments, **keywords)
                ids = keywords.get("input_ids", arguments[0] if arguments else None)
                target = keywords.get("decoder_input_ids") if tape.sites_of("cross") else ids
                for number in range(len(tape.recorded(tape.sites[0], 0).output)):
                    row = tape.row(number)
                    names = names_of_sides(row, next(tokens, None))
                    if self.tokens is None:
                        _name_by_ids(names, number, {"source": ids, "target": target})
                    tapes.append((names, row))
        return tapes

    def _calls(self, device: torch.device) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
        """Arguments of the forwards that compute the batch: one, or one for each input without its padding."""
        if not isinstance(self.batch, Mapping):
            arguments = self.batch if isinstance(self.batch, tuple | list) else (self.batch,)
            return [(tuple(_on(each, device) for each in arguments), {})]
        keywords = {name: _on(value, device) for name, value in self.batch.items()}
        config: Any = getattr(self.model, "config", None)
        if not getattr(config, "is_encoder_decoder", False):
            keywords.pop("labels", None)
        mask = keywords.get("attention_mask")
        if not isinstance(mask, Tensor) or mask.dim() != 2 or bool(mask.bool().all()):
            return [((), keywords)]
        return [((), _without_padding(keywords, mask, row)) for row in range(len(mask))]

    def _notice_once(self, text: str) -> None:
        if text not in self._notices:
            self._notices.add(text)
            warnings.warn(f"jarilab.Watch: {text}", stacklevel=2)


def _check_every(every: Any) -> None:
    if not isinstance(every, int) or every < 1:
        raise UserError(
            f"expected every as a whole number of steps from 1, got {every!r}; use every=100"
        )


def _on(value: Any, device: torch.device) -> Any:
    return value.to(device) if isinstance(value, Tensor) else value


def _name_by_ids(names: dict[str, list[str]], number: int, ids: Mapping[str, Any]) -> None:
    """Name tokens by the IDs of an input, in sequences of as many tokens."""
    for side, ids_BL in ids.items():
        if isinstance(ids_BL, Tensor) and ids_BL.dim() == 2 and not ids_BL.is_floating_point():
            tokens = [str(token) for token in ids_BL[number].tolist()]
            if len(names.get(side, ())) == len(tokens):
                names[side] = tokens


def _without_padding(keywords: Mapping[str, Any], mask: Tensor, row: int) -> dict[str, Any]:
    """The keywords for one input. Tensors of the mask's shape lose its padding, but for those of a decoder."""
    cut = dict(keywords)
    for name, value in keywords.items():
        if isinstance(value, Tensor) and value.dim() and len(value) == len(mask):
            cut[name] = value[row : row + 1]
            is_decoded = name.startswith(("decoder", "labels"))
            if value.shape[:2] == mask.shape and not is_decoded:
                cut[name] = cut[name][:, mask[row].bool()]
    return cut
