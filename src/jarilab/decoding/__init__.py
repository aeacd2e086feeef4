"""Writing token by token with any model that generates: greedily, by beam search, or by drawing."""

from jarilab.decoding.beam_search import beam as beam
from jarilab.decoding.greedy_search import Written as Written
from jarilab.decoding.greedy_search import greedy as greedy
from jarilab.decoding.hypotheses import Hypothesis as Hypothesis
from jarilab.decoding.sample import Drawn as Drawn
from jarilab.decoding.sample import sample as sample
