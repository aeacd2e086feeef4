"""Beam search and the filters of sampling against the transformers library."""

import pytest
import torch

from helpers.decoding import Read, Rows
from jarilab.data.text import END, FIRST, PADDING
from jarilab.models.decoding import beam
from jarilab.models.decoding.sample import keep_min_p, keep_top_k, keep_top_p, penalise_repetition
from jarilab.positions.coordinates import Tokens

transformers = pytest.importorskip("transformers")


class Marian:
    """A model of the transformers library, which reads all again at every step."""

    def __init__(self, theirs):
        self.theirs = theirs

    def start(self, source):
        return Rows(self.theirs.get_encoder()(source.ids, torch.ones_like(source.ids)).last_hidden_state)

    def step(self, state, ids, positions, cache):
        memory = state.rows.repeat_interleave(len(ids) // len(state.rows), 0)
        scores = self.theirs(encoder_outputs=(memory,), decoder_input_ids=cache.append(ids), use_cache=False).logits
        return scores[:, -1:]

    def new_cache(self):
        return Read()


@pytest.mark.parametrize("rules", [{}, {"no_repeat": 2}, {"shortest": 5}], ids=["free", "no bigram twice", "5 or more"])
@pytest.mark.parametrize("length_penalty", [0.0, 1.0])
def test_the_search_is_that_of_transformers(length_penalty, rules):
    config = transformers.MarianConfig(
        vocab_size=12, d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2, pad_token_id=PADDING,
        decoder_attention_heads=2, encoder_ffn_dim=16, decoder_ffn_dim=16, max_position_embeddings=32, init_std=0.6,
        eos_token_id=END, decoder_start_token_id=FIRST, forced_eos_token_id=None,
    )  # fmt: skip
    theirs = transformers.MarianMTModel(config).eval()
    # It takes the first token for one that was written, and never writes padding.
    theirs.final_logits_bias[0, [PADDING, FIRST, END]] = torch.tensor([-50.0, -50.0, 4.0])
    source = Tokens.of(torch.randint(3, 12, (6, 5)), "source")
    wanted = theirs.generate(
        source.ids, attention_mask=torch.ones_like(source.ids), num_beams=4, num_return_sequences=4, max_new_tokens=7,
        length_penalty=length_penalty, early_stopping=False, do_sample=False, return_dict_in_generate=True,
        output_scores=True, no_repeat_ngram_size=rules.get("no_repeat", 0), min_new_tokens=rules.get("shortest", 1) - 1,
    )  # fmt: skip
    answers = beam(
        Marian(theirs),
        source,
        first=FIRST,
        end=END,
        beam_size=4,
        best=4,
        longest=7,
        length_penalty=length_penalty,
        **rules,
    )
    found = [answer for of_one in answers for answer in of_one]
    for answer, ids, score in zip(found, wanted.sequences.tolist(), wanted.sequences_scores.tolist(), strict=True):
        assert answer.ids.tolist() == ids[1 : len(answer.ids) + 1]
        assert set(ids[len(answer.ids) + 1 :]) <= {PADDING, END}
        assert answer.score == pytest.approx(score, abs=1e-4)
    assert len({len(answer.ids) for answer in found}) > 1


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (lambda scores, _: keep_top_k(scores, 3), lambda: transformers.TopKLogitsWarper(3)),
        (lambda scores, _: keep_top_k(scores, 999), lambda: transformers.TopKLogitsWarper(999)),
        (lambda scores, _: keep_top_p(scores, 0.8), lambda: transformers.TopPLogitsWarper(0.8)),
        (lambda scores, _: keep_top_p(scores, 1e-6), lambda: transformers.TopPLogitsWarper(1e-6)),
        (lambda scores, _: keep_min_p(scores, 0.1), lambda: transformers.MinPLogitsWarper(0.1)),
        (
            lambda scores, ids: penalise_repetition(scores, ids, 1.3),
            lambda: transformers.RepetitionPenaltyLogitsProcessor(1.3),
        ),
    ],
    ids=["top k", "top k of more than there are", "top p", "top p of almost nothing", "min p", "repetition"],
)
def test_filters_are_those_of_transformers(ours, theirs):
    scores, ids = 3 * torch.randn(50, 40), torch.randint(40, (50, 6))
    before = scores.clone()
    found = ours(scores, ids)
    assert torch.equal(scores, before), "the scores it was given have changed"
    torch.testing.assert_close(found, theirs()(ids, scores))
