"""Maps between words, merged from those between tokens."""

import pytest
import torch

import jarilab
from jarilab.core.errors import UserError
from jarilab.explorer import payload
from jarilab.explorer.tape_subject import view_of_tape
from jarilab.inspect.measure.maps import Map
from jarilab.inspect.measure.words import WordGroups, merge_words, word_groups
from jarilab.inspect.record import calls
from jarilab.models.encoder_decoder import EncoderDecoder
from jarilab.pages.kit.data_blocks import unpacked

TOKENS = ["<s>", "▁look", "ing", "▁in", "side", "▁it", "</s>"]
WORDS = [None, 0, 0, 1, 1, 2, None]
NAMES = ["<s>", "looking", "inside", "it", "</s>"]
GROUPS = [[0], [1, 2], [3, 4], [5], [6]]


@torch.no_grad()
def tape_of(length=7, batch=1):
    torch.manual_seed(1)
    model = jarilab.LanguageModel(9, d_model=16, n_heads=2, encoding="rotary")
    for parameter in model.parameters():
        parameter.data.mul_(3)
    with jarilab.record(model.eval()) as tape:
        model(torch.randint(9, (batch, length)))
    return tape


def by_hand(weights_HQK):
    rows = [torch.stack([weights_HQK[:, i, keys].sum(-1) for keys in GROUPS], -1) for i in range(7)]
    return torch.stack([torch.stack([rows[i] for i in queries]).mean(0) for queries in GROUPS], 1)


def map_of(tape, site="decoder.0.self"):
    return Map.of(tape, site, TOKENS, TOKENS)


def test_weights_are_summed_over_keys_with_their_mean_over_queries():
    tape, groups = tape_of(), WordGroups.of(TOKENS, WORDS)
    merged = merge_words(map_of(tape), groups, groups)
    torch.testing.assert_close(merged.weights, by_hand(tape.weights("decoder.0.self")[0].double()))
    torch.testing.assert_close(merged.weights.sum(-1), torch.ones(2, 5, dtype=torch.float64))
    assert merged.queries == NAMES
    assert torch.equal(merged.allowed, torch.ones(5, 5).tril().bool())
    assert torch.equal(merged.ahead, torch.arange(5) - torch.arange(5).unsqueeze(-1))
    torch.testing.assert_close(merged.even.weights, by_hand(map_of(tape).even.weights))


def test_scores_of_words_give_the_weights_of_a_query_alone():
    tape = tape_of()
    keys, queries = WordGroups.of(TOKENS, WORDS), WordGroups.of(TOKENS, [None] * 7)
    merged = merge_words(map_of(tape), queries, keys)
    scores = merged.scores.masked_fill(~merged.allowed, float("-inf"))
    torch.testing.assert_close(scores.softmax(-1), merged.weights, atol=1e-6, rtol=1e-5)
    # Each token of a word is in the place of the word.
    assert merged.q_order.tolist() == [0, 1, 1, 2, 2, 3, 4]


def test_queries_without_keys_are_left_out_of_the_mean():
    tape, groups = tape_of(), WordGroups.of(TOKENS, WORDS)
    allowed = map_of(tape).allowed.clone()
    weights = map_of(tape).weights.clone()
    allowed[1], weights[:, 1] = False, 0.0
    hidden = Map(**{**vars(map_of(tape)), "allowed": allowed, "weights": weights})
    merged = merge_words(hidden, groups, groups)
    torch.testing.assert_close(merged.weights.sum(-1), torch.ones(2, 5, dtype=torch.float64))


@pytest.mark.parametrize("words", [WORDS, {"target": WORDS}, True])
def test_measures_of_words(words):
    tape, groups = tape_of(), WordGroups.of(TOKENS, WORDS)
    measures = tape.measures(TOKENS, words=words)["decoder.0.self"]
    weights = by_hand(tape.weights("decoder.0.self")[0].double())
    torch.testing.assert_close(measures["self"].value, weights.diagonal(dim1=1, dim2=2).mean(-1))
    previous = weights.diagonal(-1, dim1=1, dim2=2).mean(-1)
    torch.testing.assert_close(measures["previous"].value, previous)
    even = by_hand(map_of(tape).even.weights)
    torch.testing.assert_close(measures["self"].chance, even.diagonal(dim1=1, dim2=2).mean(-1).expand(2))
    assert set(measures) == set(tape.measures(TOKENS)["decoder.0.self"])
    assert groups.names == NAMES


