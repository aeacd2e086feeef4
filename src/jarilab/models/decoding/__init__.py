"""Generation token by token: greedy search, beam search and sampling."""

from jarilab.models.decoding.beam_search import beam as beam
from jarilab.models.decoding.greedy_search import Written as Written
from jarilab.models.decoding.greedy_search import greedy as greedy
from jarilab.models.decoding.hypotheses import Hypothesis as Hypothesis
from jarilab.models.decoding.sample import Drawn as Drawn
from jarilab.models.decoding.sample import rows_of as rows_of
from jarilab.models.decoding.sample import sample as sample
