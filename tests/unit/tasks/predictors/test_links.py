"""Links between answers and sources are those of the maps, as a tape has them."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

import jarilab
from jarilab.core.errors import UserError
from jarilab.data.text import END
from jarilab.models.decoder import LanguageModel
from jarilab.models.encoder_decoder import EncoderDecoder
from jarilab.models.recurrent import Recurrent
from jarilab.nn.init import initialise
from jarilab.tasks.predictors.base import Predictor, predictor_for
from jarilab.tasks.predictors.sequences import Answer, SequenceOptions
from jarilab.tasks.sequences import Copy

LINES = ["3 1 4", "7", "1 2 3 4 5 6"]


def predictor_of(kind: type, **options: Any) -> Predictor:
    task = Copy(symbols=10, lengths="1..6")
    if kind is LanguageModel:
        task.join()
    model = kind(**task.model_options, d_model=16, **options)
    initialise(model, 3)
    generator = torch.Generator().manual_seed(1)
    for parameter in model.parameters():  # far from a model that says one token always
        parameter.data += 0.3 * torch.randn(parameter.shape, generator=generator)
    return predictor_for(model.double().eval(), task)


def answers(predictor: Predictor, where: str | None, **options: Any) -> list[Answer]:
    asked = SequenceOptions(longest=6, alignments=where, **options)
    return list(predictor.predict(LINES, asked))  # type: ignore[arg-type]


def by_tape(predictor: Predictor, answer: Answer, site: str, head: int | None) -> list[tuple[int, int]]:
    """Where each token that was written looked at most, of the tokens that were read."""
    task: Any = predictor.task
    source = task.read(answer.input)
    names = {name: number for number, name in enumerate(task.show_target(range(13)))}
    ids = [names[name] for name, _ in answer.tokens]
    inputs = task.answered(source, ids)
    with jarilab.record(predictor.model) as tape:
        predictor.model(*inputs)
    weights = tape.weights(site)[0]
    weights_QK = weights.mean(0) if head is None else weights[head]
    first = weights_QK.shape[0] - len(ids)
    length = len(ids) - (ids[-1] == END)
    return [(int(weights_QK[first + i, : len(source)].argmax()), i) for i in range(length)]


@pytest.mark.parametrize(
    ("kind", "options", "where", "site", "head"),
    [
        (EncoderDecoder, {"n_heads": 4, "n_decoder_layers": 3}, "auto", "decoder.1.cross", None),
        (EncoderDecoder, {"n_heads": 4, "n_decoder_layers": 1}, "auto", "decoder.0.cross", None),
        (EncoderDecoder, {"n_heads": 4}, "decoder.1.cross:2", "decoder.1.cross", 2),
        (Recurrent, {}, "auto", "decoder.0.cross", None),
        (LanguageModel, {"n_heads": 4, "encoding": "rotary"}, "decoder.1.self:0", "decoder.1.self", 0),
    ],
)
def test_links_are_those_of_the_map(
    kind: type, options: dict[str, Any], where: str, site: str, head: int | None
) -> None:
    predictor = predictor_of(kind, **options)
    linked = answers(predictor, where)
    assert [answer.input for answer in linked] == LINES
    assert any(answer.alignment for answer in linked)
    for answer in linked:
        assert list(answer.alignment or ()) == by_tape(predictor, answer, site, head)
        assert answer.source == tuple(answer.input.split())
    plain = answers(predictor, None)
    assert [one.answer for one in plain] == [one.answer for one in linked]


def test_they_are_written_behind_the_answer_and_as_pairs() -> None:
    predictor = predictor_of(EncoderDecoder, n_heads=4)
    for answer in answers(predictor, "auto", beam_size=2, n_best=2):
        (line,) = answer.text()
        text, links = line.rstrip("\n").split(" ||| ")
        assert text.endswith(str(answer.answer))
        pairs = json.loads(json.dumps(answer.record()))["alignment"]
        assert links == " ".join(f"{source}-{target}" for source, target in pairs)
        assert len(pairs) <= len(answer.tokens)
    (plain, *_) = answers(predictor, None)
    assert "alignment" not in plain.record()
    assert "|||" not in "".join(plain.text())


def test_a_line_that_cannot_be_read_has_no_links() -> None:
    predictor = predictor_of(EncoderDecoder, n_heads=4)
    asked: Any = SequenceOptions(alignments="auto")
    (bad,) = predictor.predict(["a b"], asked)
    assert bad.error is not None
    assert list(bad.text()) == ["\n"]


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("decoder.5.cross", r"unknown alignments 'decoder\.5\.cross'.*decoder\.1\.cross"),
        ("encoder.0", r"unknown alignments 'encoder\.0'"),
        ("", "unknown alignments ''"),
        ("decoder.1.cross:4", r"decoder\.1\.cross has the heads 0 to 3, got 4"),
        ("decoder.1.cross:-1", "unknown alignments"),
    ],
)
def test_a_site_that_there_is_not_is_refused(where: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        answers(predictor_of(EncoderDecoder, n_heads=4), where)
