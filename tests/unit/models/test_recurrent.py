"""The recurrent model: its recurrences, padding, one token at a time, what a tape and a walk see, and learning."""

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from helpers.inside import walk
from jarilab.attention import definition
from jarilab.core.errors import UserError
from jarilab.inspect.explain.softmax import softmax_lens
from jarilab.inspect.explain.walk_text import walk_text
from jarilab.inspect.record.capture import record
from jarilab.models.base import registry
from jarilab.models.encoder_decoder import EncoderDecoder
from jarilab.models.recurrent import Recurrent
from jarilab.nn.init import initialise
from jarilab.positions.coordinates import Positions, Tokens

SITE = "decoder.0.cross"
SCORES = ["dot", "general", "concat", "additive"]
KINDS = [
    {"cell": "gru", "input_feeding": True},
    {"cell": "gru", "input_feeding": False, "n_layers": 2, "bidirectional": False},
    {"cell": "lstm", "input_feeding": True, "n_layers": 2, "tied": True},
    {"cell": "lstm", "input_feeding": False, "score": "additive"},
]
every_kind = pytest.mark.parametrize("options", KINDS, ids=lambda o: ",".join(str(v).lower() for v in o.values()))
every_score = pytest.mark.parametrize("score", SCORES)


def model_of(dtype=torch.float64, width=8, **options):
    model = Recurrent(9, 9, d_model=width, **options)
    initialise(model, 3)
    for name, parameter in model.named_parameters():
        if "bias" in name or "encoding" in name:  # they start at or near 0; here they shall be heard
            nn.init.normal_(parameter, generator=torch.Generator().manual_seed(len(name)))
    return model.to(dtype).eval()


def tokens(ids, keep=None, frame="source"):
    positions = (
        Positions.sequence(ids.shape[1], frame=frame) if keep is None else Positions.from_mask(keep, frame=frame)
    )
    return Tokens(ids, positions, keep)


def inputs():
    """Three sources, the first of them full, and their targets."""
    keep = torch.tensor([[True] * 6, [True] * 4 + [False] * 2, [True] + [False] * 5])
    return tokens(torch.randint(9, (3, 6)), keep), tokens(torch.randint(9, (3, 5)), frame="target")


def written(model, state, target, cache, start=0):
    """Scores of each token, read one at a time."""
    return torch.cat(
        [
            model.step(state, target.ids[:, i : i + 1], target.positions.slice(i, i + 1), cache)
            for i in range(start, target.ids.shape[1])
        ],
        1,
    )


# What it computes ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cell", ["gru", "lstm"])
def test_the_encoder_is_pytorchs_packed_one(cell):
    encoder = model_of(cell=cell).encoder
    directions = encoder.layers[0].directions
    packed = {"gru": nn.GRU, "lstm": nn.LSTM}[cell](8, 4, batch_first=True, bidirectional=True).double()
    for suffix, direction in (("", "forwards"), ("_reverse", "backwards")):
        for name, value in directions[direction].rnn.state_dict().items():
            packed.state_dict()[name + suffix].copy_(value)
    source, _ = inputs()
    x, lengths = torch.randn(3, 6, 8).double(), source.keep.sum(1)
    outputs, (last,) = encoder(x, source.positions, source.keep)
    expected, states = packed(pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False))
    expected, _ = pad_packed_sequence(expected, batch_first=True)
    torch.testing.assert_close(outputs[source.keep], expected[source.keep])
    h = states if cell == "gru" else states[0]
    torch.testing.assert_close(last, torch.cat((h[0], h[1]), -1))


@pytest.mark.parametrize("feeding", [True, False])
def test_a_decoder_written_out_by_hand(feeding):
    """Luong et al. 2015: h_t from the last token and h~ before it, w, c, h~, and the scores, one after another."""
    model = model_of(input_feeding=feeding)
    source, target = tokens(torch.tensor([[3, 1, 4, 1]])), tokens(torch.tensor([[2, 7, 1]]), frame="target")
    memory, (last,) = model.encoder(model.source_embedding(source.ids), source.positions)
    layer = model.decoder.layers[0]
    h, fed, rows = layer.start(last).tanh(), torch.zeros(1, 8).double(), []
    for t in range(3):
        x = model.target_embedding.weight[target.ids[:, t]] * 8**0.5
        h = torch.gru_cell(torch.cat((x, fed), -1) if feeding else x, h, *layer.recurrence.rnn.parameters())
        w = (h @ layer.cross_attention.score.query.weight.t() @ memory[0].t()).softmax(-1)
        fed = (torch.cat((h, w @ memory[0]), -1) @ layer.cross_attention.combine.weight.t()).tanh()
        rows.append(fed @ model.generator.weight.t())
    torch.testing.assert_close(model(source, target)[0], torch.cat(rows))


