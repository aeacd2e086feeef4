"""Programs in a page compute what their models do."""

import copy
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jaxtyping
import numpy as np
import pytest
import torch
from torch import nn

import jarilab
from jarilab import LanguageModel, Positions, Tokens, UserError
from jarilab.encodings.base import registry
from jarilab.inspect.intervene.interventions import Edit, HeadOff, Link, TokenOff, operate
from jarilab.inspect.intervene.moved_positions import PositionEdit, move_tokens
from jarilab.models.decoding import greedy
from jarilab.pages.kit.page import bundle
from jarilab.pages.program.graph import OPERATORS
from jarilab.pages.program.program import LARGEST, ModelSizeError, halved, program_of, why_not
from jarilab.positions.patches import Images

pytestmark = [pytest.mark.slow, pytest.mark.browser]

MINE = Path(__file__).parents[4] / "examples" / "my_encoding.py"
jarilab.trust_code(MINE)
TOKENS, FIRST, END = 12, 1, 2
NEAR = 1e-5  # float32, and sums in another order

# Of encoder and decoder, so that one program has two. Tried in every run of the tests: what is added to the input,
# rotations, terms, biases by tables and networks, sums, one's own.
ALWAYS = [
    ("learned", "t5"),
    ("rotary", "rotary:pairing=interleaved"),
    ("shaw:clip=3", "alibi"),
    ("sinusoidal:layout=tensor2tensor+rotary:fraction=0.5", f"{MINE}:Kerple"),
]
OTHERS = [
    ("transformer_xl", "cope"),
    ("rotary_dynamic", "forgetting"),
    ("none", "sinusoidal"),
    ("deberta", "shaw"),
    ("longrope", "t5"),
    ("dynamic_bias", "rotary"),
    ("kerple", "xpos"),
    ("sandwich", "fire"),
    ("rotary_linear", "rotary_ntk"),
    ("yarn", "llama3"),
    ("prope", "log_length"),
    ("rotary3d", "pope"),
    ("scaled_sinusoidal", "alibi"),
]
PAIRS = [*ALWAYS, *OTHERS]
CHUNKED = "path_attention"
"""Solves its systems a chunk at a time, as many as the text needs, which no program of free lengths says."""
SITES = ["encoder.0", "decoder.0.self", "decoder.0.cross"]


def ids_of(length: int, seed: int = 0) -> list[int]:
    generator = torch.Generator().manual_seed(seed + length)
    return torch.randint(3, TOKENS, (length,), generator=generator).tolist()


def tokens_of(ids: Sequence[int], frame: str) -> Tokens:
    return Tokens.of(torch.tensor([list(ids)]), frame)


def both(source: int, target: int) -> tuple[Tokens, Tokens]:
    return tokens_of(ids_of(source), "source"), tokens_of([FIRST, *ids_of(target - 1, 7)], "target")


def caption() -> Tokens:
    """Two words and an image of 2 x 2 codes."""
    places = torch.tensor([[0, -1, -1], [1, -1, -1], [-1, 0, 0], [-1, 0, 1], [-1, 1, 0], [-1, 1, 1]])
    axes = ("text", "image.row", "image.column")
    return Tokens(torch.tensor([ids_of(6)]), Positions(places, torch.arange(6), axes, "target"))


