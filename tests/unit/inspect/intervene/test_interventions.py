"""Edits, moved positions, effects, controls, importance and invariance, against their definitions."""

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from jarilab.attention.module import Attention
from jarilab.core.errors import UserError
from jarilab.inspect.intervene.controls import controls
from jarilab.inspect.intervene.edit import EditableSite
from jarilab.inspect.intervene.effects import ablation, effect, erasure, importance
from jarilab.inspect.intervene.interventions import (
    Cut,
    HeadOff,
    Link,
    TokenOff,
    Uniform,
    operate,
    operate_on_copies,
)
from jarilab.inspect.intervene.invariance import permutation_error, shift_error
from jarilab.inspect.intervene.moved_positions import MovedModel, PositionEdit, move_tokens
from jarilab.inspect.record.capture import Tape, record
from jarilab.inspect.record.model_io import repeat_batch
from jarilab.models.decoder import LanguageModel
from jarilab.models.decoding import beam, greedy
from jarilab.models.encoder_decoder import EncoderDecoder
from jarilab.models.recurrent import Recurrent
from jarilab.nn.init import initialise
from jarilab.positions.coordinates import Positions, Tokens
from jarilab.positions.masks import Mask

ENCODINGS = ["none", "sinusoidal", "learned", "rotary", "shaw", "t5", "alibi", "rotary+shaw+t5"]
every_encoding = pytest.mark.parametrize("encoding", ENCODINGS)
WRITTEN = [4, 5, 2]
VOCABULARY = 15
RECURRENT = [{"input_feeding": True}, {"input_feeding": False}]
every_recurrent = pytest.mark.parametrize("options", RECURRENT, ids=["fed", "at once"])


def with_large_parameters(model, dtype=torch.float64):
    initialise(model, 1)
    # Encodings and biases start near 0. Larger values make their effect visible.
    for name, parameter in model.named_parameters():
        if "encoding" in name or "bias" in name:
            nn.init.normal_(parameter, generator=torch.Generator().manual_seed(len(name)))
    return model.to(dtype).eval()


def model_of(encoding="rotary", dtype=torch.float64, **options):
    return with_large_parameters(
        EncoderDecoder(VOCABULARY, VOCABULARY, d_model=16, n_heads=2, encoding=encoding, **options), dtype
    )


def language_model(encoding="rotary", **options):
    return with_large_parameters(LanguageModel(VOCABULARY, d_model=16, n_heads=2, encoding=encoding, **options))


def recurrent(**options):
    return with_large_parameters(Recurrent(VOCABULARY, VOCABULARY, d_model=8, **options))


def inputs(keep=None):
    source = Tokens(torch.tensor([[5, 4, 13, 5, 4, 4]]), Positions.sequence(6, frame="source"), keep)
    return source, Tokens(torch.tensor([[1, 4, 5]]), Positions.sequence(3, frame="target"))


def text(length=6):
    return (Tokens.of(torch.tensor([[1, 4, 5, 4, 13, 5, 2, 7]])[:, :length]),)


def edited(model, edits, batch=None):
    with torch.no_grad(), operate(model, edits):
        return model(*(batch or inputs()))


def outputs(model, edits, batch=None):
    """The tape of a forward with edits, recorded after them."""
    with torch.no_grad(), operate(model, edits), record(model) as tape:
        model(*(batch or inputs()))
    return tape


# Edits ---------------------------------------------------------------------------------------------------------------


def test_model_is_unchanged_after_an_exception():
    model = model_of()
    before, weights = model(*inputs()), {name: t.clone() for name, t in model.state_dict().items()}
    with pytest.raises(UserError, match="reads a source"), operate(model, [HeadOff("encoder.0", 1)]):  # noqa: PT012
        assert not torch.equal(model(*inputs()), before), "the edit did nothing"
        model.start(None)
    assert torch.equal(model(*inputs()), before)
    assert all(torch.equal(t, weights[name]) for name, t in model.state_dict().items())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


@pytest.mark.parametrize("kernel", ["explicit", "fused", "definition"])
@pytest.mark.parametrize("site", ["encoder.1", "decoder.0.self", "decoder.1.cross"])
def test_head_off_equals_zero_columns_of_the_projection(site, kernel):
    model = model_of("rotary", kernel=kernel)
    result = edited(model, [HeadOff(site, 1)])
    stack, layer, *kind = site.split(".")
    attention = getattr(getattr(model, stack).layers[int(layer)], "_".join([*kind, "attention"]))
    with torch.no_grad():
        attention.out.weight[:, 8:] = 0
    torch.testing.assert_close(result, model(*inputs()))


@every_recurrent
def test_head_off_zeroes_the_context_of_a_recurrent_model(options):
    model = recurrent(**options)
    result = edited(model, [HeadOff("decoder.0.cross", 0)])
    with torch.no_grad():
        model.decoder.attention.combine.weight[:, 8:] = 0
    torch.testing.assert_close(result, model(*inputs()))


@every_encoding
@pytest.mark.parametrize("head", [None, 1])
def test_erased_link_equals_a_mask(encoding, head):
    attention = with_large_parameters(
        Attention(16, 2, encoding=encoding if encoding not in ("sinusoidal", "learned") else "none")
    )
    x = torch.randn(1, 5, 16, dtype=torch.float64)
    pairs = torch.ones(5, 5, dtype=torch.bool)
    pairs[3, 1] = False
    with torch.no_grad(), record(attention) as tape, operate(attention, [Link("attention", head, 3, 1, "erase")]):
        attention(x)
    with torch.no_grad(), record(attention) as hidden:
        attention(x, mask=Mask(pairs=pairs))
    with torch.no_grad(), record(attention) as whole:
        attention(x)
    result, expected = (t.recorded("attention").output for t in (tape, hidden))
    other = whole.recorded("attention").output
    # The hook of the tape runs before the edit. This hook runs after it.
    assert torch.equal(result, other)
    result = outputs(attention, [Link("attention", head, 3, 1, "erase")], (x,)).recorded("attention").output
    torch.testing.assert_close(result[:, 1], expected[:, 1])
    torch.testing.assert_close(result[:, 0], (expected if head is None else other)[:, 0])
    assert not torch.allclose(result[:, 1, 3], other[:, 1, 3]), "the link meant nothing"
    rest = [0, 1, 2, 4]
    assert torch.equal(result[:, :, rest], other[:, :, rest]), "other queries have changed"