@every_kind
def test_every_parameter_gets_a_gradient(options):
    model = model_of(**options)
    model(*inputs()).square().sum().backward()
    assert [name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()] == []


def test_the_dropout_acts_while_training_only():
    model, (source, target) = model_of(dropout=0.5), inputs()
    assert torch.equal(model(source, target), model(source, target))
    model.train()
    assert not torch.allclose(model(source, target), model(source, target))


@every_kind
def test_it_works_in_bfloat16_and_under_deterministic_algorithms(options):
    if options.get("cell") == "lstm" and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        pytest.skip("PyTorch has no LSTM in bfloat16 on this processor")
    model = model_of(torch.float32, **options)
    source, target = inputs()
    exact = model(source, target)
    torch.use_deterministic_algorithms(True)
    with torch.autocast("cpu", torch.bfloat16):
        scores = model(source, target)
        one_at_a_time = written(model, model.start(source), target, model.new_cache())
    scores.float().square().sum().backward()
    assert scores.dtype is torch.bfloat16
    largest = float(exact.detach().abs().max())
    torch.testing.assert_close(scores.float(), exact, atol=0.03 * largest, rtol=0)
    torch.testing.assert_close(one_at_a_time.float(), exact, atol=0.03 * largest, rtol=0)


def test_initial_values_keep_the_variance_of_what_comes_in():
    model = Recurrent(9, 9, d_model=128, cell="lstm")
    initialise(model, 1)
    for name, parameter in model.named_parameters():
        if "rnn.weight" in name:
            assert float(parameter.detach().std()) == pytest.approx(parameter.shape[1] ** -0.5, rel=0.05), name
        if "bias" in name:
            assert not parameter.any()


# Padding -------------------------------------------------------------------------------------------------------------


@every_kind
@pytest.mark.parametrize(("left", "right"), [(0, 1), (0, 5), (3, 0), (2, 2)])
def test_padding_changes_nothing(options, left, right):
    model, length = model_of(**options), 4
    ids, target = torch.randint(9, (2, length)), torch.randint(9, (2, 3))
    keep = torch.tensor([[False] * left + [True] * length + [False] * right] * 2)
    padded = torch.randint(9, keep.shape)
    padded[keep] = ids.flatten()
    # A row without padding beside it, so that both kinds stand in one batch.
    both = Tokens(
        torch.cat((padded, torch.randint(9, padded.shape))),
        Positions.sequence(padded.shape[1], frame="source"),
        torch.cat((keep, torch.ones_like(keep))),
    )
    with record(model) as tape:
        scores = model(both, torch.cat((target, target)))
    torch.testing.assert_close(scores[:2], model(ids, target), rtol=1e-11, atol=1e-12)
    (site,) = tape.sites
    assert not tape.weights(site)[:2].masked_select(~keep[:, None, None, :]).any(), "padding is looked at"
    assert tape.trust(site).masked_weight == 0.0


@every_kind
def test_a_source_without_tokens_is_finite_and_says_nothing(options):
    model = model_of(**options)
    keep = torch.tensor([[False] * 4, [True] * 4])
    target = torch.randint(9, (2, 3))
    sources = [tokens(torch.randint(9, (2, 4)), keep) for _ in range(2)]
    with record(model) as tape:
        scores = model(sources[0], target)
    scores.sum().backward()
    assert scores.isfinite().all()
    assert all(p.grad.isfinite().all() for p in model.parameters())
    torch.testing.assert_close(scores[0], model(sources[1], target)[0])
    weights = tape.weights(tape.sites[0])
    assert not weights[0].any()
    torch.testing.assert_close(weights[1].sum(-1), torch.ones(1, 3).double())


