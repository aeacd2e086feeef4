"""What a comparison does around its trials."""

import pytest

import jarilab
from helpers.runs import TINY, tiny
from jarilab.comparison import study
from jarilab.errors import UserError


def test_a_trial_imports_nothing_from_the_current_folder(tmp_path, monkeypatch):
    # The package imports the library's statistics through torch; a file of that name must not take its place.
    (tmp_path / "statistics.py").write_text(f"open({str(tmp_path / 'executed')!r}, 'w').close()")
    monkeypatch.chdir(tmp_path)
    trial = study.Trial("trial", tiny("none", training__examples=16, training__evaluations=1), tmp_path / "trial")
    assert study._start(trial, 0).wait() == 0, (tmp_path / "trial.log").read_text()
    assert not (tmp_path / "executed").exists()


def test_an_encoding_that_cannot_read_the_data_is_refused_before_any_trial(tmp_path):
    with pytest.raises(UserError, match=r"two coordinates expected, got .*; choose an encoding for 1 axis"):
        jarilab.compare("arithmetic:maximum=30", tmp_path / "study", encodings=["none", "rotary2d"], settings=TINY)
    assert not (tmp_path / "study").exists()
