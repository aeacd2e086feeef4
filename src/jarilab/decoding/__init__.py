"""Writing token by token with any model that generates: greedily, by beam search, or by drawing."""

from jarilab.decoding.sample import Drawn as Drawn
from jarilab.decoding.sample import sample as sample
from jarilab.decoding.search import Hypothesis as Hypothesis
from jarilab.decoding.search import Written as Written
from jarilab.decoding.search import beam as beam
from jarilab.decoding.search import greedy as greedy