# One token at a time -------------------------------------------------------------------------------------------------


@every_kind
def test_one_token_at_a_time_is_the_whole_at_once(options):
    model, (source, target) = model_of(**options), inputs()
    at_once = model(source, target)
    state = model.start(source)
    torch.testing.assert_close(written(model, state, target, model.new_cache()), at_once, rtol=1e-11, atol=1e-12)
    cache = model.new_cache()
    first = model.step(state, target.ids[:, :2], target.positions.slice(0, 2), cache)
    torch.testing.assert_close(torch.cat((first, written(model, state, target, cache, 2)), 1), at_once)


@every_kind
def test_rows_may_be_dropped_and_reordered_on_the_way(options):
    model, (source, target) = model_of(**options), inputs()
    at_once, state, cache = model(source, target), model.start(source), model.new_cache()
    model.step(state, target.ids[:, :2], target.positions.slice(0, 2), cache)
    rows = torch.tensor([2, 0])
    cache.select(rows, rows)
    chosen = Tokens(target.ids[rows], target.positions)
    torch.testing.assert_close(written(model, state.select(rows), chosen, cache, 2), at_once[rows, 2:])


@every_kind
def test_several_hypotheses_are_as_many_copies_of_the_source(options):
    model, (source, _) = model_of(**options), inputs()
    target = tokens(torch.randint(9, (6, 5)), frame="target")  # two for each source
    each = torch.tensor([0, 0, 1, 1, 2, 2])
    copies = Tokens(source.ids[each], Positions.from_mask(source.keep[each], frame="source"), source.keep[each])
    expected, state = model(copies, target), model.start(source)
    torch.testing.assert_close(model.step(state, target.ids, target.positions, None), expected)
    torch.testing.assert_close(written(model, state, target, model.new_cache()), expected)


def test_a_hypothesis_may_go_on_as_two():
    model, (source, target) = model_of(), inputs()
    state, cache = model.start(source), model.new_cache()
    model.step(state, target.ids[:, :1], target.positions.slice(0, 1), cache)
    twice = torch.tensor([0, 0, 1, 1, 2, 2])
    cache.select(twice)
    both = torch.cat((target.ids[twice, :1], torch.randint(9, (6, 3))), 1)
    going_on = written(model, state, tokens(both, frame="target"), cache, 1)
    torch.testing.assert_close(going_on, model.step(state, both, Positions.sequence(4, frame="target"), None)[:, 1:])


def test_a_cache_belongs_to_its_source_and_rows():
    model, (source, target) = model_of(), inputs()
    cache, first = model.new_cache(), target.positions.slice(0, 1)
    model.step(model.start(source), target.ids[:, :1], first, cache)
    with pytest.raises(UserError, match="got another one; make a new cache for each source"):
        model.step(model.start(inputs()[0]), target.ids[:, :1], first, cache)
    state, cache = model.start(source), model.new_cache()
    model.step(state, target.ids[:, :1], first, cache)
    with pytest.raises(UserError, match=r"^this cache holds 3 hypotheses, but 2 are to be read; select the same ones"):
        model.step(state.select(torch.tensor([0, 1])), target.ids[:2, 1:2], first, cache)
    with pytest.raises(UserError, match=r"as many hypotheses as the others: 4 rows are no multiple of 3$"):
        model.step(state, torch.zeros(4, 1, dtype=torch.long), first, None)


# What a tape sees ----------------------------------------------------------------------------------------------------


@every_kind
def test_the_map_shown_is_the_map_used(options):
    model, (source, target) = model_of(torch.float32, **options), inputs()
    with record(model) as tape:
        model(source, target)
    (site,) = tape.sites
    assert site == f"decoder.{options.get('n_layers', 1) - 1}.cross"
    assert len(tape.calls[site]) == (5 if options["input_feeding"] else 1)
    weights, trust = tape.weights(site), tape.trust(site)
    assert weights.shape == tape.scores(site).shape == (3, 1, 5, 6)
    assert trust.rebuild_error < 1e-5
    assert trust.row_sum_error < 1e-5
    assert not weights.requires_grad
    if options["input_feeding"]:
        torch.testing.assert_close(tape.weights(site, 3), weights[:, :, 3:4])
        assert trust.rebuild_error == max(tape.trust(site, step).rebuild_error for step in range(5))


