"""Writing token by token with any model that generates: greedily, by beam search, or by drawing."""

from jari.decoding.sample import Drawn as Drawn
from jari.decoding.sample import sample as sample
from jari.decoding.search import Hypothesis as Hypothesis
from jari.decoding.search import Written as Written
from jari.decoding.search import beam as beam
from jari.decoding.search import greedy as greedy
