"""Tapes of models of jarilab: calls, maps, reconstruction errors and refusals. Compiled models: test_compile.py."""

import pytest
import torch
from torch import nn

from jarilab.attention.module import Attention
from jarilab.core.errors import UserError
from jarilab.inspect.intervene.interventions import HeadOff, operate
from jarilab.inspect.record.activations import is_same_tensor
from jarilab.inspect.record.capture import record
from jarilab.inspect.record.sites import site_name
from jarilab.models.decoder import LanguageModel
from jarilab.models.encoder_decoder import EncoderDecoder
from jarilab.models.recurrent import Recurrent
from jarilab.nn.init import initialise
from jarilab.positions.coordinates import Positions, Tokens
from jarilab.positions.masks import Mask

EVERY = ["none", "sinusoidal", "learned", "rotary", "shaw", "shaw:keys=false", "t5", "alibi", "rotary+shaw+t5"]
every_encoding = pytest.mark.parametrize("spec", EVERY)


def model_of(spec="rotary", **options):
    model = EncoderDecoder(9, 9, d_model=16, n_heads=2, encoding=spec, **options)
    initialise(model, 2)
    return model.eval()


def inputs():
    """Two sources, one of them padded on the left; two targets."""
    keep = torch.tensor([[True] * 6, [False] * 2 + [True] * 4])
    source = Tokens(torch.randint(9, (2, 6)), Positions.from_mask(keep, frame="source"), keep)
    return source, torch.randint(9, (2, 5))


def test_site_names_have_stack_layer_and_kind():
    with record(model := model_of(n_decoder_layers=1)) as tape:
        model(*inputs())
    assert tape.sites == ["encoder.0", "encoder.1", "decoder.0.self", "decoder.0.cross"]
    assert tape.weights("decoder.0.cross").shape == (2, 2, 5, 6)


@pytest.mark.parametrize(
    ("path", "site"),
    [
        ("attend", "attention"),
        ("encoder.layers.0.attention.attend", "encoder.0"),
        ("decoder.layers.11.cross_attention.attend", "decoder.11.cross"),
    ],
)
def test_site_name_omits_redundant_parts_of_the_path(path, site):
    assert site_name(path) == site


@every_encoding
def test_weights_times_values_rebuild_the_output(spec):
    model, (source, target) = model_of(spec), inputs()
    with record(model) as tape:
        model(source, target)
    for site in tape.sites:
        trust = tape.trust(site)
        assert trust.row_sum_error < 1e-5
        assert trust.masked_weight == 0.0
        assert trust.rebuild_error < 1e-5
    assert not tape.weights("encoder.0")[1, :, :, :2].any(), "padding is looked at"
    assert not tape.weights("decoder.1.self").triu(1).any(), "the future is looked at"


def test_rebuild_error_is_large_for_a_wrong_output():
    attention = Attention(16, 2)
    attention.attend.register_forward_hook(lambda module, arguments, output: output + 0.1)
    with record(attention) as tape:
        attention(torch.randn(1, 4, 16))
    assert tape.trust("attention").rebuild_error > 1e-2


def test_trust_reports_dropout():
    attention = Attention(16, 2, dropout=0.5).train()
    with record(attention) as tape:
        attention(torch.randn(1, 8, 16))
    trust = tape.trust("attention")
    assert trust.dropout == 0.5
    assert trust.rebuild_error > 1e-2
    assert trust.row_sum_error < 1e-5


@pytest.mark.parametrize("kernel", ["explicit", "fused", "definition"])
def test_query_without_keys_has_zero_weights(kernel):
    attention = Attention(16, 2, kernel=kernel)
    keep = torch.tensor([[False, False, True, True]])
    with record(attention) as tape:
        attention(torch.randn(1, 4, 16), mask=Mask(causal=True, keys=keep))
    assert tape.weights("attention")[0].sum(-1).tolist() == [pytest.approx([0, 0, 1, 1])] * 2
    trust = tape.trust("attention")
    assert (trust.row_sum_error < 1e-6, trust.masked_weight, trust.rebuild_error < 1e-5) == (True, 0.0, True)


@every_encoding
def test_recording_leaves_outputs_bit_identical(spec):
    model, (source, target) = model_of(spec), inputs()
    before = model(source, target)
    with record(model):
        during = model(source, target)
    assert torch.equal(during, before)
    assert torch.equal(model(source, target), before)


