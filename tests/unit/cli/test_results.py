"""Results as a person reads them in a terminal."""

from jarilab.cli.results import metrics_text


def test_what_was_measured_is_read_by_its_metric():
    measured = {
        "encoding": "rotary",
        "metric": "bleu",
        "examples": 500.0,
        "bleu": 31.25,
        "chrf": 55.0,
        "perplexity": 4.2,
    }
    measured |= {"exact_match": 0.125, "signature": "nrefs:1", "best": {"step": 3, "bleu": 32.0}, "steps": 9}
    lines = [" ".join(line.split()) for line in metrics_text(measured, "run").split("\n")]
    assert lines == [
        "run: rotary, 500 held-out examples",
        "exact match 12.50%",
        "BLEU 31.25",
        "chrF 55.00",
        "perplexity 4.200",
        "sacreBLEU nrefs:1",
        "best checkpoint 32.00 at step 3",
    ]


def test_long_names_of_what_was_measured_do_not_break_the_column():
    measured = {"encoding": "none", "metric": "exact_match", "examples": 5, "exact_match": 0.5, "loss": 1.0, "steps": 9}
    text = metrics_text({**measured, "exact_match_reconstructed": 0.25, "loss_of_ink": 2.0}, "run")
    _, *rows = text.split("\n")
    assert "  exact match reconstructed   25.00%" in rows
    assert "  loss of ink                 2.0000" in rows
    assert len({len(row) for row in rows}) == 1
