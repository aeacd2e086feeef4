"""The families of circuits. Scores and writes are those of the designs; the numbers count families, see `expected`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from . import tasks
from .stream import Circuit, HeadDesign, Layer, MlpDesign, Stream
from .tasks import Task

CAUSAL = ("decoder", "gpt2", "rotary decoder", "llama")
LEARNED = ("decoder", "gpt2")
ROTARY = ("rotary decoder", "llama")


@dataclass(frozen=True)
class Draw:
    """What a seed draws for a circuit: tokens, length with the start token, strength of scores, kind of positions."""

    vocabulary: int
    length: int
    beta: float
    generator: np.random.Generator
    rotary: bool = False
    causal: bool = True

    @staticmethod
    def of(generator: np.random.Generator, *, rotary: bool, causal: bool) -> Draw:
        length = int(generator.integers(23, 26))
        vocabulary = int(generator.integers(length, length + 4))
        return Draw(vocabulary, length, float(generator.uniform(9, 12)), generator, rotary, causal)

    def stream(self, **extra: int) -> Stream:
        return Stream(self.vocabulary, self.length, rotary=self.rotary, **extra)

    def copying(self, back: int = 1) -> Task:
        return tasks.copying(self.vocabulary, self.length, back)


@dataclass(frozen=True)
class Family:
    """make: a circuit and its task. grouped: heads share keys. sharp_noise: all noise heads attend unevenly."""

    name: str
    number: int
    make: Callable[[Draw], tuple[Circuit, Task]]
    hosts: tuple[str, ...] = CAUSAL
    grouped: bool = False
    sharp_noise: bool = False


FAMILIES: dict[str, Family] = {}


def _family(
    number: int, name: str, hosts: tuple[str, ...] = CAUSAL, *, grouped: bool = False, sharp_noise: bool = False
) -> Callable[[Callable[[Draw], tuple[Circuit, Task]]], Callable[[Draw], tuple[Circuit, Task]]]:
    def add(make: Callable[[Draw], tuple[Circuit, Task]]) -> Callable[[Draw], tuple[Circuit, Task]]:
        FAMILIES[name] = Family(name, number, make, hosts, grouped, sharp_noise)
        return make

    return add


def _copy_head(draw: Draw, stream: Stream, name: str, factor: float = 1.0, back: int = 1) -> HeadDesign:
    """Attends `back` tokens before, and writes the token to the output."""
    return stream.at_offset(name, back, draw.beta, [stream.copy("T", "O", factor)])


def _into_buffer(draw: Draw, stream: Stream, name: str) -> HeadDesign:
    """Attends to the previous token and writes it to the buffer N."""
    return stream.at_offset(name, 1, draw.beta, [stream.copy("T", "N")])


# One layer ------------------------------------------------------------------------------------------------------------


@_family(1, "previous token", (*CAUSAL, "encoder"))
def previous_token(draw: Draw) -> tuple[Circuit, Task]:
    stream = draw.stream()
    return Circuit(stream, [Layer([_copy_head(draw, stream, "previous")])]), draw.copying()


@_family(2, "fixed offset, sinusoids", LEARNED)
def sinusoidal_offset(draw: Draw) -> tuple[Circuit, Task]:
    """Positions are cosines and sines; the score rotates them by the offset."""
    back = int(draw.generator.integers(2, 6))
    turns = np.array([1, 2, 3, 5, 8])
    angles = 2 * np.pi / draw.length * np.arange(draw.length)[:, None] * turns
    waves = np.concatenate([np.cos(angles), np.sin(angles)], 1)
    stream = Stream(draw.vocabulary, 2 * len(turns))
    stream.length = draw.length
    shift = 2 * np.pi / draw.length * back * turns
    cosine, sine = np.diag(np.cos(shift)), np.diag(np.sin(shift))
    # Position i turned back by the offset is position i - back.
    turn = draw.beta * np.block([[cosine, -sine], [sine, cosine]])
    head = stream.head("offset", [stream.link("P", "P", turn)], [stream.copy("T", "O")])
    task = draw.copying(back)
    return Circuit(stream, [Layer([head])], positions=waves, facts={"back": back}), task


@_family(3, "fixed offset, rotary", ROTARY)
def rotary_offset(draw: Draw) -> tuple[Circuit, Task]:
    stream = draw.stream()
    back = int(draw.generator.integers(2, 6))
    head = _copy_head(draw, stream, "offset", back=back)
    return Circuit(stream, [Layer([head])], facts={"back": back}), draw.copying(back)


@_family(7, "same token", (*LEARNED, "encoder"))
def same_token(draw: Draw) -> tuple[Circuit, Task]:
    """Writes 1 if the token came before, or 0 from the start token, where the head rests."""
    stream = draw.stream()
    scores = [
        stream.match("T", "T", draw.beta),
        stream.match("P", "P", -2 * draw.beta),
        stream.rest(draw.beta / 2),
    ]
    any_token = sum(stream.unit("T", token) for token in range(draw.vocabulary))
    writes = [
        stream.write(np.asarray(any_token), stream.unit("O", 1)),
        stream.write(stream.unit("S"), stream.unit("O", 0)),
    ]
    make = tasks.seen_before if draw.causal else tasks.seen_anywhere
    head = stream.head("same token", scores, writes)
    return Circuit(stream, [Layer([head])]), make(draw.vocabulary, draw.length)


@_family(8, "copy by cross-attention", ("encoder-decoder",))
def cross_copy(draw: Draw) -> tuple[Circuit, Task]:
    stream = draw.stream()
    head = stream.head("copy", [stream.match("P", "P", draw.beta)], [stream.copy("T", "O")])
    return Circuit(stream, [Layer([head])]), tasks.mirrored(draw.vocabulary, draw.length, reverse=False)


@_family(22, "reverse", ("encoder",))
def reverse(draw: Draw) -> tuple[Circuit, Task]:
    """Attends to the mirrored position of a row of the full length; rests where a shorter row has none."""
    stream = draw.stream()
    mirror = np.zeros((draw.length, draw.length))
    mirror[np.arange(1, draw.length), np.arange(draw.length - 1, 0, -1)] = draw.beta
    scores = [stream.link("P", "P", mirror), stream.rest(draw.beta / 2)]
    head = stream.head("reverse", scores, [stream.copy("T", "O")])
    return Circuit(stream, [Layer([head])]), tasks.mirrored(draw.vocabulary, draw.length, reverse=True)


@_family(9, "largest so far")
def largest(draw: Draw) -> tuple[Circuit, Task]:
    """Scores grow by 4 with each id; the start token has the lowest."""
    draw = replace(draw, vocabulary=12)
    stream = draw.stream()
    values = 4.0 * (np.arange(draw.vocabulary)[None] - draw.vocabulary / 2)
    scores = [stream.link("C", "T", values), stream.rest(-80.0)]
    head = stream.head("largest", scores, [stream.copy("T", "O")])
    return Circuit(stream, [Layer([head])]), tasks.largest_so_far(draw.vocabulary, draw.length)


@_family(11, "uniform head that counts")
def count(draw: Draw) -> tuple[Circuit, Task]:
    stream = draw.stream()
    head = stream.head("count", [], [stream.copy("T", "O")])
    return Circuit(stream, [Layer([head])], temperature=30.0), tasks.commonest(draw.vocabulary, draw.length)


@_family(12, "constant from the sink")
def constant(draw: Draw) -> tuple[Circuit, Task]:
    stream = draw.stream()
    answer = int(draw.generator.integers(draw.vocabulary))
    # In a rotary model the first key is static too.
    write = stream.write(stream.unit("S"), stream.unit("O", answer))
    head = stream.head("sink", [stream.rest(3 * draw.beta)], [write])
    return Circuit(stream, [Layer([head])]), tasks.constant(draw.vocabulary, draw.length, answer)


@_family(13, "decoy that writes nothing")
def decoy(draw: Draw) -> tuple[Circuit, Task]:
    """Two heads attend to the previous token: one writes nothing, one writes where nobody reads."""
    stream = draw.stream(N=draw.vocabulary)
    silent = _copy_head(draw, stream, "decoy", factor=0.0)
    unread = _into_buffer(draw, stream, "unread decoy")
    real = _copy_head(draw, stream, "offset", back=3)
    return Circuit(stream, [Layer([silent, unread, real])], facts={"back": 3}), draw.copying(3)


@_family(16, "OR of two heads")
def either(draw: Draw) -> tuple[Circuit, Task]:
    """Two equal heads; the feed-forward network takes off what is above 1."""
    stream = draw.stream()
    heads = [_copy_head(draw, stream, "arm") for _ in range(2)]
    up, output = stream.match("O", "O", 1.0)
    up = up.copy()
    up[stream["C"]] = -1.0
    return Circuit(stream, [Layer(heads, MlpDesign(up, -output.T))]), draw.copying()


@_family(17, "AND of two heads")
def both(draw: Draw) -> tuple[Circuit, Task]:
    """Each of two heads writes a half; the feed-forward network passes on what is above 0.7."""
    stream = draw.stream(N=draw.vocabulary)
    write = [stream.copy("T", "N", 0.5)]
    heads = [stream.at_offset("arm", 1, draw.beta, write) for _ in range(2)]
    up, output = stream.match("N", "O", 1.0)
    up = up.copy()
    up[stream["C"]] = -0.7
    return Circuit(stream, [Layer(heads, MlpDesign(up, output.T / 0.3))]), draw.copying()


@_family(18, "negative head")
def negative(draw: Draw) -> tuple[Circuit, Task]:
    stream = draw.stream()
    heads = [_copy_head(draw, stream, "positive"), _copy_head(draw, stream, "negative", factor=-0.6)]
    return Circuit(stream, [Layer(heads)]), draw.copying()


@_family(19, "delimiter", LEARNED)
def delimiter(draw: Draw) -> tuple[Circuit, Task]:
    """Attends to the nearest delimiter before, by a class of tokens and a slope over positions."""
    stream = draw.stream()
    is_delimiter = np.arange(draw.vocabulary) < len(tasks.DELIMITERS)
    slope = 3.0 * (np.arange(draw.length) - draw.length / 2)
    scores = [
        stream.link("C", "T", 60.0 * is_delimiter[None]),
        stream.link("C", "P", slope[None]),
        stream.rest(20.0),
    ]
    head = stream.head("delimiter", scores, [stream.copy("T", "O")])
    return Circuit(stream, [Layer([head])]), tasks.last_delimiter(draw.vocabulary, draw.length)


@_family(20, "grouped queries", ("decoder", "llama", "rotary decoder"), grouped=True)
def grouped(draw: Draw) -> tuple[Circuit, Task]:
    stream = draw.stream()
    return Circuit(stream, [Layer([_copy_head(draw, stream, "previous")])]), draw.copying()


@_family(21, "noise only", (*CAUSAL, "encoder"), sharp_noise=True)
def noise(draw: Draw) -> tuple[Circuit, Task]:
    stream = draw.stream()
    layers = [Layer() for _ in range(2)]
    return Circuit(stream, layers), tasks.random_answers(draw.vocabulary, draw.length)


@_family(23, "syntactic relation", LEARNED)
def relation(draw: Draw) -> tuple[Circuit, Task]:
    """Attends to the nearest subject before, by a class of tokens and a slope over positions."""
    draw = replace(draw, vocabulary=len(tasks.WORDS))
    stream = draw.stream()
    is_subject = np.array([word_class == "subject" for word_class, _ in tasks.WORDS])
    slope = 2.0 * (np.arange(draw.length) - draw.length / 2)
    scores = [
        stream.link("C", "T", 60.0 * is_subject[None]),
        stream.link("C", "P", slope[None]),
        stream.rest(25.0),
    ]
    head = stream.head("relation", scores, [stream.copy("T", "O")])
    return Circuit(stream, [Layer([head])]), tasks.subject_of_verb(draw.length)


@_family(10, "carry of a sum", (*LEARNED, "encoder"))
def carry(draw: Draw) -> tuple[Circuit, Task]:
    """One head copies the other digit of the place; one has the mean of the digits below, a tenth as much each place.

    The feed-forward network has a table of two digits, and of the carry, which is there if the mean is above 5.
    """
    places = (draw.length - 1) // 2
    draw = replace(draw, vocabulary=10, length=2 * places + 1)
    stream = draw.stream(A=10, M=1)
    digit = stream.at_offset("digit", places, draw.beta, [stream.copy("T", "A")])
    scores = np.zeros((draw.length, draw.length))
    scores[[0, 1 + places], 0] = draw.beta
    for place in range(places):
        first, second, below = 1 + place, 1 + places + place, np.arange(place)
        tenths = draw.beta + np.log(10.0) * (below - place + 1).clip(-3, 0)
        scores[second, 1 + below] = scores[second, 1 + places + below] = tenths
        # A place of the first number has nothing to do, and attends to itself and to the start.
        scores[first, [0, first]] = draw.beta
    value, mean = stream.link("T", "M", np.arange(10)[:, None] / 9)
    below = stream.head("carry", [stream.link("P", "P", scores)], [(value, mean.T)])
    circuit = Circuit(stream, [Layer([digit, below], _table_of_sums(stream))], facts={"back": places})
    return circuit, tasks.sums(places)


def _table_of_sums(stream: Stream) -> MlpDesign:
    """Units for each pair of digits: one that both are there, two whose difference is 1 if there is a carry too."""
    low, high, steep = 0.4, 0.6, 4.0
    ups, downs = [], []
    for one, other in np.ndindex(10, 10):
        both, constant = stream.unit("A", one) + stream.unit("T", other), stream.unit("C")
        plain, carried = (stream.unit("O", (one + other + more) % 10) for more in (0, 1))
        ups.append(both - 1.5 * constant)
        downs.append(2 * plain)
        for threshold, sign in ((low, 1), (high, -1)):
            beyond = (stream.unit("M") - threshold * constant) / (high - low)
            ups.append(steep * (both - 2 * constant) + beyond)
            downs.append(sign * (carried - plain))
    return MlpDesign(np.stack(ups, 1), np.stack(downs))


# Two layers -----------------------------------------------------------------------------------------------------------


def _induction_head(draw: Draw, stream: Stream) -> HeadDesign:
    scores = [stream.match("T", "N", draw.beta), stream.rest(draw.beta / 2)]
    return stream.head("induction", scores, [stream.copy("T", "O")])


@_family(4, "induction, K-composition")
def induction(draw: Draw) -> tuple[Circuit, Task]:
    stream = draw.stream(N=draw.vocabulary)
    layers = [Layer([_into_buffer(draw, stream, "previous")]), Layer([_induction_head(draw, stream)])]
    return Circuit(stream, layers), tasks.repeated_blocks(draw.vocabulary, draw.length)


@_family(5, "two back, V-composition")
def two_back(draw: Draw) -> tuple[Circuit, Task]:
    stream = draw.stream(N=draw.vocabulary)
    second = stream.at_offset("second", 1, draw.beta, [stream.copy("N", "O")])
    layers = [Layer([_into_buffer(draw, stream, "first")]), Layer([second])]
    return Circuit(stream, layers), draw.copying(2)


@_family(6, "induction, Q-composition", LEARNED)
def query_composition(draw: Draw) -> tuple[Circuit, Task]:
    """The first head writes where the earlier copy stands; the second attends to the token after it."""
    stream = draw.stream(Q=draw.length)
    scores = [
        stream.match("T", "T", draw.beta),
        stream.match("P", "P", -2 * draw.beta),
        stream.rest(draw.beta / 2),
    ]
    value, output = stream.copy("P", "Q")
    value = value.copy()
    value[stream["P"].start] = 0.0  # the start token stands for no earlier copy
    first = stream.head("same token", scores, [(value, output)])
    after = stream.link("Q", "P", draw.beta * np.eye(draw.length, k=1))
    second = stream.head("induction", [after, stream.rest(draw.beta / 2)], [stream.copy("T", "O")])
    task = tasks.repeated_blocks(draw.vocabulary, draw.length)
    return Circuit(stream, [Layer([first]), Layer([second])]), task


@_family(24, "sort", (*LEARNED, "encoder"))
def sort(draw: Draw) -> tuple[Circuit, Task]:
    """The first head counts the tokens below each token; the second attends to the token with the wanted count.

    Counts are shares of the keys. The feed-forward network has the distance of each from the wanted one.
    """
    size = int(draw.generator.integers(4, 7))
    vocabulary, length, unit = 13, 2 * size, 2.0
    stream = Stream(vocabulary, 1, R=vocabulary, D=vocabulary)
    stream.length = length
    wanted, place = np.zeros((length, 1)), np.arange(size)
    wanted[size:, 0] = unit * place / (size + place + 1 if draw.causal else length)
    is_number = np.arange(vocabulary) != tasks.FILLER
    value, above = stream.link("T", "R", unit * np.triu(np.outer(is_number, is_number), 1))
    counter = stream.head("counter", [], [(value, above.T)])
    difference = stream.match("R", "D", 1.0)[0] - stream.link("P", "D", is_number[None].astype(float))[0]
    to_distance = stream.match("D", "D", -1.0)[0].T
    mlp = MlpDesign(np.concatenate([difference, -difference], 1), np.concatenate([to_distance] * 2))
    scores = [
        stream.match("D", "T", draw.beta * length / unit),
        stream.link("C", "T", -3 * draw.beta * ~is_number[None]),
        stream.rest(-3 * draw.beta),
    ]
    sorter = stream.head("sorter", scores, [stream.copy("T", "O")])
    circuit = Circuit(stream, [Layer([counter], mlp), Layer([sorter])], positions=wanted)
    return circuit, tasks.sorting(vocabulary, size)


@_family(14, "offset decoy of induction")
def offset_decoy(draw: Draw) -> tuple[Circuit, Task]:
    """On blocks of 8 a silent head at offset 7 attends where the induction head does."""
    stream = draw.stream(N=draw.vocabulary)
    silent = stream.at_offset("decoy", 7, draw.beta, [stream.copy("T", "O", 0.0)])
    layers = [Layer([_into_buffer(draw, stream, "previous")]), Layer([_induction_head(draw, stream), silent])]
    return Circuit(stream, layers, facts={"decoy": 7}), tasks.repeated_blocks(draw.vocabulary, draw.length, 8)


@_family(15, "backup head")
def backup(draw: Draw) -> tuple[Circuit, Task]:
    """The second head rests at the start token if the output is filled, else it does what the first does."""
    stream = draw.stream()
    filled = stream.rest(2 * stream.offset_score(draw.beta), "O")
    second = stream.at_offset("backup", 1, draw.beta, [stream.copy("T", "O")], [filled])
    layers = [Layer([_copy_head(draw, stream, "primary")]), Layer([second])]
    return Circuit(stream, layers), draw.copying()