def with_noise(model: nn.Module) -> nn.Module:
    """Parameters that are all far from 0 and 1, so that none of them could be left out."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.2 * torch.randn_like(parameter)
    return model.eval()


def encoder_decoder(encoder: str, decoder: str) -> tuple[nn.Module, tuple[Any, ...]]:
    model = jarilab.EncoderDecoder(
        TOKENS, TOKENS, d_model=16, n_heads=2, n_encoder_layers=1, n_decoder_layers=1, activation="gelu",
        encoder_encoding=encoder, decoder_encoding=decoder,
    )  # fmt: skip
    return model, both(5, 5)


def undivided_and_batch() -> tuple[nn.Module, tuple[Any, ...]]:
    """Scores without a divisor, and norms by running statistics, which are no parameters."""
    model = LanguageModel(TOKENS, d_model=16, n_heads=2, n_layers=1, scale="none", norm_kind="batch")
    for buffer in model.buffers():
        buffer.uniform_(0.5, 2.0)
    return model, (tokens_of(ids_of(6), "target"),)


def vision() -> tuple[nn.Module, tuple[Any, ...]]:
    model = jarilab.VisionTransformer(
        (1, 4, 6),
        3,
        patch_size=2,
        d_model=16,
        n_heads=2,
        n_layers=1,
        encoding="rotary2d+shaw2d",
        pool="class",
        registers=1,
    )
    return model, (Images(torch.randn(1, 1, 4, 6)),)


MADE: dict[str, Callable[[], tuple[nn.Module, tuple[Any, ...]]]] = {
    **{f"{one} {other}": (lambda one=one, other=other: encoder_decoder(one, other)) for one, other in PAIRS},
    "language": lambda: (
        LanguageModel(TOKENS, d_model=16, n_heads=2, n_layers=1, encoding="alibi", window=3),
        (tokens_of(ids_of(6), "target"),),
    ),
    "parts": lambda: (
        LanguageModel(TOKENS, d_model=16, n_heads=2, n_layers=1, encoding="learned@text+rotary2d@image"),
        (caption(),),
    ),
    "undivided and batch": undivided_and_batch,
    "vision": vision,
}


@dataclass
class Made:
    """program: of the example inputs. model: with the parameters that the program has."""

    program: dict[str, Any]
    model: nn.Module
    inputs: tuple[Any, ...]


@pytest.fixture(autouse=True)
def as_a_person_runs_it() -> Iterator[None]:
    """Unchecked, for a symbolic length is no `int`; and without the hundred thousand remarks that PyTorch would log."""
    jaxtyping.config.update("jaxtyping_disable", True)
    logging.disable(logging.DEBUG)
    yield
    logging.disable(logging.NOTSET)
    jaxtyping.config.update("jaxtyping_disable", False)


class Page:
    """Programs in a browser."""

    def __init__(self, page: Any):
        self.page, self.made = page, {}

    def of(self, name: str) -> Made:
        if name not in self.made:
            torch.manual_seed(3)
            model, inputs = MADE[name]()
            program = program_of(with_noise(model), inputs)
            rounded = copy.deepcopy(model)
            halved(rounded)
            self.page.evaluate("([name, program]) => { made[name] = new jari.Program(program); }", [name, program])
            self.made[name] = Made(program, rounded, inputs)
        return self.made[name]

    def run(self, name: str, given: dict[str, Any]) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        script = """([name, given]) => {
            const plain = ({ shape, data }) => ({ shape, data: [...data] });
            const { scores, weights } = made[name].run(given);
            const each = Object.entries(weights).map(([site, one]) => [site, plain(one)]);
            return [plain(scores), Object.fromEntries(each)];
        }"""
        scores, weights = self.page.evaluate(script, [name, given])
        return array(scores), {site: array(each) for site, each in weights.items()}


def array(tensor: dict[str, Any]) -> np.ndarray:
    return np.array(tensor["data"], dtype=np.float64).reshape(tensor["shape"])


@pytest.fixture(scope="module")
def page(browser: Any) -> Iterator[Page]:
    opened = browser.new_page()
    script = bundle("jarilab.pages.kit", "kit/program.js")
    opened.set_content("<p>programs</p>")
    given = "window.jari = kit_program$; window.operators = kit_program_operators$; window.made = {};"
    opened.add_script_tag(content=f"{script}\n{given}")
    yield Page(opened)
    opened.close()


@torch.no_grad()
def expected(
    model: nn.Module, inputs: Sequence[Any], edits: Sequence[Edit] = ()
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    with operate(model, edits) if edits else nullcontext(), jarilab.record(model) as tape:
        scores = model(*inputs)
    weights = {site: tape.weights(site)[0].numpy() for site in tape.sites}
    return scores.reshape(-1, scores.shape[-1]).numpy(), weights


def given_of(inputs: Sequence[Any]) -> dict[str, Any]:
    if isinstance(inputs[-1], Images):
        return {"image": inputs[-1].pixels.flatten().tolist()}
    names = ("source", "target")[-len(inputs) :]
    return {name: one.ids[0].tolist() for name, one in zip(names, inputs, strict=True)}


def assert_same(found: Any, wanted: Any) -> None:
    np.testing.assert_allclose(found[0], wanted[0], rtol=NEAR, atol=NEAR)
    assert found[1].keys() == wanted[1].keys()
    for site, weights in wanted[1].items():
        np.testing.assert_allclose(found[1][site], weights, rtol=0, atol=NEAR)


# What it computes ----------------------------------------------------------------------------------------------------


def test_every_encoding_of_one_axis_is_tested() -> None:
    tried = "+".join(one for pair in PAIRS for one in pair)
    names = [name for name in registry.names() if 1 in registry.spec(name).target.axes]
    assert [name for name in names if name not in tried] == [CHUNKED]


def test_chunked_encoding_is_refused() -> None:
    model = LanguageModel(TOKENS, d_model=16, n_heads=2, n_layers=1, encoding=CHUNKED).eval()
    with pytest.raises(UserError, match="sizes are free, got one of 6; look into this model live"):
        program_of(model, (tokens_of(ids_of(6), "target"),))


LONG = [*(f"{one} {other}" for one, other in OTHERS), "parts", "undivided and batch"]


def often_and_long(names: Iterable[str]) -> list[Any]:
    return [pytest.param(name, marks=pytest.mark.long) if name in LONG else name for name in names]


@pytest.mark.parametrize("name", often_and_long(MADE))
def test_page_equals_pytorch(page: Page, name: str) -> None:
    made = page.of(name)
    assert_same(page.run(name, given_of(made.inputs)), expected(made.model, made.inputs))
    held = page.page.evaluate("(name) => jari.verified(made[name])", name)
    assert held["holds"]
    assert held["scores"] < NEAR
    assert held["weights"] < 2e-5  # of which 8e-6 is fixed point


@pytest.mark.parametrize("name", often_and_long(f"{one} {other}" for one, other in PAIRS))
def test_inputs_of_other_lengths(page: Page, name: str) -> None:
    made = page.of(name)
    for lengths in ((1, 1), (1, 3), (9, 2), (20, 4)):
        inputs = both(*lengths)
        assert_same(page.run(name, given_of(inputs)), expected(made.model, inputs))


@pytest.mark.parametrize("length", [1, 2, 11])
def test_a_language_model_reads_any_length(page: Page, length: int) -> None:
    inputs = (tokens_of(ids_of(length), "target"),)
    assert_same(page.run("language", given_of(inputs)), expected(page.of("language").model, inputs))


EDITS: list[list[Edit]] = [
    [HeadOff(site, 1)] for site in SITES
] + [
    [Link("encoder.0", 0, 1, 2, "erase"), Link("encoder.0", None, 3, 3, "force"), HeadOff("decoder.0.cross", 0)],
    [Link("decoder.0.self", None, 0, 0, "erase")],  # the only key of its query
    [TokenOff(("encoder.0", "decoder.0.cross"), None, 3), TokenOff(("decoder.0.self",), None, 1)],
]  # fmt: skip


def change_of(edit: Any) -> dict[str, Any]:
    """An edit as the page says it."""
    if isinstance(edit, HeadOff):
        return {"kind": "head", "site": edit.site, "head": edit.head}
    if isinstance(edit, TokenOff):
        return {"kind": "token", "sites": edit.sites, "key": edit.key}
    return {"kind": "link", **vars(edit)}


@pytest.mark.parametrize("edits", EDITS, ids=lambda edits: " ".join(map(str, edits)))
@pytest.mark.parametrize("name", ["rotary rotary:pairing=interleaved", "shaw:clip=3 alibi"])
def test_edits_equal_operate(page: Page, name: str, edits: list[Edit]) -> None:
    made, inputs = page.of(name), both(5, 4)
    given = {**given_of(inputs), "edits": [change_of(edit) for edit in edits]}
    wanted = expected(made.model, inputs, edits)
    assert_same(page.run(name, given), wanted)
    assert np.abs(wanted[0] - expected(made.model, inputs)[0]).max() > 0.01


@pytest.mark.parametrize("how", [("off", 1), ("shift", 3), ("stretch", 2), ("shift", -2)])
def test_moved_positions_equal_python(page: Page, how: tuple[Any, int]) -> None:
    name = "sinusoidal:layout=tensor2tensor+rotary:fraction=0.5"
    name = next(one for one in MADE if one.startswith(name))
    made, inputs = page.of(name), both(6, 4)
    change = {"kind": "place", "side": "source", "how": how[0], "amount": how[1]}
    wanted = expected(made.model, (move_tokens(inputs[0], PositionEdit(*how)), inputs[1]))
    assert_same(page.run(name, {**given_of(inputs), "edits": [change]}), wanted)


def test_heads_of_an_image_are_switched_off(page: Page) -> None:
    made = page.of("vision")
    # A page counts the rows of a map. In Python the class token and the register come before 0, the first patch.
    edits: list[Edit] = [HeadOff("encoder.0", 0), Link("encoder.0", 1, -2, 3, "erase")]
    link = {"kind": "link", "site": "encoder.0", "head": 1, "query": 0, "key": 5, "how": "erase"}
    given = {**given_of(made.inputs), "edits": [change_of(edits[0]), link]}
    assert_same(page.run("vision", given), expected(made.model, made.inputs, edits))


@pytest.mark.parametrize("name", ["rotary rotary:pairing=interleaved", "learned t5"])
def test_answers_equal_greedy_search(page: Page, name: str) -> None:
    made = page.of(name)
    for length in (2, 5, 8):
        source = tokens_of(ids_of(length), "source")
        wanted = greedy(made.model, source, first=FIRST, end=END, padding=0, longest=6)  # type: ignore[arg-type]
        script = """async ([name, source, how]) => {
            const { ids, scores, weights } = await jari.write(made[name], source, how);
            return [ids, scores.shape, weights["decoder.0.cross"].shape];
        }"""
        how = {"first": FIRST, "end": END, "longest": 6}
        ids, scores, weights = page.page.evaluate(script, [name, ids_of(length), how])
        assert ids == wanted.ids[0].tolist()
        assert scores == [len(ids), TOKENS]
        assert weights == [2, len(ids), length]


# What it cannot ------------------------------------------------------------------------------------------------------


def said(page: Page, name: str, given: dict[str, Any]) -> str:
    script = "([name, given]) => { try { made[name].run(given); } catch (error) { return error.message; } }"
    return page.page.evaluate(script, [name, given])


def test_page_refuses_unreadable_input(page: Page) -> None:
    page.of("shaw:clip=3 alibi")
    name = "learned t5"
    page.of(name)
    assert "expected 1 to 512 tokens, got 513" in said(page, name, {"source": [3] * 513, "target": [1]})
    assert "expected a number from 0 to 11, got 12" in said(page, name, {"source": [12], "target": [1]})
    assert "reads target, which is missing" in said(page, name, {"source": [3]})
    far = [{"kind": "place", "how": "shift", "side": "source", "amount": 600}]
    assert "expected a number from 0 to 511, got 600" in said(page, name, {"source": [3], "target": [1], "edits": far})
    head = [{"kind": "head", "site": "encoder.0", "head": 2}]
    assert "has the heads 0 to 1, got 2" in said(page, name, {"source": [3], "target": [1], "edits": head})


def test_programs_of_another_kind_are_refused(page: Page) -> None:
    refused = """(change) => {
        try { new jari.Program({ ...made["language"].source, ...change }); } catch (error) { return error.message; }
    }"""
    page.of("language")
    assert "expected a jari program 1, got 2" in page.page.evaluate(refused, {"format": "2"})
    unknown = {"nodes": [["fft.default", [], "float32"]]}
    assert "the operator fft.default is not known here" in page.page.evaluate(refused, unknown)


def test_different_answer_is_detected(page: Page) -> None:
    made = page.of("language")
    sample = made.program["sample"]
    other = {**made.program, "sample": {**sample, "inputs": {"target": sample["inputs"]["target"][::-1]}}}
    held = page.page.evaluate("(program) => jari.verified(new jari.Program(program))", other)
    assert not held["holds"]
    assert held["scores"] > 0.01


def test_large_models_are_refused() -> None:
    large = LanguageModel(TOKENS, d_model=512, n_heads=2, n_layers=1, d_ff=LARGEST // 1024)
    with pytest.raises(ModelSizeError, match="a page carries models of 3,000,000 parameters at most, got") as refused:
        program_of(large, (tokens_of(ids_of(3), "target"),))
    assert "파라미터 3,000,000개까지의 모델만" in why_not(refused.value)[1]


class Curious(nn.Module):
    """A model that does what a page cannot."""

    def __init__(self, does: Callable[[torch.Tensor], torch.Tensor]):
        super().__init__()
        self.model = LanguageModel(TOKENS, d_model=8, n_heads=1, n_layers=1)
        self.does = does

    def forward(self, tokens: Tokens) -> torch.Tensor:
        return self.does(self.model(tokens))


@pytest.mark.long
@pytest.mark.parametrize(
    ("does", "words"),
    [
        (lambda x: torch.fft.fft(x).real, "the model uses _fft_r2c.default, which a page cannot compute"),
        (lambda x: x if float(x.sum()) > 0 else -x, "torch.export cannot follow Curious: Could not guard"),
        (lambda x: x.half().float(), "the model computes in float16, which a page does not"),
    ],
)  # fmt: skip
def test_unsupported_operator_is_named(does: Any, words: str) -> None:
    with pytest.raises(UserError, match=words):
        program_of(Curious(does).eval(), (tokens_of(ids_of(3), "target"),))


def test_padding_is_refused() -> None:
    padded = replace(tokens_of([3, 4, 0], "target"), keep=torch.tensor([[True, True, False]]))
    with pytest.raises(UserError, match="one input at a time, without padding"):
        program_of(LanguageModel(TOKENS, d_model=8, n_heads=1, n_layers=1).eval(), (padded,))


def test_operators_equal_the_page(page: Page) -> None:
    assert set(page.page.evaluate("() => Object.keys(operators.OPERATORS)")) == OPERATORS