def test_erased_link_with_all_weight_leaves_the_others_in_proportion():
    attention = with_large_parameters(Attention(16, 2))
    x = torch.randn(1, 3, 16, dtype=torch.float64)
    with torch.no_grad():
        attention.query.weight *= 1e4  # a softmax of one 1 and zeros
    whole = outputs(attention, [], (x,)).weights("attention")[0, 0, 2]
    assert whole.max() == 1
    edits = [Link("attention", 0, 2, int(whole.argmax()), "erase")]
    after = outputs(attention, edits, (x,)).weights("attention")[0, 0, 2]
    assert after[whole.argmax()] == 0
    assert after.sum() == pytest.approx(1)


def test_erasing_the_only_link_zeroes_the_output():
    edits = [Link("decoder.0.self", None, 0, 0, "erase")]
    tape = outputs(model_of(), edits)
    recorded = tape.recorded("decoder.0.self")
    assert not recorded.output[:, :, 0].any()
    assert recorded.output[:, :, 1].any()
    assert tape.weights("decoder.0.self")[0, 0].sum(-1).tolist() == pytest.approx([0, 1, 1])


@every_encoding
def test_forced_link_returns_the_value(encoding):
    tape = outputs(model_of(encoding), [Link("decoder.1.self", 0, 2, 1)])
    recorded = tape.recorded("decoder.1.self")
    call, one = recorded.call, torch.zeros(1, 2, 3, 3, dtype=torch.float64)
    one[..., 2, 1] = 1
    added = call.geometry.encoding.values(one, call.geometry.relation)
    expected = call.v[0, 0, 1] + (0 if added is None else added[0, 0, 2])
    torch.testing.assert_close(recorded.output[0, 0, 2], expected)
    assert ("shaw" in encoding) == (added is not None)


def token_off_everywhere(model, side, key, batch=None):
    """`TokenOff.everywhere` of a recorded forward."""
    return TokenOff.everywhere(outputs(model, [], batch), side, key)


@every_encoding
def test_token_off_equals_padding(encoding):
    model = model_of(encoding)
    keep = torch.tensor([[True, True, False, True, True, True]])
    off = token_off_everywhere(model, "source", 2)
    assert off.sites == ("encoder.0", "encoder.1", "decoder.0.cross", "decoder.1.cross")
    with torch.no_grad():
        expected = model(*inputs(keep))
    torch.testing.assert_close(edited(model, [off]), expected)
    assert not torch.allclose(edited(model, []), expected), "the token meant nothing"


@every_recurrent
def test_token_off_is_hidden_from_all_steps_of_a_recurrent_decoder(options):
    model = recurrent(**options)
    off = token_off_everywhere(model, "source", 2)
    assert off.sites == ("decoder.0.cross",)
    links = [Link("decoder.0.cross", None, step, 2, "erase") for step in range(3)]
    torch.testing.assert_close(edited(model, [off]), edited(model, links), rtol=0, atol=0)


def test_token_off_changes_only_queries_that_attended_to_it():
    model, batch = language_model(window=3), text(8)
    off = TokenOff(("decoder.0.self",), 1, 2)
    whole, result = (outputs(model, edits, batch).recorded("decoder.0.self").output for edits in ([], [off]))
    differs_HQ = (result != whole).any(-1)[0]
    assert not differs_HQ[0].any(), "another head has changed"
    assert differs_HQ[1].nonzero().flatten().tolist() == [2, 3, 4]


def test_hiding_the_only_key_zeroes_the_output():
    result = outputs(language_model(), [TokenOff(("decoder.0.self",), None, 0)], text())
    output = result.recorded("decoder.0.self").output
    assert not output[:, :, 0].any()
    assert output[:, :, 1].any()


def test_uniform_weights_return_the_mean_of_allowed_values():
    keep = torch.tensor([[True] * 4 + [False] * 2])
    tape = outputs(model_of(), [Uniform("encoder.0", 1), Uniform("decoder.0.self")], inputs(keep))
    encoder, decoder = (tape.recorded(site) for site in ("encoder.0", "decoder.0.self"))
    torch.testing.assert_close(encoder.output[0, 1], encoder.call.v[0, 1, :4].mean(0).expand(6, -1))
    assert not torch.allclose(encoder.output[0, 0], encoder.call.v[0, 0, :4].mean(0).expand(6, -1))
    torch.testing.assert_close(decoder.output[0, :, 1], decoder.call.v[0, :, :2].mean(1))


def test_cut_hides_the_largest_weights_of_each_query():
    before = outputs(model_of(), []).weights("decoder.0.cross")
    after = outputs(model_of(), [Cut("decoder.0.cross", 1, 2)]).weights("decoder.0.cross")
    assert torch.equal(after[:, 0], before[:, 0])
    for query in range(3):
        gone = before[0, 1, query].topk(2).indices
        assert sorted(gone.tolist()) == (after[0, 1, query] == 0).nonzero().squeeze(1).tolist()
    drawn = [
        outputs(model_of(), [Cut("decoder.0.cross", 1, 2, "random", seed)]).weights("decoder.0.cross")
        for seed in (0, 0, 1)
    ]
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])
    assert bool(((drawn[0][0, 1] == 0).sum(-1) == 2).all())