def test_the_steps_of_an_answer_are_one_map_too():
    model, (source, target) = model_of(input_feeding=True), inputs()
    with record(model) as full_tape:
        model(source, target)
    state, cache = model.start(source), model.new_cache()
    with record(model) as tape:
        written(model, state, target, cache)
    torch.testing.assert_close(tape.weights(SITE), full_tape.weights(SITE))


def test_calls_that_are_no_steps_of_one_reading_are_not_joined():
    message = rf"^{SITE} ran 10 times while recording; pick one with index=0 ... 9$"
    model, (source, target) = model_of(input_feeding=True), inputs()
    with record(model) as tape:
        model(source, target)
        model(source, Tokens(target.ids, Positions.sequence(5, 5, frame="target")))  # later, but other keys
    with pytest.raises(UserError, match=message):
        tape.weights(SITE)
    state = model.start(source)
    with record(model) as tape:
        model.step(state, target.ids, target.positions, None)
        model.step(state, target.ids, target.positions, None)  # the same keys, and the same places once more
    with pytest.raises(UserError, match=message):
        tape.trust(SITE)


def test_recording_does_not_change_a_bit():
    model, (source, target) = model_of(score="additive"), inputs()
    before = model(source, target)
    with record(model):
        assert torch.equal(model(source, target), before)


# What a walk sees ----------------------------------------------------------------------------------------------------

QUERIES, KEYS = list("<abcd"), list("123400")


def followed(model=None, step=None, vocabulary=None, **options):
    keep = torch.tensor([[True] * 4 + [False] * 2])
    target = tokens(torch.tensor([[1, 5, 2, 8, 3]]), frame="target")
    source = tokens(torch.tensor([[4, 1, 7, 3, 0, 0]]), keep)
    model = model_of(**options) if model is None else model
    site = f"decoder.{options.get('n_layers', 1) - 1}.cross"
    walked = walk(
        model, (source, target), site=site, head=0, queries=QUERIES, keys=KEYS, step=step, vocabulary=vocabulary
    )
    return walked, model(source, target)[0]


@every_score
@pytest.mark.parametrize(("feeding", "encoding"), [(True, "none"), (False, "rotary+shaw+alibi")])
def test_every_walk_arrives_at_the_models_scores(score, feeding, encoding):
    if "rotary" in encoding and score in ("concat", "additive"):
        return
    for step in (None, 3):
        walked, output = followed(step=step, score=score, input_feeding=feeding, cross_encoding=encoding)
        by_name = {s.name: s for s in walked.steps}
        assert walked.error < 1e-12
        torch.testing.assert_close(by_name["scores of the next token"].matrix, output[step or 0].unsqueeze(0))
        assert {s.rows[0] for s in walked.steps if s.matrix.shape[0] == 1} <= {QUERIES[step or 0], "v"}
        assert by_name["weights"].columns == KEYS
        torch.testing.assert_close(by_name["weights"].matrix, definition.weights(walked.call)[0, 0])
        torch.testing.assert_close(by_name["masked"].matrix.softmax(-1), by_name["weights"].matrix)
        assert not by_name["weights"].matrix[0, 4:].any()
        assert walked.encoding == encoding
        assert len(softmax_lens(walked.call, 0)) == 3


@pytest.mark.parametrize("options", [{"cell": "lstm", "n_layers": 2, "tied": True}, {"kernel": "definition"}], ids=str)
def test_other_models_are_walked_as_well(options):
    assert followed(step=2, **options)[0].error < 1e-12


