"""Ids and padding of a model's inputs: positional masks, labels of encoder-decoders."""

import pytest
import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional

import jarilab
from helpers.planted_heads import PlantedHeads, noise
from jarilab.core.errors import UserError
from jarilab.inspect.study.losses import next_token_loss
from jarilab.inspect.study.model_batches import batch_of
from jarilab.inspect.study.model_sequences import sequences_of

IDS = torch.stack([torch.randperm(20, generator=torch.Generator().manual_seed(row))[:8] + 3 for row in range(3)])
KEEP = torch.arange(8) < torch.tensor([8, 6, 5])[:, None]
OTHER = IDS.flip(1)


class Names(nn.Module):
    """A model whose arguments have names."""

    def forward(self, source, tgt, src_key_padding_mask=None, tgt_mask=None):
        pass


@pytest.mark.parametrize("mask", [KEEP, KEEP.long()])
@pytest.mark.parametrize("model", [None, "planted"])
def test_a_mask_given_by_position_is_a_mask(mask: Tensor, model: str | None) -> None:
    reader = None if model is None else PlantedHeads({"noise": noise})
    ids, valid = sequences_of((IDS, mask), {}, reader)
    assert ids["source"] is ids["target"] is IDS
    assert all(torch.equal(valid[side], KEEP) for side in ("source", "target"))
    batch = batch_of((IDS, mask))
    logits = torch.randn(3, 8, 30)
    by_hand = functional.cross_entropy(logits[2, :4], IDS[2, 1:5])
    assert next_token_loss(logits, batch)[2].item() == pytest.approx(by_hand.item(), abs=1e-6)


def test_a_study_with_a_positional_mask_is_that_with_a_named_one() -> None:
    torch.manual_seed(0)
    model = PlantedHeads({"noise": noise}, causal=True)
    named = jarilab.study(model, [{"input_ids": IDS, "attention_mask": KEEP.long()}], probes=False)
    for inputs in ((IDS, KEEP), (IDS, KEEP.long())):
        assert jarilab.study(model, [inputs], probes=False).rows() == named.rows()
    with pytest.raises(UserError, match=r"batch 1: expected a mask \(3, 8\) .*got \(3, 7\)"):
        jarilab.study(model, [(IDS, KEEP[:, 1:])], probes=False)


def test_positional_arguments_are_read_by_their_names() -> None:
    config = transformers.BertConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8)
    types = torch.zeros_like(IDS)
    ids, valid = sequences_of((IDS, KEEP.long(), types), {}, transformers.BertModel(config))
    assert ids["target"] is IDS
    assert torch.equal(valid["target"], KEEP)
    ids, valid = sequences_of((IDS, OTHER, ~KEEP, KEEP), {}, Names())
    assert ids["target"] is OTHER
    assert torch.equal(valid["source"], KEEP)
    assert torch.equal(valid["target"], KEEP)
    binary = (IDS > 9).long()
    assert sequences_of((IDS, binary), {}, Names())[0]["target"] is binary


def test_two_texts_with_masks_have_one_each() -> None:
    ids, valid = sequences_of((IDS, OTHER[:, :6], KEEP, KEEP[:, :6]), {})
    assert torch.equal(ids["target"], OTHER[:, :6])
    assert torch.equal(valid["source"], KEEP)
    assert torch.equal(valid["target"], KEEP[:, :6])
    states = torch.randn(3, 8, 4)
    assert torch.equal(sequences_of((states, KEEP), {})[1]["source"], KEEP)


def test_next_tokens_given_by_position_are_labels() -> None:
    """As nanoGPT is called: model(x, y)."""
    ids, _ = sequences_of((IDS[:, :-1], IDS[:, 1:]), {})
    assert torch.equal(ids["target"], IDS[:, :-1])
    assert sequences_of((IDS, OTHER), {})[0]["target"] is OTHER