@pytest.mark.parametrize("how", ["largest", "random"])
def test_cut_hides_allowed_keys_only(how):
    for seed in range(5):
        after = outputs(model_of(), [Cut("decoder.0.self", None, 1, how, seed)]).weights("decoder.0.self")
        assert (after > 0).sum(-1).tolist() == [[[0, 1, 2]] * 2]


def test_edited_weights_rebuild_the_edited_output():
    edits = [Uniform("encoder.0", 0), Link("encoder.0", None, 2, 4, "erase"), Link("encoder.0", 1, 0, 3)]
    tape = outputs(model_of(), edits)
    recorded, weights = tape.recorded("encoder.0"), tape.weights("encoder.0")
    assert torch.equal(weights[0, 1, 1], outputs(model_of(), []).weights("encoder.0")[0, 1, 1])
    torch.testing.assert_close(weights @ recorded.call.v, recorded.output)
    torch.testing.assert_close(weights[0, 0, 2], torch.tensor([0.2, 0.2, 0.2, 0.2, 0, 0.2], dtype=torch.float64))


def test_tape_recorded_after_edits_is_verified_with_the_edited_weights():
    model = model_of()
    first, second = [HeadOff("encoder.0", 0), Link("encoder.0", 1, 2, 4, "erase")], [Uniform("encoder.0", 0)]
    tape = outputs(model, first)
    assert all(tape.trust(site).holds for site in tape.sites)
    assert not tape.weights("encoder.0")[0, 0].any()
    assert tape.weights("encoder.0")[0, 1, 2, 4] == 0
    with torch.no_grad(), operate(model, first), operate(model, second), record(model) as both:
        model(*inputs())
    assert both.trust("encoder.0").holds
    assert both.weights("encoder.0")[0, 0].unique().tolist() == pytest.approx([1 / 6])
    assert torch.equal(both.weights("encoder.0")[0, 1], tape.weights("encoder.0")[0, 1])
    with torch.no_grad(), record(model) as outside, operate(model, first):
        model(*inputs())
    assert outside.trust("encoder.0").holds
    assert outside.weights("encoder.0")[0, 0].any(), "recording began before the edit"
    wrong = replace(tape.recorded("encoder.0"), edit=None)
    assert not Tape({"encoder.0": [wrong]}).trust("encoder.0").holds


def test_edit_in_half_precision_keeps_the_dtype():
    model = model_of(dtype=torch.bfloat16)
    assert edited(model, [Uniform("encoder.0"), Link("decoder.1.self", 0, 2, 0)]).dtype is torch.bfloat16


LINKS = [Link("decoder.0.cross", None, 1, 2), Link("decoder.0.cross", 0, 2, 3, "erase")]


TOKENS = [TokenOff(("decoder.0.cross",), None, 3), TokenOff(("decoder.1.self",), 1, 1)]


@pytest.mark.parametrize("cached", [True, False])
@pytest.mark.parametrize("kind", ["transformer", "fed", "at once"])
def test_edit_applies_to_every_step_of_generation(kind, cached):
    model = model_of() if kind == "transformer" else recurrent(input_feeding=kind == "fed")
    edits = [*LINKS, Link("decoder.1.self", 1, 3, 0), *TOKENS] if kind == "transformer" else [*LINKS[:1], TOKENS[0]]
    source = inputs()[0]
    with operate(model, edits, free=True):
        options = {"first": 1, "end": 0, "longest": 6}
        written = greedy(model, source, padding=0, cached=cached, **options)
        ((best,),) = beam(model, source, beam_size=3, **options)
    for ids, logs in ((written.ids[0], written.log_probabilities[0]), (best.ids, best.log_probabilities)):
        target = Tokens.of(torch.cat((torch.tensor([1]), ids[:-1])).unsqueeze(0), "target")
        expected = edited(model, edits, (source, target))[0].log_softmax(-1).gather(1, ids.unsqueeze(1))[:, 0]
        torch.testing.assert_close(logs, expected.float())
        without = model(source, target)[0].log_softmax(-1).gather(1, ids.unsqueeze(1))[:, 0]
        assert not torch.allclose(without, expected), "the edits meant nothing"


def test_edit_applies_with_a_sliding_window():
    model, (tokens,) = language_model(window=3), text(8)
    edits, cache = [Link("decoder.0.self", 0, 5, 4, "erase")], model.new_cache()
    with torch.no_grad(), operate(model, edits):
        steps = [
            model.step(model.start(None), tokens.ids[:, i : i + 1], Positions.sequence(1, i), cache) for i in range(8)
        ]
    torch.testing.assert_close(torch.cat(steps, 1), edited(model, edits, (tokens,)))
    with pytest.raises(UserError, match=r"from query 5 to key 2 at decoder.0.self: the mask"):
        edited(model, [Link("decoder.0.self", 0, 5, 2)], (tokens,))


def test_free_answer_may_end_before_the_query():
    model, edits = recurrent(), [Link("decoder.0.cross", 0, 40, 2)]
    with operate(model, edits, free=True):
        greedy(model, inputs()[0], first=1, end=0, padding=0, longest=3)
    with pytest.raises(UserError, match=r"^decoder.0.cross has the queries 0 to 2, got 40$"):
        edited(model, edits)