def test_scores_are_before_mask_and_softmax():
    attention = Attention(16, 2, encoding="t5")
    with record(attention) as tape:
        attention(torch.randn(1, 4, 16), mask=Mask(causal=True))
    scores, hidden = tape.scores("attention"), torch.ones(4, 4).triu(1).bool()
    assert scores.isfinite().all()
    torch.testing.assert_close(scores.masked_fill(hidden, float("-inf")).softmax(-1), tape.weights("attention"))


@every_encoding
def test_tape_holds_no_autograd_graph(spec):
    with record(model := model_of(spec)) as tape:
        model(*inputs())
    for site in tape.sites:
        recorded = tape.recorded(site)
        assert not recorded.output.requires_grad
        assert not recorded.call.q.requires_grad
        assert recorded.call.geometry.additive is None or not recorded.call.geometry.additive.requires_grad
        assert not tape.weights(site).requires_grad
        assert not tape.scores(site).requires_grad


def test_site_with_several_calls_needs_an_index():
    attention = Attention(16, 2)
    with record(attention) as tape:
        for length in (3, 5):
            attention(torch.randn(1, length, 16))
    with pytest.raises(UserError, match=r"^attention ran 2 times while recording; pick one with index=0 ... 1$"):
        tape.weights("attention")
    assert tape.weights("attention", 0).shape[-1] == 3
    assert tape.weights("attention", 1).shape[-1] == 5
    with pytest.raises(UserError, match=r"^attention ran 2 times while recording; there is no index 2$"):
        tape.trust("attention", 2)


def test_growing_cache_leaves_recorded_calls_unchanged():
    model, (source, target) = model_of("rotary"), inputs()
    state, cache = model.start(source), model.new_cache()
    with record(model) as tape:
        for i in range(5):
            model.step(state, target[:, i : i + 1], Positions.sequence(1, i, frame="target"), cache)
    with record(model) as whole:
        model(source, target)
    for i in range(5):
        step = tape.weights("decoder.0.self", i)
        torch.testing.assert_close(step[:, :, 0], whole.weights("decoder.0.self")[:, :, i, : i + 1])
        assert tape.trust("decoder.0.self", i).rebuild_error < 1e-5


def test_unknown_site_suggests_the_nearest():
    with record(model := model_of(n_decoder_layers=1)) as tape:
        model(*inputs())
    message = (
        r"^unknown site 'decoder.0.crss'; did you mean 'decoder.0.cross'\? Known: decoder.0.cross, decoder.0.self, "
    )
    with pytest.raises(UserError, match=message):
        tape.weights("decoder.0.crss")


def test_attentions_of_another_library_beside_those_of_jarilab_are_recorded():
    language_model = LanguageModel(16, d_model=16, n_heads=2, n_layers=1, kernel="explicit")
    model = nn.Sequential(language_model, nn.TransformerEncoderLayer(16, 2, 16, batch_first=True)).eval()
    ids, ours, other = torch.randint(10, (1, 6)), "0.decoder.0.self", "encoder.1"
    with torch.no_grad(), record(model) as tape:
        model(ids)
    assert {site: len(calls) for site, calls in tape.calls.items()} == {ours: 1, other: 1}
    assert all(tape.trust(site).holds for site in tape.sites)
    assert (tape.missing, tape.not_attending) == ({}, [])
    for site in (ours, other):
        with torch.no_grad(), record(model, [site]) as tape:
            model(ids)
        assert tape.sites == [site]
    with pytest.raises(UserError, match=rf"unknown site 'encoder\.2'.*{ours}, {other}"), record(model, ["encoder.2"]):
        model(ids)
    with pytest.raises(UserError, match=rf"unknown site '{other}'.*{ours}"), operate(model, [HeadOff(other, 0)]):
        model(ids)


def test_empty_tape_raises():
    with (
        pytest.raises(UserError, match=r"^nothing was recorded: no attention of this model ran inside the block"),
        record(model_of()),
    ):
        pass


def test_model_without_attention_raises():
    with (
        pytest.raises(UserError, match=r"^nothing was recorded: Linear made no attention .* so they have no map$"),
        record(nn.Linear(2, 2)) as tape,
    ):
        assert not tape.sites


@pytest.mark.parametrize(("spec", "name"), [("shaw", "Shaw"), ("t5", "T5"), ("rotary+shaw", "Sum")])
def test_changed_parameters_raise(spec, name):
    with record(model := model_of(spec)) as tape:
        model(*inputs())
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1)
    with pytest.raises(
        UserError, match=f"^the parameters of {name} have changed since encoder.0 was recorded.*before the next step$"
    ):
        tape.weights("encoder.0")