def test_a_walk_shows_every_product_with_its_shape():
    walked, _ = followed(step=1)
    assert [(s.name, tuple(s.matrix.shape)) for s in walked.steps] == [
        ("h_t", (1, 8)),
        ("h_1:m", (6, 8)),
        ("W_a", (8, 8)),
        ("h_t W_a", (1, 8)),
        ("scores", (1, 6)),
        ("masked", (1, 6)),
        ("weights", (1, 6)),
        ("c", (1, 8)),
        ("[h_t; c]", (1, 16)),
        ("W_concat", (16, 8)),
        ("h~", (1, 8)),
        ("W_gen", (8, 9)),
        ("scores of the next token", (1, 9)),
        ("likeliest next tokens", (1, 5)),
    ]
    formulas = {s.name: s.formula for s in walked.steps}
    assert formulas["scores"] == "h_t W_a h_1:m^T"
    assert formulas["h~"] == "tanh([h_t; c] W_concat)"
    assert formulas["h_t"] == "the decoder's state after 'a', step 1"
    assert "h_t W_a: each row times the matrix    (1 x 8)" in walk_text(walked, "")


def test_the_likeliest_tokens_are_named():
    names = list("abcdefghi")
    walked, output = followed(vocabulary=names)
    likeliest = walked.steps[-1]
    best = output[0].softmax(-1).topk(5)
    assert likeliest.columns == [names[i] for i in best.indices.tolist()]
    torch.testing.assert_close(likeliest.matrix[0], best.values)
    numbered, _ = followed()
    assert numbered.steps[-1].columns == [str(i) for i in best.indices.tolist()]


@pytest.mark.parametrize("which", ["definition", "readout"])
def test_a_walk_that_does_not_arrive_is_an_error(monkeypatch, which):
    model = model_of()
    if which == "definition":
        right = definition.output
        monkeypatch.setattr(definition, "output", lambda call: right(call) + 1e-3)
    else:
        monkeypatch.setattr(Recurrent, "readout", property(lambda self: self.generator.weight + 0.0))
        model.register_forward_hook(lambda module, arguments, output: output + 1e-3)
    with pytest.raises(RuntimeError, match=r"the walk through decoder\.0\.cross ends .* away from the model's own"):
        followed(model)


def test_a_step_or_head_that_is_not_there_is_refused():
    with pytest.raises(UserError, match=r"^decoder.0.cross has the steps 0 to 4, got 5$"):
        followed(step=5)
    with pytest.raises(UserError, match=r"^decoder.0.cross has the heads 0 to 0, got 1$"):
        walk(model_of(), inputs(), site=SITE, head=1, queries=QUERIES, keys=KEYS)
    other = EncoderDecoder(9, 9, d_model=16, n_heads=2)
    with pytest.raises(
        UserError, match=r"^decoder.0.cross does all of its queries at once and has no steps; leave step=1"
    ):
        walk(other, inputs(), site=SITE, head=1, queries=QUERIES, keys=KEYS, step=1)


# What it refuses -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("encoding", ["none", "sinusoidal", "learned:positions=7", "sinusoidal+learned"])
def test_encodings_that_add_to_the_input_are_accepted(encoding):
    model, (source, target) = model_of(encoding=encoding), inputs()
    scores = model(source, target)
    other = Tokens(
        source.ids, Positions(source.positions.coordinates + 1, source.positions.order, frame="source"), source.keep
    )
    assert torch.equal(model(other, target), scores) == (encoding == "none")
    end = 512 if encoding.endswith("+learned") else 7 if "learned" in encoding else None
    assert model.max_positions() == {"source": end, "target": end}


@pytest.mark.parametrize("encoding", ["rotary", "t5", "sinusoidal+shaw"])
def test_encodings_within_self_attention_are_refused(encoding):
    message = (
        rf"^{encoding.replace('+', '.')} works inside self-attention, and a recurrent model has none: .* "
        r"use learned, none, scaled_sinusoidal, "
        r"sinusoidal or sinusoidal_mae, which only add to the input, or give it as cross_encoding"
    )
    with pytest.raises(UserError, match=message):
        Recurrent(9, 9, d_model=8, encoding=encoding)


@pytest.mark.parametrize("encoding", ["t5", "shaw", "alibi", "rotary"])
@pytest.mark.parametrize("feeding", [True, False])
def test_a_cross_encoding_knows_where_both_sides_are(encoding, feeding):
    model, (source, target) = model_of(cross_encoding=encoding, input_feeding=feeding), inputs()
    scores = model(source, target)
    torch.testing.assert_close(written(model, model.start(source), target, model.new_cache()), scores)
    later = Tokens(target.ids, Positions.sequence(5, 3, frame="target"))
    assert not torch.allclose(model(source, later), scores)