KEEP = torch.tensor([[True] * 4 + [False] * 2])


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (HeadOff("encoder.2", 0), r"^unknown site 'encoder.2'; did you mean 'encoder.\d'\? Known: decoder.0.cross, "),
        (HeadOff("encoder.0", 2), r"^encoder.0 has the heads 0 to 1, got 2$"),
        (Uniform("encoder.0", -1), r"^encoder.0 has the heads 0 to 1, got -1$"),
        (Link("encoder.0", 5, 0, 0), r"^encoder.0 has the heads 0 to 1, got 5$"),
        (Link("encoder.0", 0, 6, 0), r"^encoder.0 has the queries 0 to 5, got 6$"),
        (Link("encoder.0", 0, -1, 0), r"^encoder.0 has the queries 0 to 5, got -1$"),
        (Link("encoder.0", 0, 0, 6), r"^encoder.0 has the keys 0 to 5, got 6$"),
        (Link("decoder.0.cross", 0, 1, -1), r"^decoder.0.cross has the keys 0 to 5, got -1$"),
        (Link("decoder.0.self", 0, 1, 2), r"^cannot force the link from query 1 to key 2 at decoder.0.self: the mask"),
        (Link("encoder.0", 0, 1, 5, "erase"), r"^cannot erase .* query 1 to key 5 at encoder.0: the mask, or another"),
        (Link("decoder.0.cross", None, 1, 4), r"^cannot force .* choose a key that the query may attend to$"),
        (TokenOff(("encoder.2",), None, 0), r"^unknown site 'encoder.2'; did you mean 'encoder.\d'"),
        (TokenOff(("encoder.0",), 2, 0), r"^encoder.0 has the heads 0 to 1, got 2$"),
        (TokenOff(("encoder.0", "decoder.0.self"), None, 3), r"^decoder.0.self has the keys 0 to 2, got 3$"),
        (TokenOff(("decoder.0.self",), None, -1), r"^decoder.0.self has the keys 0 to 2, got -1$"),
    ],
    ids=str,
)
def test_impossible_edits_raise(edit, message):
    model = model_of()
    with pytest.raises(UserError, match=message):
        edited(model, [edit], inputs(KEEP))
    assert not any(module._forward_hooks for module in model.modules())


def test_invalid_edits_raise(unchecked):
    with pytest.raises(UserError, match="unknown edit of a link 'eras'; did you mean 'erase'"):
        Link("encoder.0", 0, 0, 0, "eras")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="unknown choice of keys 'all'"):
        Cut("encoder.0", 0, 1, "all")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="expected 1 or more keys to hide from each query, got 0"):
        Cut("encoder.0", 0, 0)
    for sites in ((), "encoder.0", ["encoder.0"]):
        with pytest.raises(UserError, match="expected the names of sites as a tuple, such as"):
            TokenOff(sites, None, 3)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="unknown way to move places 'shuffel'; did you mean 'shuffle'"):
        PositionEdit("shuffel")  # type: ignore[arg-type]
    for amount in (float("nan"), float("inf"), 1e300):
        with pytest.raises(UserError, match="places are moved by 1099511627776 at most, got"):
            PositionEdit("shift", amount)


def test_unknown_tokens_raise():
    tape = outputs(model_of(), [])
    with pytest.raises(UserError, match="unknown side with keys 'sauce'; did you mean 'source'"):
        TokenOff.everywhere(tape, "sauce", 0)
    for key in (-1, 6):
        with pytest.raises(UserError, match=f"the source has the tokens 0 to 5, got {key}"):
            TokenOff.everywhere(tape, "source", key)
    tape.calls["decoder.0.cross"] = outputs(model_of(), [], (text(5)[0], inputs()[1])).calls["decoder.0.cross"]
    with pytest.raises(UserError, match=r"the attentions over the source have 5 to 6 keys.*name the sites"):
        TokenOff.everywhere(tape, "source", 0)


def test_model_in_training_or_that_did_not_run_raises():
    model = model_of()
    message = r"^nothing was edited at encoder.0: it did not run inside the block"
    with pytest.raises(UserError, match=message), operate(model, [HeadOff("encoder.0", 0)]):
        pass
    with pytest.raises(UserError, match=r"call model.eval\(\)"), operate(model.train(), []):
        pass


# Positions ----------------------------------------------------------------------------------------------------------


def places_of(tokens):
    return tokens.positions.coordinates[..., 0].tolist()


def test_only_positions_change():
    (tokens,) = text()
    at = {how: move_tokens(tokens, PositionEdit(how, 3, seed=1)) for how in ("off", "shift", "stretch", "shuffle")}
    assert places_of(at["off"]) == [0] * 6
    assert places_of(at["shift"]) == [3, 4, 5, 6, 7, 8]
    assert places_of(at["stretch"]) == [0, 3, 6, 9, 12, 15]
    assert sorted(places_of(at["shuffle"])) == [0, 1, 2, 3, 4, 5] != places_of(at["shuffle"])
    for after in at.values():
        assert after.ids is tokens.ids
        assert after.positions.order is tokens.positions.order
        assert after.positions.coordinates.dtype is torch.int64
    half = move_tokens(tokens, PositionEdit("stretch", 0.5)).positions.coordinates
    assert half.dtype is torch.float64
    assert half[:, 0].tolist() == [0, 0.5, 1, 1.5, 2, 2.5]
    assert move_tokens(tokens, PositionEdit("shift", 2.0)).positions.coordinates.dtype is torch.int64
    assert places_of(tokens) == [0, 1, 2, 3, 4, 5]


def test_shuffle_follows_the_seed_and_keeps_padding():
    (tokens,) = text()
    assert places_of(move_tokens(tokens, PositionEdit("shuffle", seed=1))) == places_of(
        move_tokens(tokens, PositionEdit("shuffle", seed=1))
    )
    assert len({tuple(places_of(move_tokens(tokens, PositionEdit("shuffle", seed=seed)))) for seed in range(9)}) > 5
    keep = torch.tensor([[True] * 6, [False, False, True, True, False, False]])
    padded = Tokens(tokens.ids.expand(2, 6), Positions.from_mask(keep), keep)
    for positions in (padded.positions, Positions.sequence(6)):
        first, second = places_of(move_tokens(Tokens(padded.ids, positions, keep), PositionEdit("shuffle")))
        assert sorted(first) == [0, 1, 2, 3, 4, 5] != first
        own = places_of(Tokens(padded.ids, positions, keep))
        own = own[1] if isinstance(own[0], list) else own
        assert second == [own[i] for i in (0, 1, 3, 2, 4, 5)]