@pytest.mark.parametrize("large", [False, True])
def test_page_shows_words(large, monkeypatch):
    if large:
        monkeypatch.setattr(payload, "MAX_MEASURED", 0)
        monkeypatch.setattr(calls, "MAX_BLOCK_WEIGHTS", 2 * 7 * 2)
    tape = tape_of()
    view = view_of_tape(tape, TOKENS, "tape", WORDS)
    assert view["sides"]["target"]["tokens"] == NAMES
    for shown in view["sites"]:
        expected = by_hand(tape.weights(shown["site"])[0].double())
        assert shown["shape"] == [5, 5]
        assert abs(unpacked(shown["weights"]) - expected.numpy()).max() < 1e-4
        assert bool(shown["measures"]) != large
        assert (unpacked(shown["hidden"]) == torch.ones(5, 5).triu(1).numpy()).all()
    html = tape.show(TOKENS, words=WORDS).html
    assert "looking" in html


@torch.no_grad()
def test_sequences_have_words_of_their_own():
    model = EncoderDecoder(9, 9, d_model=16, n_heads=2).eval()
    with jarilab.record(model) as tape:
        model(torch.randint(9, (1, 7)), torch.randint(9, (1, 4)))
    names = {"source": TOKENS, "target": ["▁a", "b", "▁c", "</s>"]}
    view = view_of_tape(tape, names, "tape", {"source": WORDS})
    shapes = {shown["site"]: shown["shape"] for shown in view["sites"]}
    assert shapes["encoder.0"] == [5, 5]
    assert shapes["decoder.0.cross"] == [4, 5]
    marked = view_of_tape(tape, names, "tape", True)
    assert {shown["site"]: shown["shape"] for shown in marked["sites"]}["decoder.0.cross"] == [3, 5]
    with pytest.raises(UserError, match=r"each of the 4 tokens of target, got 7; .*\"target\""):
        tape.show(names, words=WORDS)


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        (["[CLS]", "look", "##ing", "in", "[SEP]"], ["[CLS]", "looking", "in", "[SEP]"]),
        (["The", "Ġcat", "s", "Ġ<b>", "!"], ["The", "cats", "<b>!"]),
        (["▁a", "▁", "<pad>", "<pad>"], ["a", "▁", "<pad>", "<pad>"]),
        (["##", "ĠTitle", "Ġun", "believ", "able"], ["##", "Title", "unbelievable"]),
        (["▁go", "▁", "<0xEA>", "<0xB0>", "<0x80>", "▁on"], ["go", "<0xEA><0xB0><0x80>", "on"]),
    ],
)
def test_marks_of_tokens_give_words(tokens, expected):
    assert word_groups({"source": tokens}, True)["source"].names == expected


def test_words_that_do_not_fit_raise():
    tape = tape_of()
    with pytest.raises(UserError, match=r"each of the 7 tokens of target, got 6; pass words=tokenizer.*special"):
        tape.measures(TOKENS, words=WORDS[:-1])
    with pytest.raises(UserError, match=r"each of the 7 tokens of target, got 8"):
        tape.show(TOKENS, words=[*WORDS, 3])
    with pytest.raises(UserError, match=r"expected words of target, got some of source; omit"):
        tape.measures(TOKENS, words={"source": WORDS})
    with pytest.raises(UserError, match=r"whole numbers or None.*got 'look'"):
        tape.measures(TOKENS, words=["look", *WORDS[1:]])
    with pytest.raises(UserError, match=r"reads the marks.*got none in.*word_ids\(\)"):
        tape.measures(words=True)
    with pytest.raises(UserError, match=r"each of the 7 tokens of target, got 0"):
        tape.measures(TOKENS, words=[])