def t5() -> nn.Module:
    sizes = {"vocab_size": 30, "d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 2}
    torch.manual_seed(0)
    return transformers.T5ForConditionalGeneration(transformers.T5Config(**sizes, decoder_start_token_id=0)).eval()


def bart(kind: str, **options: int | None) -> nn.Module:
    sizes = {"vocab_size": 30, "d_model": 16, "max_position_embeddings": 32}
    for side in ("encoder", "decoder"):
        sizes |= {f"{side}_layers": 1, f"{side}_attention_heads": 2, f"{side}_ffn_dim": 16}
    torch.manual_seed(0)
    return getattr(transformers, kind)(transformers.BartConfig(**{**sizes, **options})).eval()


def test_the_decoder_reads_the_labels_shifted_right() -> None:
    model = t5()
    source = {"input_ids": IDS[:, :7], "attention_mask": KEEP[:, :7].long()}
    labels = OTHER.masked_fill(~KEEP, -100)
    keep = torch.arange(8) < torch.tensor([8, 7, 6])[:, None]  # the start token, and all labels that have room
    shifted = model._shift_right(labels)
    expected = {**source, "decoder_input_ids": shifted, "decoder_attention_mask": keep.long()}
    got = jarilab.study(model, [{**source, "labels": labels}], probes=False)
    assert got.rows() == jarilab.study(model, [expected], probes=False).rows()
    batch = batch_of({**source, "labels": labels}, model=model)
    assert batch.tokens[2]["target"] == list(map(str, [0, *OTHER[2, :5].tolist()]))
    assert batch.tokens[2]["source"] == list(map(str, IDS[2, :5].tolist()))
    named = batch_of({**source, "labels": labels}, [[["a"] * 7, ["b"] * 6, ["c"] * 5]], 0, model)
    assert named.tokens[2] == {"source": ["c"] * 5, "target": batch.tokens[2]["target"]}
    # A label that does not count between others is still a token that the decoder reads.
    inner = batch_of({**source, "labels": labels.index_fill(1, torch.tensor([1]), -100)}, model=model)
    assert torch.equal(inner.valid["target"], keep)


@pytest.mark.parametrize("kind", ["BartForConditionalGeneration", "BartModel", "BartForSequenceClassification"])
def test_a_decoder_without_ids_reads_the_source_shifted_right(kind: str) -> None:
    model = bart(kind, decoder_start_token_id=2)
    inputs = IDS.index_fill(1, torch.tensor([7]), 2)
    read = []
    hook = model.get_decoder().register_forward_pre_hook(
        lambda module, args, kwargs: read.append(kwargs["input_ids"]), with_kwargs=True
    )
    model(input_ids=inputs)
    hook.remove()
    ids, valid = sequences_of((), {"input_ids": inputs}, model)
    assert torch.equal(ids["target"], read[0])
    assert valid["target"].all()


def test_labels_of_whisper_are_shifted_without_its_help() -> None:
    sizes = {"vocab_size": 30, "d_model": 16, "num_mel_bins": 8, "max_source_positions": 8, "pad_token_id": 1}
    sizes |= {"bos_token_id": 2, "eos_token_id": 3, "decoder_start_token_id": 2}
    for side in ("encoder", "decoder"):
        sizes |= {f"{side}_layers": 1, f"{side}_attention_heads": 2, f"{side}_ffn_dim": 16}
    model = transformers.WhisperForConditionalGeneration(transformers.WhisperConfig(**sizes)).eval()
    labels = IDS.masked_fill(~KEEP, -100)
    inputs = {"input_features": torch.randn(3, 8, 16), "labels": labels}
    ids, valid = sequences_of((), inputs, model)
    assert "source" not in ids
    assert ids["target"][2].tolist() == [2, *IDS[2, :5].tolist(), 1, 1]
    assert valid["target"].sum(1).tolist() == [8, 7, 6]


def test_labels_that_cannot_be_shifted_are_refused() -> None:
    model = t5()
    model.config.decoder_start_token_id = None
    with pytest.raises(
        UserError, match=r"expected decoder_input_ids, .*decoder_start_token_id=None.*pass decoder_input"
    ):
        jarilab.study(model, [{"input_ids": IDS, "labels": OTHER}], probes=False)


class Crossed(nn.Module):
    """A decoder of the labels that attends to the source, and has no config."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.cross = nn.Embedding(30, 8), nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, input_ids: Tensor, labels: Tensor) -> Tensor:
        source = self.embed(input_ids)
        return self.cross(self.embed(labels[:, :-1]), source, source)[0]


def test_labels_of_a_model_with_an_own_shift_are_refused() -> None:
    with pytest.raises(
        UserError, match=r"the ids that the decoder of Crossed reads, got its labels; pass decoder_input"
    ):
        jarilab.study(Crossed().eval(), [{"input_ids": IDS, "labels": OTHER}], probes=False)