def test_positions_of_a_graph_cannot_be_shifted():
    nodes = Tokens(torch.tensor([[1, 2]]), Positions.graph(torch.zeros(2, 2, dtype=torch.long)))
    with pytest.raises(UserError, match="the nodes of a graph have names, not places: cannot shift them; use shuffle"):
        move_tokens(nodes, PositionEdit("shift"))
    assert places_of(move_tokens(nodes, PositionEdit("shuffle"))) == [1, 0]


@every_encoding
def test_equal_tokens_have_equal_rows_with_positions_off(encoding):
    source, target = inputs()
    model = model_of(encoding)
    with torch.no_grad(), record(model) as tape:
        model(move_tokens(source, PositionEdit("off")), target)
    with torch.no_grad(), record(model) as placed:
        model(source, target)
    for site in ("encoder.0", "encoder.1"):
        rows, own = tape.weights(site)[0], placed.weights(site)[0]
        torch.testing.assert_close(rows[:, 0], rows[:, 3])
        torch.testing.assert_close(rows[:, 1], rows[:, 5])
        if encoding != "none":
            assert not torch.allclose(own[:, 0], own[:, 3])


def test_positions_beyond_an_encoding_raise():
    source, target = inputs()
    with pytest.raises(UserError, match=r"learned knows the positions 0 to 7, got 16; use learned:positions=17"):
        effect(
            model_of("learned:positions=8"),
            inputs(),
            WRITTEN,
            [],
            (move_tokens(source, PositionEdit("shift", 11)), target),
        )
    with pytest.raises(UserError, match=r"t5 looks up positions.*got torch\.float64; use integer"):
        effect(model_of("t5"), inputs(), WRITTEN, [], (move_tokens(source, PositionEdit("stretch", 0.5)), target))


@pytest.mark.parametrize("places", [PositionEdit(how, 3) for how in ("off", "shift", "stretch", "shuffle")], ids=str)
@pytest.mark.parametrize("cached", [True, False])
@pytest.mark.parametrize("kind", ["transformer", "recurrent"])
def test_moved_positions_apply_to_every_step_of_generation(kind, cached, places):
    model = model_of("sinusoidal") if kind == "transformer" else recurrent(encoding="sinusoidal")
    source, length = inputs()[0], 6
    written = greedy(
        MovedModel(model, places, length), source, first=1, end=0, padding=0, longest=length, cached=cached
    )
    assert written.ids.shape == (1, length), "the answer is to be as long as it can"
    target = Tokens.of(torch.cat((torch.tensor([[1]]), written.ids[:, :-1]), 1), "target")
    logs = model(source, move_tokens(target, places))[0].log_softmax(-1).gather(1, written.ids.T)[:, 0]
    torch.testing.assert_close(written.log_probabilities[0], logs.float())


def test_answer_beyond_the_shuffled_positions_continues_in_order():
    seen = []

    class Told:
        def step(self, state, ids, positions, cache):
            seen.extend(positions.coordinates[:, 0].tolist())
            return torch.zeros(1, 1, 2)

    model = MovedModel(Told(), PositionEdit("shuffle"), 3)
    for i in range(5):
        model.step(None, torch.zeros(1, 1, dtype=torch.long), Positions.sequence(1, i), None)
    assert sorted(seen[:3]) == [0, 1, 2] != seen[:3]
    assert seen[3:] == [3, 4]


# Effects -------------------------------------------------------------------------------------------------------------


def divergence_by_hand(first, second):
    total = 0.0
    for p, q in zip(first.exp().tolist(), second.exp().tolist(), strict=True):
        for a, b in zip(p, q, strict=True):
            total += 0.5 * (a * math.log(2 * a / (a + b)) + b * math.log(2 * b / (a + b)))
    return total / len(first)


@pytest.mark.parametrize("kind", ["transformer", "recurrent", "language model"])
def test_effect_compares_probabilities(kind):
    if kind == "language model":
        model, batch, site = language_model(), text(), "decoder.0.self"
        labels = [4, 5, 4, 13, 5]
    else:
        model, batch, site = model_of() if kind == "transformer" else recurrent(), inputs(), "decoder.0.cross"
        labels = WRITTEN
    edits = [HeadOff(site, 0)]
    with torch.no_grad():
        before, after = model(*batch)[0].log_softmax(-1), edited(model, edits, batch)[0].log_softmax(-1)
    result = effect(model, batch, WRITTEN, edits)
    rows = range(len(labels))
    torch.testing.assert_close(result.before, before[rows, labels].exp())
    torch.testing.assert_close(result.after, after[rows, labels].exp())
    assert result.log_before == pytest.approx(float(before[rows, labels].sum()))
    assert result.log_after == pytest.approx(float(after[rows, labels].sum()))
    assert result.log_after != pytest.approx(result.log_before)
    assert result.divergence == pytest.approx(divergence_by_hand(before, after))


def test_effect_is_zero_without_edits_and_largest_for_opposites():
    nothing = effect(model_of(), inputs(), WRITTEN, [])
    assert nothing.divergence == 0
    assert nothing.log_before == nothing.log_after

    class Certain(nn.Module):
        """Sure of the token that stands at place 0, and of nothing else."""

        def forward(self, tokens):
            return torch.where(torch.arange(3) == tokens.positions.coordinates, 0.0, float("-inf")).unsqueeze(0)

    tokens = Tokens.of(torch.tensor([[0, 0]]))
    result = effect(Certain().eval(), (tokens,), [0, 0], [], (move_tokens(tokens, PositionEdit("shift")),))
    assert result.divergence == pytest.approx(math.log(2))
    assert result.log_before == 0 or result.log_before == -math.inf


