"""The examples of single fields run, and show what they say."""

import importlib
import importlib.util
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
TRANSFORMERS = [
    pytest.mark.skipif(
        importlib.util.find_spec("transformers") is None,
        reason="NO transformers: an example was NOT run (pip install 'jarilab[huggingface]')",
    ),
    pytest.mark.filterwarnings("ignore"),  # of other libraries while they are imported
]


def example(name):
    if str(EXAMPLES) not in sys.path:
        sys.path.insert(0, str(EXAMPLES))
    return importlib.import_module(name)


@pytest.mark.slow
def test_a_watched_head_becomes_a_previous_token_head(tmp_path):
    pytest.importorskip("tensorboard", reason="NO tensorboard: a watched training was NOT run")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    example("watch_training").main(str(tmp_path))
    read = EventAccumulator(str(tmp_path)).Reload()
    for head in (0, 1):
        previous = read.Scalars(f"measures, previous/encoder.0:{head}")
        assert [event.step for event in previous] == list(range(0, 301, 50))
        assert previous[0].value < 0.2
        assert previous[-1].value > 0.8


class TestSpeech:
    pytestmark = TRANSFORMERS

    def test_hypotheses_have_times(self):
        timed = example("words_to_time").main()
        assert len(timed) == 2
        for words in timed:
            assert words[0].start == 0
            assert words[-1].end == pytest.approx(1)
            assert all(word.start <= word.end for word in words)