def test_unrelated_parameters_may_change():
    with record(model := model_of("rotary")) as tape:
        model(*inputs())
    before = tape.weights("encoder.1")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1)
    assert torch.equal(tape.weights("encoder.1"), before)


def test_hooks_are_removed_after_an_exception():
    model = model_of(encoder_encoding="rotary", decoder_encoding="learned:positions=3")
    with pytest.raises(UserError, match="learned knows the positions 0 to 2, got 4"), record(model) as tape:
        model(*inputs())
    assert tape.sites == ["encoder.0", "encoder.1"], "it failed somewhere else"
    model.start(inputs()[0])
    assert len(tape.calls["encoder.0"]) == 1


def test_tape_has_the_kernel_of_each_site():
    with record(model := model_of("rotary", kernel="fused")) as tape:
        model(*inputs())
    assert set(tape.kernels().values()) == {"fused"}
    with record(model := model_of("shaw")) as tape:
        model(*inputs())
    assert tape.kernels()["encoder.0"] == "explicit"


def test_equal_tokens_have_equal_rows_only_without_an_encoding():
    """The question from which the project started."""
    ids = torch.tensor([[3, 4, 3, 5, 4]])
    rows = {}
    for spec in ("none", "rotary"):
        with record(model := model_of(spec)) as tape:
            model(ids, ids)
        rows[spec] = tape.weights("encoder.1")
    assert torch.equal(rows["none"][:, :, 0], rows["none"][:, :, 2])
    assert not torch.allclose(rows["rotary"][:, :, 0], rows["rotary"][:, :, 2], atol=1e-3)


# Summands of scores ----------------------------------------------------------------------------------------


@every_encoding
def test_summands_add_up_to_the_scores_bit_by_bit(spec):
    model = model_of(spec)
    with record(model) as tape:
        model(*inputs())
    for site in tape.sites:
        call = tape.recorded(site).call
        expected = torch.einsum("bhqe,bhke->bhqk", call.q, call.k)
        terms = call.geometry.encoding.terms(call.q, call.k, call.geometry.relation)
        expected = call.scale * (expected if terms is None else expected + terms)
        expected = expected if call.geometry.bias is None else expected + call.geometry.bias
        assert torch.equal(tape.scores(site), expected.detach())
        for head in range(2):
            parts = tape.summands(site, head)
            assert torch.equal(parts.scores, expected[0, head])
            assert (parts.terms is None, parts.bias is None) == (terms is None, call.geometry.bias is None)
            assert torch.equal(parts.scaled, parts.scale * parts.unscaled)


def test_summands_of_steps_are_concatenated():
    model = Recurrent(9, 9, d_model=8, cross_encoding="shaw+t5", input_feeding=True).eval()
    with record(model) as tape:
        model(*inputs())
    parts = tape.summands("decoder.0.cross", 0)
    assert parts.terms.shape == parts.bias.shape == parts.product.shape == (5, 6)
    assert torch.equal(parts.scores, tape.scores("decoder.0.cross")[0, 0])


# Activations -------------------------------------------------------------------------------------------------


def hooked_classes(model):
    return {type(m).__name__ for m in model.modules() if m._forward_hooks or m._forward_pre_hooks}


def test_recording_hooks_attention_only():
    model = model_of()
    with record(model) as tape:
        assert hooked_classes(model) == {"AttentionKernel", "Attention"}
        model(*inputs())
    with pytest.raises(UserError, match=r"holds attention calls only, .*record\(model, inside=True\)$"):
        tape.inside  # noqa: B018


@every_encoding
def test_activations_have_stacks_norms_and_attentions_without_graph(spec):
    model, (source, target) = model_of(spec), inputs()
    before = model(source, target)
    with record(model, inside=True) as tape:
        assert torch.equal(model(source, target), before)
    assert hooked_classes(model) == set()
    assert torch.equal(tape.inside.output, before)
    assert tape.inside.arguments[0] is source
    (stack,) = tape.inside.calls_of(model.encoder)
    torch.testing.assert_close(stack.inputs[0], model.source_embedding(source.ids))
    (norm,) = tape.inside.calls_of(model.encoder.norm)
    assert torch.equal(norm.output, stack.output)
    (attention,) = tape.inside.calls_of(model.decoder.layers[0].cross_attention)
    assert is_same_tensor(attention.inputs[1], stack.output)
    assert not any(x.requires_grad for passage in tape.inside.calls for x in (*passage.inputs, passage.output))
    assert len(tape.inside.calls) == len({id(passage.module) for passage in tape.inside.calls})