def test_padding_does_not_count_in_an_effect():
    keep = torch.tensor([[True] * 4 + [False] * 2])
    (whole,) = text(4)
    padded = Tokens(text(6)[0].ids, Positions.sequence(6), keep)
    model, edits = language_model(), [HeadOff("decoder.0.self", 0)]
    short, long = effect(model, (whole,), [], edits), effect(model, (padded,), [], edits)
    torch.testing.assert_close(long.after, short.after)
    assert long.divergence == pytest.approx(short.divergence)


def test_answer_of_another_length_raises():
    with pytest.raises(UserError, match=r"expected \(1, 3\) numbers, got \(1, 2\); take inputs and written from the"):
        effect(model_of(), inputs(), [4, 5], [])


# Controls ------------------------------------------------------------------------------------------------------------


def test_controls_follow_the_seed_and_exclude_the_edit():
    model, edits = model_of("sinusoidal"), [Link("encoder.0", 1, 2, 4, "erase")]
    result = [controls(model, inputs(), edits, 6, seed) for seed in (3, 3, 4)]
    assert result[0] == result[1]
    assert result[0].each != result[2].each
    places = [place for (place,), _ in result[0].each]
    assert len(set(places)) == 6
    assert edits[0] not in places
    assert {place.site for place in places} == {"encoder.0", "encoder.1"}
    assert {place.how for place in places} == {"erase"}
    (drawn,), divergence = result[0].each[5]
    assert divergence == effect(model, inputs(), WRITTEN, [drawn]).divergence
    assert result[0].divergence == effect(model, inputs(), WRITTEN, edits).divergence
    smaller = sum(divergence < result[0].divergence for _, divergence in result[0].each)
    assert result[0].rank == f"larger than {smaller} of 6"


def test_controls_of_a_head_are_all_other_heads():
    result = controls(model_of(), inputs(), [HeadOff("decoder.1.cross", 0)], 20)
    assert result.asked == 20
    assert {str(place) for (place,), _ in result.each} == {
        "decoder.0.cross head 0",
        "decoder.0.cross head 1",
        "decoder.1.cross head 1",
    }
    pair = controls(model_of(), inputs(), [HeadOff("encoder.1", 0), HeadOff("encoder.0", 1)], 20)
    (others,) = [set(map(str, places)) for places, _ in pair.each]
    assert others == {"encoder.0 head 0", "encoder.1 head 1"}


def test_controls_of_a_link_are_all_allowed_links():
    keep = torch.tensor([[True, True, True, False, False, False]])
    model = model_of(n_encoder_layers=1, n_decoder_layers=1)
    result = controls(model, inputs(keep), [Link("encoder.0", None, 2, 1, "erase")], 500)
    assert {(place.query, place.key) for (place,), _ in result.each} == {
        (query, key) for query in range(6) for key in range(3)
    } - {(2, 1)}
    # Query 0 of a causal site has one key only.
    result = controls(model, inputs(), [Link("decoder.0.self", 0, 2, 1)], 500)
    expected = {(head, query, key) for head in (0, 1) for query in (1, 2) for key in range(query + 1)} - {(0, 2, 1)}
    assert {(place.head, place.query, place.key) for (place,), _ in result.each} == expected
    result = controls(model, inputs(), [Link("decoder.0.self", 0, 0, 0)], 500)
    assert len(result.each) == len(expected) + 1


def test_edit_of_all_heads_excludes_each_head():
    result = controls(model_of(), inputs(), [Uniform("encoder.0"), Uniform("encoder.0", 0)], 20)
    whole = Uniform("encoder.1")
    assert {places for places, _ in result.each} == {(whole, Uniform("encoder.1", head)) for head in (0, 1)}
    model, whole = model_of(n_encoder_layers=1), Link("encoder.0", None, 2, 1, "erase")
    result = controls(model, inputs(), [whole, Link("encoder.0", 0, 3, 3, "erase")], 12)
    for places, _ in result.each:
        of_all, of_one = places
        assert (of_all.head, (of_all.query, of_all.key) in ((2, 1), (3, 3))) == (None, False)
        assert (of_one.query, of_one.key) != (2, 1)
        assert of_one != Link("encoder.0", 0, 3, 3, "erase")


@every_recurrent
def test_recurrent_model_has_controls_for_links_only(options):
    result = controls(recurrent(**options), inputs(KEEP), [Link("decoder.0.cross", 0, 1, 2)], 500)
    expected = {(query, key) for query in range(3) for key in range(4)} - {(1, 2)}
    assert {(place.query, place.key) for (place,), _ in result.each} == expected
    alone = controls(recurrent(**options), inputs(), [HeadOff("decoder.0.cross", 0)])
    assert alone.each == []
    assert alone.rank == "there is no other place of this kind to compare with"
    assert alone.divergence > 0


@pytest.mark.parametrize(
    "edits",
    [
        [HeadOff("encoder.0", 1), Link("encoder.0", 0, 2, 1)],
        [Link("encoder.0", 0, 2, 1, "erase"), Link("encoder.0", 1, 2, 1)],
    ],
)
def test_controls_do_not_hide_each_others_links(edits):
    result = controls(model_of(n_encoder_layers=1), inputs(), edits, 60)
    assert len(result.each) == (36 if isinstance(edits[0], HeadOff) else 60)
    for first, link in [places for places, _ in result.each]:
        assert isinstance(first, Link) or first.head != link.head


