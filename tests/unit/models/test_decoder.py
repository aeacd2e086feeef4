"""The decoder-only language model: what it may see, with and without a cache, a window, packing and padding."""

import importlib.util
import sys
from pathlib import Path

import pytest
import torch

import jarilab
from jarilab.attention.geometry import geometry_of_layers
from jarilab.core.errors import UserError
from jarilab.models.base import Generates
from jarilab.models.base import registry as models
from jarilab.models.decoder import LanguageModel, positions_after
from jarilab.models.decoding import beam, greedy
from jarilab.nn.init import initialise
from jarilab.positions.coordinates import Positions, Tokens
from jarilab.positions.masks import Mask

KINDS = ["learned", "rotary_dynamic", "path_attention", "rotary+shaw", "t5"]
"""One of each kind of hook, of a rotation by the length and of a state in the cache: all others are asked the laws."""
VOCABULARY, BATCH, LENGTH = 11, 2, 9
OPTIONS = [{}, {"window": 3}, {"token_before": True}]
NEAR = {"rtol": 0.0, "atol": 1e-10}


def model_of(encoding="none", **options):
    """In float64, all its parameters random, so that nothing is symmetric."""
    options = {"d_model": 24, "n_heads": 3, "d_ff": 20, **options}
    model = LanguageModel(VOCABULARY, encoding=encoding, **options).double()
    initialise(model, 3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model.eval()


def ids_of(length=LENGTH):
    return torch.randint(VOCABULARY, (BATCH, length))


def stepwise(model, ids, sizes):
    """The scores, read in pieces of these sizes with a cache, and the cache."""
    state, cache, scores, start = model.start(None), model.new_cache(), [], 0
    for size in sizes:
        positions = Positions.sequence(size, start, frame="target")
        scores.append(model.step(state, ids[:, start : start + size], positions, cache))
        start += size
    assert start == ids.shape[1]
    return torch.cat(scores, 1), cache


def restarting(documents):
    """Places that start over where the document changes."""
    row, places = documents[0].tolist(), []
    for i, document in enumerate(row):
        places.append(places[-1] + 1 if i and row[i - 1] == document else 0)
    return Positions(torch.tensor(places).unsqueeze(-1), torch.arange(len(row)), frame="target")


@pytest.mark.parametrize("encoding", KINDS)
@pytest.mark.parametrize("options", OPTIONS)
@torch.no_grad()
def test_step_by_step_with_a_cache_is_the_same_as_all_at_once(encoding, options):
    model, ids = model_of(encoding, **options), ids_of()
    for sizes in ([1] * LENGTH, [4, 1, 3, 1]):
        scores, _ = stepwise(model, ids, sizes)
        torch.testing.assert_close(scores, model(ids), **NEAR)


@torch.no_grad()
def test_the_token_before_is_the_product_and_the_sum_of_its_formula():
    model, ids = model_of(token_before=True), ids_of()
    part, embedded = model.token_before, model.embedding(ids)
    wanted = embedded.clone()
    for row, tokens in enumerate(ids.tolist()):
        for t, token in enumerate(tokens):
            if t >= 1:
                wanted[row, t] += 24**0.5 * part.before[tokens[t - 1]] * part.this[token]
                wanted[row, t] += 24**0.5 * part.first * embedded[row, t - 1]
            if t >= 2:
                wanted[row, t] += 24**0.5 * part.second * embedded[row, t - 2]
    positions = Positions.sequence(LENGTH, frame="target")
    scores = model.decoder(wanted, positions=positions) @ model.embedding.weight.t()
    torch.testing.assert_close(model(ids), scores, **NEAR)


@torch.no_grad()
def test_an_untrained_token_before_changes_nothing():
    with_it = LanguageModel(VOCABULARY, d_model=24, n_heads=3, token_before=True)
    without = LanguageModel(VOCABULARY, d_model=24, n_heads=3)
    initialise(with_it, 3)
    initialise(without, 3)
    ids = ids_of()
    assert torch.equal(with_it(ids), without(ids))
    assert 0.4 < with_it.token_before.this.std() < 0.6


@torch.no_grad()
def test_beams_with_the_token_before_are_scored_as_all_at_once():
    model, prompts = model_of("rotary", token_before=True), prompts_of((2, 5, 4))
    options = {"beam_size": 3, "best": 3, "first": 1, "end": 2, "longest": 5}
    for row, answers in enumerate(beam(model, prompts, **options, places=positions_after(prompts))):
        prompt = prompts.ids[row][prompts.keep[row]]
        for answer in answers:
            written = answer.ids.tolist()
            read = torch.tensor([[*prompt.tolist(), 1, *written[:-1]]])
            log_p = model(read)[0, len(prompt) :].log_softmax(-1)
            assert answer.total == pytest.approx(float(log_p[range(len(written)), written].sum()), abs=1e-4)


@pytest.mark.parametrize("encoding", KINDS)
@torch.no_grad()
def test_a_later_token_changes_no_earlier_score(encoding):
    model, ids = model_of(encoding), ids_of()
    changed = ids.clone()
    changed[:, 5] = (changed[:, 5] + 1) % VOCABULARY
    before, after = model(ids), model(changed)
    assert torch.equal(before[:, :5], after[:, :5])
    assert (before[:, 5:] != after[:, 5:]).any(-1).all(), "a token is heard from its own place on"


@pytest.mark.parametrize("kernel", ["explicit", "fused"])
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_no_gradient_flows_from_a_score_to_a_later_token(kernel, norm):
    model = model_of("rotary+alibi", n_layers=3, kernel=kernel, norm=norm)
    x = model.embedding(ids_of()).detach().requires_grad_()
    y = model.decoder(x, positions=Positions.sequence(LENGTH, frame="target"))
    (y[:, 4] * torch.randn_like(y[:, 4])).sum().backward()
    reached = x.grad.abs().sum(-1)
    assert (reached[:, :5] > 1e-6).all()
    assert (reached[:, 5:] == 0).all()


@pytest.mark.parametrize("encoding", KINDS)
@pytest.mark.parametrize("options", OPTIONS)
@torch.no_grad()
def test_packed_documents_are_the_same_as_separate_ones(encoding, options):
    model, ids = model_of(encoding, **options), ids_of()
    documents = torch.tensor([[7, 7, 7, 7, 2, 2, 5, 5, 5]]).expand(BATCH, -1)
    packed = model(Tokens(ids, restarting(documents), documents=documents))
    separate = torch.cat([model(ids[:, part]) for part in (slice(0, 4), slice(4, 6), slice(6, 9))], 1)
    torch.testing.assert_close(packed, separate, **NEAR)


@torch.no_grad()
def test_rows_may_be_packed_differently():
    model, ids = model_of("alibi"), ids_of()
    documents = torch.tensor([[0, 0, 0, 1, 1, 1, 1, 1, 1], [0, 0, 0, 0, 0, 0, 1, 1, 1]])
    packed = model(Tokens(ids, Positions.sequence(LENGTH), documents=documents))
    for row, cut in enumerate((3, 6)):
        alone = [model(ids[row : row + 1, part]) for part in (slice(0, cut), slice(cut, LENGTH))]
        torch.testing.assert_close(packed[row : row + 1], torch.cat(alone, 1), **NEAR)


@pytest.mark.parametrize("encoding", KINDS)
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("side", ["left", "right"])
@torch.no_grad()
def test_padding_changes_no_real_token(encoding, options, side):
    model, ids = model_of(encoding, **options), ids_of()
    keep = torch.ones(BATCH, LENGTH, dtype=torch.bool)
    real = slice(3, LENGTH) if side == "left" else slice(0, LENGTH - 3)
    keep[1] = False
    keep[1, real] = True
    padded = model(Tokens(ids, Positions.from_mask(keep, frame="target"), keep))
    torch.testing.assert_close(padded[:1], model(ids[:1]), **NEAR)
    torch.testing.assert_close(padded[1:, real], model(ids[1:, real]), **NEAR)
    assert padded.isfinite().all()


@pytest.mark.parametrize("encoding", ["none", "learned", "rotary", "shaw", "t5"])
@torch.no_grad()
def test_a_window_is_itself_and_those_just_before(encoding):
    model, ids, window = model_of(encoding, window=3), ids_of(), 3
    visible = torch.tensor([[q - (window - 1) <= k <= q for k in range(LENGTH)] for q in range(LENGTH)])
    assert visible.sum(-1).tolist() == [1, 2, 3, 3, 3, 3, 3, 3, 3]
    positions, stack = Positions.sequence(LENGTH, frame="target"), model.decoder
    x = stack.encoding.embed(model.embedding(ids), positions)
    places = geometry_of_layers(stack.encoding, positions, positions, Mask(pairs=visible))
    for layer, geometry in zip(stack.layers, places, strict=True):
        x = layer["self"](x, geometry)
    torch.testing.assert_close(model(ids), stack.norm(x) @ model.embedding.weight.t(), **NEAR)


def test_each_layer_of_windows_reaches_one_window_further():
    model = model_of(n_layers=3, window=3)
    x = model.embedding(ids_of()).detach().requires_grad_()
    model.decoder(x, positions=Positions.sequence(LENGTH, frame="target"))[:, 8].sum(-1).square().sum().backward()
    reached = x.grad.abs().sum(-1) > 0
    assert reached.tolist() == [[False, False] + [True] * 7] * BATCH, "3 layers of 2 steps back: from 8 to 2"


@pytest.mark.parametrize("window", [1, 2, 4])
@pytest.mark.parametrize("encoding", ["none", "rotary", "shaw"])
@torch.no_grad()
def test_a_cache_far_beyond_the_window_stays_small_and_right(window, encoding):
    model, ids = model_of(encoding, window=window), ids_of(60)
    at_once = model(ids)
    for size in (1, 3, 10):
        scores, cache = stepwise(model, ids, [size] * (60 // size))
        torch.testing.assert_close(scores, at_once, **NEAR)
        assert {layer.length for layer in cache.target} == {window - 1 + size}
        assert cache.positions.order.tolist() == list(range(60))[-(window - 1 + size) :]
        n_bytes = {layer.filled()[0].untyped_storage().nbytes() for layer in cache.target}
        assert max(n_bytes) <= 2 * (window - 1 + size) * BATCH * 24 * 8, "room may be doubled, no more"


@pytest.mark.parametrize("options", OPTIONS)
@torch.no_grad()
def test_rows_of_a_cache_may_be_selected_on_the_way(options):
    model, ids, rows = model_of("rotary", **options), ids_of(), torch.tensor([1, 1, 0])
    state, cache = model.start(None), model.new_cache()
    model.step(state, ids[:, :6], Positions.sequence(6, frame="target"), cache)
    state, ids = state.select(rows), ids[rows]
    cache.select(rows)
    scores = model.step(state, ids[:, 6:], Positions.sequence(3, 6, frame="target"), cache)
    torch.testing.assert_close(scores, model(ids)[:, 6:], **NEAR)


@torch.no_grad()
def test_one_layer_without_positions_cannot_tell_the_order_of_what_came_before_and_two_can():
    """Irie 2025: one causal layer sees its past as a bag; from the second on, tokens carry what each had seen."""
    ids = torch.arange(LENGTH).expand(BATCH, -1)
    shuffled = torch.cat((ids[:, [4, 2, 7, 0, 1, 6, 3, 5]], ids[:, 8:]), 1)
    moved = {layers: _moved(model_of(n_layers=layers), ids, shuffled) for layers in (1, 2, 6)}
    assert moved[1] < 1e-12
    assert moved[2] > 1e-2
    assert moved[6] > 1e-2
    assert _moved(model_of("sinusoidal", n_layers=1), ids, shuffled) > 1e-2


def _moved(model, first, second):
    """How much the scores after the last token differ, at least, over the rows."""
    return float((model(first) - model(second))[:, -1].abs().amax(-1).min())


def test_a_learned_table_that_is_too_short_says_both_numbers():
    model = model_of("learned:positions=8")
    assert model.max_positions() == {"target": 8}
    model(ids_of(8))
    with pytest.raises(UserError, match=r"knows the positions 0 to 7, got 8; use learned:positions=9 or"):
        model(ids_of(9))
    assert model_of("rotary").max_positions() == {"target": None}


def test_its_attentions_are_recorded_under_the_sites_of_a_decoder():
    model = model_of("alibi", n_layers=3, window=4)
    with jarilab.record(model) as tape:
        model(ids_of())
    assert tape.sites == ["decoder.0.self", "decoder.1.self", "decoder.2.self"]
    for site in tape.sites:
        weights = tape.weights(site)
        assert weights.shape == (BATCH, 3, LENGTH, LENGTH)
        steps = torch.arange(LENGTH).unsqueeze(1) - torch.arange(LENGTH)
        assert ((weights > 0) == ((steps >= 0) & (steps < 4))).all()
        assert tape.trust(site).rebuild_error < 1e-12
        assert tape.trust(site).masked_weight == 0.0


def test_a_single_document_keeps_the_plain_causal_mask():
    model, ids = model_of("rotary"), ids_of()
    documents = torch.zeros_like(ids)
    with jarilab.record(model) as tape:
        model(ids)
        model(Tokens(ids, Positions.sequence(LENGTH), documents=documents))
    assert [recorded.call.geometry.causal for recorded in tape.calls["decoder.0.self"]] == [True, False]


def test_tied_scores_share_the_embedding_and_untied_ones_do_not():
    tied, untied = model_of(), model_of(tied=False)
    assert [n for n, p in tied.named_parameters() if VOCABULARY in p.shape] == ["embedding.weight"]
    assert [n for n, p in untied.named_parameters() if VOCABULARY in p.shape] == [
        "embedding.weight",
        "generator.weight",
    ]
    ids = ids_of()
    before = untied(ids)
    with torch.no_grad():
        untied.generator.weight.mul_(2)
    torch.testing.assert_close(untied(ids), 2 * before)


def test_every_parameter_gets_a_gradient():
    model = model_of("learned+rotary+shaw+t5", n_layers=2, tied=False)
    model(ids_of()).log_softmax(-1)[..., 0].sum().backward()
    # Keys are compared with each other alone: what all share has no effect on the softmax.
    without = [n for n, p in model.named_parameters() if "key.bias" not in n and (p.grad is None or not p.grad.any())]
    assert without == []


def test_it_is_registered_and_built_from_options():
    assert models.spec("decoder").target is LanguageModel
    model = models.spec("decoder:n_layers=1,window=5,tied=false").build(vocab_size=VOCABULARY)
    assert isinstance(model, Generates)
    assert (len(model.decoder.layers), model.decoder.mask.window) == (1, 5)
    with pytest.raises(UserError, match=r"decoder: window: .*1 or more, got '0'"):
        models.spec("decoder:window=0")


def test_an_encoding_for_causal_attention_alone_may_be_used(tmp_path):
    """The site says that no query sees a later key: half of T5's buckets would else be wasted, too."""
    file = tmp_path / "late.py"
    file.write_text(
        "import jarilab\n\n\n"
        "class Late(jarilab.Encoding):\n"
        "    causal_only = True\n\n"
        "    def __init__(self, site: jarilab.Site):\n"
        "        super().__init__(site)\n"
    )
    jarilab.trust_code(file)
    model = LanguageModel(VOCABULARY, d_model=16, n_heads=2, encoding=f"{file}:Late+t5")
    assert model.decoder.encoding.by_layer[0].site.causal
    assert model(ids_of()).shape == (BATCH, LENGTH, VOCABULARY)


def test_mistakes_are_told():
    with pytest.raises(UserError, match="a window holds at least the query itself: expected 1 or more, got 0"):
        LanguageModel(VOCABULARY, window=0)
    with pytest.raises(UserError, match="a stack has 1 layer or more, got 0"):
        LanguageModel(VOCABULARY, n_layers=0)
    with pytest.raises(UserError, match=r"fused kernel .* attention weights.*use kernel=explicit"):
        LanguageModel(VOCABULARY, encoding="shaw", kernel="fused")
    model = model_of()
    ids, positions = ids_of(), Positions.sequence(LENGTH, frame="target")
    with pytest.raises(UserError, match="a cache does not know of documents; read such tokens at once"):
        model.decoder(model.embedding(ids), positions=positions, documents=ids, cache=model.new_cache())
    with pytest.raises(UserError, match="positions of 2 rows of 9 tokens, got 2 of 4"):
        model(Tokens(ids, Positions.sequence(4)))


# A prompt -------------------------------------------------------------------------------------------------------------


def prompts_of(lengths):
    """Prompts of several lengths, padding before the shorter ones."""
    longest = max(lengths)
    keep = torch.arange(longest) >= longest - torch.tensor(lengths).unsqueeze(1)
    ids = torch.randint(1, VOCABULARY, (len(lengths), longest)).masked_fill(~keep, 0)
    return Tokens(ids, Positions.from_mask(keep, frame="target"), keep)


@pytest.mark.parametrize("encoding", KINDS)
@pytest.mark.parametrize("options", OPTIONS)
@torch.no_grad()
def test_prompts_of_several_lengths_are_gone_on_with_as_each_by_itself(encoding, options):
    model, prompts = model_of(encoding, **options), prompts_of((2, 5, 4))
    written = torch.randint(VOCABULARY, (3, 4))
    places, rows = positions_after(prompts), torch.arange(3)
    state, cache = model.start(prompts), model.new_cache()
    steps = [model.step(state, written[:, i : i + 1], places(written[:, : i + 1], i, rows), cache) for i in range(4)]
    scores = torch.cat(steps, 1)
    at_once = model.step(state, written, places(written, 0, rows), None)
    torch.testing.assert_close(scores, at_once, **NEAR)
    for row, length in enumerate((2, 5, 4)):
        alone = torch.cat((prompts.ids[row, -length:], written[row]))
        torch.testing.assert_close(scores[row], model(alone[None])[0, length:], **NEAR)


@torch.no_grad()
def test_a_beam_about_prompts_is_that_about_each_by_itself():
    model, prompts = model_of("rotary"), prompts_of((2, 5, 4))
    options = {"beam_size": 3, "best": 2, "first": 1, "end": 2, "longest": 5}
    together = beam(model, prompts, **options, places=positions_after(prompts))
    for row, length in enumerate((2, 5, 4)):
        alone = Tokens.of(prompts.ids[row : row + 1, -length:], "target")
        (wanted,) = beam(model, alone, **options, places=positions_after(alone))
        assert [one.ids.tolist() for one in together[row]] == [one.ids.tolist() for one in wanted]
        assert [one.total for one in together[row]] == pytest.approx([one.total for one in wanted])


def test_mistakes_with_a_prompt_are_told():
    model, prompts = model_of("rotary"), prompts_of((2, 5))
    behind = Tokens(prompts.ids, prompts.positions, prompts.keep.flip(1))
    with pytest.raises(UserError, match="expected padding before it, got some behind; move it to the front"):
        model.start(behind)
    with pytest.raises(UserError, match="give each document a row of its own"):
        model.start(Tokens(prompts.ids, prompts.positions, documents=prompts.ids))
    with pytest.raises(UserError, match=r"expected an order from 5 on, got 0; pass places=jarilab\.positions_after"):
        greedy(model, prompts, first=1, end=2, padding=0, longest=3)
    with pytest.raises(UserError, match="expected a multiple of 2, got 3"):
        model.step(model.start(prompts), torch.ones(3, 1, dtype=torch.long), Positions.sequence(1, 5), None)


# experiments/depth.py -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def depth():
    path = Path(__file__).parents[3] / "experiments" / "depth.py"
    spec = importlib.util.spec_from_file_location("depth", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def study_of(none, sinusoidal, ends, verdict):
    """A table as jarilab.compare gives it, its means 0.01 sure."""

    def summary(name, mean):
        return {"encoding": name, "mean": mean, "low": ends and mean - 0.01, "high": ends and mean + 0.01}

    low, high = ends or (None, None)
    difference = {"first": "none", "second": "sinusoidal", "difference": none - sinusoidal, "low": low, "high": high}
    return {
        "metric": "loss",
        # In another order, so that the names are looked at.
        "encodings": [summary("sinusoidal", sinusoidal), summary("none", none)],
        "differences": [{**difference, "verdict": verdict}],
    }


def test_the_table_of_depths_has_a_row_for_each_with_paired_differences(depth):
    studies = {
        12: study_of(1.5, 1.5125, (-0.03, 0.005), "below the seed noise; not ranked"),
        2: study_of(2.0, 1.75, (0.2, 0.3), "sinusoidal is better"),
    }
    assert depth.table_of(studies).splitlines() == [
        "| layers | loss, none | loss, sinusoidal | none - sinusoidal, paired | verdict |",
        "| ---: | ---: | ---: | ---: | :--- |",
        "| 2 | 2.0000 (1.9900 to 2.0100) | 1.7500 (1.7400 to 1.7600) | +0.2500 (+0.2000 to +0.3000) "
        "| sinusoidal is better |",
        "| 12 | 1.5000 (1.4900 to 1.5100) | 1.5125 (1.5025 to 1.5225) | -0.0125 (-0.0300 to +0.0050) "
        "| below the seed noise; not ranked |",
    ]
    alone = depth.table_of({2: study_of(2.0, 1.75, None, "one seed each")}).splitlines()[-1]
    assert alone == "| 2 | 2.0000 | 1.7500 | +0.2500 | one seed each |"


def test_the_experiment_trains_each_depth_alike_and_writes_table_and_figure(depth, tmp_path, monkeypatch, capsys):
    asked = []

    def compare(task, out, **options):
        asked.append((task, out.name, options))
        out.mkdir(parents=True)
        return study_of(2.0, 1.75, None if options["seeds"] == 1 else (0.2, 0.3), "sinusoidal is better")

    monkeypatch.setattr(jarilab, "compare", compare)
    for seeds in ("2", "1"):
        out = tmp_path / seeds
        command = ["--train", "a.txt", "--out", str(out), "--n-layers", "2,6", "--seeds", seeds, "--steps", "50"]
        assert depth.main(command) == 0
        assert capsys.readouterr().out == (out / "depth.md").read_text()
        drawing = (out / "depth.svg").read_text()
        assert "<svg" in drawing
    assert [(task, out) for task, out, _ in asked[:2]] == [("text", "layers-2"), ("text", "layers-6")]
    settings = [options["settings"] for _, _, options in asked[:2]]
    assert [options.pop("model.n_layers") for options in settings] == [2, 6]
    assert settings[0] == settings[1]
    assert (settings[0]["training.examples"], settings[0]["training.epochs"]) == (50 * 12, None)
    assert [options["encodings"] for _, _, options in asked] == [("none", "sinusoidal")] * 4


def test_the_experiment_tells_what_is_missing_before_it_trains(depth, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(jarilab, "compare", lambda *_, **__: pytest.fail("it trained"))
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert depth.main(["--train", "a.txt", "--out", str(tmp_path)]) == 2
    assert "drawn by matplotlib; install it with pip install 'jarilab[dev]'" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        depth.main(["--train", "a.txt", "--out", str(tmp_path), "--n-layers", "2;6"])
    assert "--n-layers expects whole numbers with commas between, got '2;6'" in capsys.readouterr().err