def test_sizes_that_cannot_be_are_refused():
    message = r"expects an even width; got 7: use d_model=8, or bidirectional=false$"
    with pytest.raises(UserError, match=message):
        Recurrent(9, 9, d_model=7)
    Recurrent(9, 9, d_model=7, bidirectional=False)
    with pytest.raises(UserError, match=r"^a stack has 1 layer or more, got 0$"):
        Recurrent(9, 9, d_model=8, n_layers=0)
    with pytest.raises(UserError, match="rotary rotates queries and keys"):
        Recurrent(9, 9, d_model=8, score="concat", cross_encoding="rotary")
    with pytest.raises(UserError, match=r"fused kernel .* use kernel=explicit or auto"):
        Recurrent(9, 9, d_model=8, score="concat", kernel="fused")


def test_an_unknown_cell_names_the_nearest(unchecked):
    with pytest.raises(UserError, match=r"^unknown cell 'gro'; did you mean 'gru'\? Known: gru, lstm$"):
        Recurrent(9, 9, d_model=8, cell="gro")


@pytest.mark.parametrize("kind", [Recurrent, EncoderDecoder])
def test_packed_documents_are_refused(kind):
    model, ids = kind(9, 9, d_model=16), torch.randint(9, (2, 4))
    packed = Tokens(ids, Positions.sequence(4), None, torch.zeros_like(ids))
    for source, target in ((packed, ids), (ids, packed)):
        with pytest.raises(UserError, match=r"^this model reads each row as one sequence; give each document a row of"):
            model(source, target)
    with pytest.raises(
        UserError, match=r"^this model reads a source: expected Tokens, got None; pass jarilab\.Tokens\.of"
    ):
        model.start(None)


@pytest.mark.parametrize("kind", [Recurrent, EncoderDecoder])
def test_padding_before_a_target_is_refused(kind):
    model, ids = kind(9, 9, d_model=16).eval(), torch.tensor([[5, 6, 7], [0, 5, 6]])
    behind = Tokens(ids.flip(1), Positions.sequence(3, frame="target"), (ids != 0).flip(1))
    assert torch.equal(model(ids, behind), model(ids, ids.flip(1)))
    before = Tokens(ids, behind.positions, ids != 0)
    with pytest.raises(UserError, match="expected padding behind the tokens of the target, got some before"):
        model(ids, before)


def test_it_is_built_by_name():
    model = registry.spec("recurrent:d_model=8,cell=lstm,score=dot,input_feeding=false").build(9, 9)
    assert isinstance(model, Recurrent)
    with pytest.raises(UserError, match=r"score"):
        registry.spec("recurrent:score=product")


# Learning ------------------------------------------------------------------------------------------------------------


def trained(steps, seed=1, **options):
    """A model that learns to write four symbols in reverse; the share of whole answers it gets right at the end."""
    model = Recurrent(8, 8, d_model=16, **options)
    initialise(model, seed)
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
    right = 0.0
    for _ in range(steps):
        ids = torch.randint(2, 8, (48, 4), generator=generator)
        answer = ids.flip(1)
        shifted = torch.cat((torch.ones(48, 1, dtype=torch.long), answer[:, :-1]), 1)
        scores = model(ids, shifted)
        optimizer.zero_grad()
        functional.cross_entropy(scores.flatten(0, 1), answer.flatten()).backward()
        optimizer.step()
        right = float((scores.argmax(-1) == answer).all(1).float().mean())
    return model, right


@pytest.mark.parametrize("options", [{"cell": "gru"}, {"cell": "lstm", "input_feeding": False}], ids=str)
def test_it_learns_to_write_in_reverse(options):
    _, right = trained(120, **options)
    assert right > 0.7


def test_training_is_the_same_bit_for_bit():
    torch.use_deterministic_algorithms(True)
    (one, _), (other, _) = (trained(3, n_layers=2, cell="lstm", score="additive") for _ in range(2))
    for (name, first), second in zip(one.named_parameters(), other.parameters(), strict=True):
        assert torch.equal(first, second), name