def test_controls_of_a_token_are_all_visible_tokens():
    model = model_of()
    off = token_off_everywhere(model, "source", 2)
    result = controls(model, inputs(KEEP), [off], 20)
    assert {places for places, _ in result.each} == {(TokenOff(off.sites, None, key),) for key in (0, 1, 3)}
    assert result.divergence == effect(model, inputs(KEEP), WRITTEN, [off]).divergence > 0
    of_one = TokenOff(("encoder.0",), 1, 0)
    several = controls(model, inputs(), [off, of_one, TokenOff(off.sites, None, 3)], 20)
    assert len(several.each) == 9
    for places, _ in several.each:
        assert [place.sites for place in places] == [off.sites, off.sites, of_one.sites]
        assert {place.key for place in places} <= {1, 4, 5}
    # A link to a hidden token is not drawn.
    both = controls(model, inputs(), [TokenOff(("decoder.0.cross",), None, 2), Link("decoder.0.cross", 0, 1, 1)], 60)
    assert len(both.each) == 60
    assert all(link.site != off.sites[0] or link.key != off.key for (off, link), _ in both.each)


def test_token_visible_at_one_site_is_a_control():
    opening = [
        EditableSite("cross", 2, torch.tensor(links), torch.tensor([1] * len(links))) for links in ([[0, 0]], [[1, 3]])
    ]
    off = TokenOff(("decoder.0.cross", "decoder.1.cross"), None, 0)
    assert off.candidates(dict(zip(off.sites, opening, strict=True))).tolist() == [[-1, 0], [-1, 3]]
    assert str(off) == "decoder.0.cross all heads and 1 more: no key 0"
    assert str(TokenOff(("encoder.0",), 1, 2)) == "encoder.0 head 1: no key 2"


def test_edit_of_another_kind_excludes_no_control():
    result = controls(model_of(), inputs(), [HeadOff("encoder.0", 0), Uniform("encoder.1", 1)], 60)
    assert HeadOff("encoder.1", 1) in {first for (first, _), _ in result.each}
    assert len(result.each) == 3 * 3


def test_controls_without_edits_raise():
    with pytest.raises(UserError, match="expected an edit or more and 1 control or more, got 0 edits and 20 controls"):
        controls(model_of(), inputs(), [])


# What matters --------------------------------------------------------------------------------------------------------


def loss(model, batch, labels):
    log = model(*batch)[0].log_softmax(-1)
    return float(-log[range(len(labels)), labels].mean())


@pytest.mark.parametrize("kind", ["transformer", "language model"])
def test_importance_equals_the_gradient_of_a_gate(kind):
    if kind == "transformer":
        model, batch, labels, site = model_of("t5"), inputs(), WRITTEN, "decoder.0.cross"
        out = model.decoder.layers[0].cross_attention.out
    else:
        model, batch, labels, site = language_model("t5"), text(), [4, 5, 4, 13, 5], "decoder.1.self"
        out = model.decoder.layers[1]["self"].attention.out
    result = importance(model, batch, WRITTEN)
    slopes = []
    with torch.no_grad():
        whole = out.weight.clone()
        for head in range(2):
            ends = []
            for gate in (1 - 1e-5, 1 + 1e-5):
                out.weight.copy_(whole)
                out.weight[:, 8 * head : 8 * head + 8] *= gate
                ends.append(loss(model, batch, labels))
            slopes.append(abs(ends[1] - ends[0]) / 2e-5)
        out.weight.copy_(whole)
    slopes = torch.tensor(slopes, dtype=torch.float64)
    torch.testing.assert_close(result[site], slopes / slopes.norm(), rtol=1e-6, atol=1e-8)
    assert all(float(share.norm()) == pytest.approx(1) for share in result.values())
    assert not any(parameter.grad is not None for parameter in model.parameters())
    assert not any(module._forward_hooks for module in model.modules())


def test_importance_of_a_batch_is_the_mean_of_absolute_gradients():
    model, (source, target) = model_of("sinusoidal"), inputs()
    both = [Tokens(torch.cat((t.ids, t.ids.flip(1))), t.positions) for t in (source, target)]
    labels = torch.tensor([[4, 5, 2], [7, -1, -1]])
    with torch.no_grad():
        out = model.decoder.layers[0].cross_attention.out
        whole, slopes = out.weight.clone(), []
        for head in range(2):
            ends = []
            for gate in (1 - 1e-5, 1 + 1e-5):
                out.weight.copy_(whole)
                out.weight[:, 8 * head : 8 * head + 8] *= gate
                log = model(*both).log_softmax(-1)
                ends.append(torch.stack((-log[0, range(3), [4, 5, 2]].mean(), -log[1, 0, 7])))
            slopes.append(((ends[1] - ends[0]) / 2e-5).abs().mean())
        out.weight.copy_(whole)
    expected = torch.stack(slopes)
    torch.testing.assert_close(
        importance(model, tuple(both), labels)["decoder.0.cross"], expected / expected.norm(), rtol=1e-6, atol=1e-8
    )


@every_recurrent
def test_single_head_of_a_recurrent_model_has_importance_one(options):
    torch.testing.assert_close(
        importance(recurrent(**options), inputs(), WRITTEN)["decoder.0.cross"], torch.ones(1, dtype=torch.float64)
    )


@pytest.mark.parametrize("kind", ["transformer", "recurrent"])
def test_ablation_is_the_increase_of_the_loss(kind):
    model = model_of() if kind == "transformer" else recurrent()
    result = ablation(model, inputs(), WRITTEN)
    with record(model) as tape:
        model(*inputs())
    assert list(result) == tape.sites
    for site in tape.sites:
        for head, rise in enumerate(result[site].tolist()):
            change = effect(model, inputs(), WRITTEN, [HeadOff(site, head)])
            assert rise == pytest.approx((change.log_before - change.log_after) / 3)
            assert rise != 0


def test_erasure_compares_the_largest_weights_with_random_ones():
    model = model_of()
    result = erasure(model, inputs(), WRITTEN, "decoder.1.cross", None, 2, draws=4, seed=5)
    change = effect(model, inputs(), WRITTEN, [Cut("decoder.1.cross", None, 2)])
    assert result.largest == pytest.approx(change.log_after - change.log_before)
    draws = [effect(model, inputs(), WRITTEN, [Cut("decoder.1.cross", None, 2, "random", 5 + i)]) for i in range(4)]
    assert result.random == pytest.approx(sum(draw.log_after - draw.log_before for draw in draws) / 4)
    assert result.largest != pytest.approx(result.random)
    all_gone = erasure(model, inputs(), WRITTEN, "decoder.1.cross", 0, 6, draws=1)
    assert all_gone.largest == pytest.approx(all_gone.random, rel=1e-9), (
        "a query without keys is one, whichever were taken first"
    )
    with pytest.raises(UserError, match="expected 1 or more random draws, got 0"):
        erasure(model, inputs(), WRITTEN, "decoder.1.cross", 0, 1, draws=0)


@pytest.mark.parametrize("kind", ["transformer", "fed", "at once", "language model"])
def test_edited_copies_equal_separate_forwards(kind):
    models = {"transformer": model_of, "language model": language_model}
    model = models[kind]() if kind in models else recurrent(input_feeding=kind == "fed")
    batch = text() if kind == "language model" else inputs()
    site = "decoder.0.self" if kind == "language model" else "decoder.0.cross"
    edits = [[], [HeadOff(site, 0)], [Link(site, 0, 2, 1)], [Cut(site, 0, 1, "random", 3)], [Uniform(site)]]
    with torch.no_grad(), operate_on_copies(model, edits):
        together = model(*(repeat_batch(one, len(edits)) for one in batch))
    for number, of_copy in enumerate(edits):
        torch.testing.assert_close(together[number], edited(model, of_copy, batch)[0])
    assert not torch.allclose(together[0], together[1])


def test_erasure_runs_in_one_or_several_forwards():
    model, calls = model_of(), []
    model.register_forward_pre_hook(lambda model, inputs: calls.append(inputs[0].ids.shape[0]))
    whole = erasure(model, inputs(), WRITTEN, "encoder.0", 1, 1)
    assert calls == [12]
    some = erasure(model, inputs(), WRITTEN, "encoder.0", 1, 1, at_once=5)
    assert calls[1:] == [5, 5, 2]
    assert (some.largest, some.random) == pytest.approx((whole.largest, whole.random), rel=1e-9)


def test_erasure_counts_flipped_predictions():
    """The single head of a recurrent model: without it, another token is the likeliest."""
    model = recurrent(input_feeding=False)
    result = erasure(model, inputs(), WRITTEN, "decoder.0.cross", 0, 6, draws=1)
    with torch.no_grad():
        before, after = model(*inputs()), edited(model, [HeadOff("decoder.0.cross", 0)])
    flips = (before.argmax(-1) != after.argmax(-1)).double().mean()
    assert flips > 0
    assert (result.largest_flips, result.random_flips) == (flips, flips)


# Positions in the map -----------------------------------------------------------------------------------------------


@every_encoding
@pytest.mark.parametrize("keep", [None, KEEP], ids=["whole", "padded"])
def test_permutation_error_is_zero_only_without_positions(encoding, keep):
    result = permutation_error(model_of(encoding, torch.float32), inputs(keep))
    assert list(result) == ["encoder.0", "encoder.1"]
    for change in result.values():
        assert change == 0 if encoding == "none" else change > 1e-3


def test_permutation_error_omits_decoders():
    assert permutation_error(recurrent(), inputs()) == {}
    assert permutation_error(language_model(), text()) == {}


@every_encoding
def test_relative_encodings_are_shift_invariant(encoding):
    # In the sum, relation vectors are multiplied with queries that are rotated by position, not by distance.
    absolute = encoding in ("sinusoidal", "learned", "rotary+shaw+t5")
    for model, batch in ((model_of(encoding), inputs()), (language_model(encoding), text())):
        result = shift_error(model, batch, 7)
        assert len(result) == (6 if model.__class__ is EncoderDecoder else 2)
        for site, change in result.items():
            assert change > 1e-4 if absolute else change < 1e-6, site


def test_shift_applies_to_source_and_target():
    result = shift_error(model_of("rotary", cross_encoding="rotary"), inputs(), 100)
    assert result["decoder.0.cross"] < 1e-6
    result = shift_error(recurrent(cross_encoding="rotary", score="dot"), inputs(), 100)
    assert result["decoder.0.cross"] < 1e-6
    assert shift_error(recurrent(encoding="sinusoidal"), inputs(), 7)["decoder.0.cross"] > 1e-4
    with pytest.raises(UserError, match="learned knows the positions 0 to 7, got 12"):
        shift_error(model_of("learned:positions=8"), inputs(), 7)


def test_float64_checks_leave_a_float32_model_unchanged():
    model = model_of(dtype=torch.float32)
    shift_error(model, inputs(), 3)
    permutation_error(model, inputs())
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}


def test_controls_end_when_told_to_and_say_so():
    def compare(*answers):
        left = list(answers)
        return controls(model_of(), inputs(), [HeadOff("decoder.1.cross", 0)], 2, proceed=lambda: left.pop(0))

    whole, part = compare(True), compare(False)
    assert (len(whole.each), whole.interrupted) == (2, False)
    assert (len(part.each), part.interrupted) == (1, True)
    assert part.each == whole.each[:1]
