"""Attentions against the papers' equations, in float64, pair by pair, far from position 0."""

import math

import numpy
import pytest
import torch

from jarilab.attention.geometry import geometry_of
from jarilab.attention.module import Attention
from jarilab.encodings import compose
from jarilab.encodings.absolute.sinusoidal import sinusoids
from jarilab.encodings.bias.distance_functions import alibi_slopes
from jarilab.encodings.formulas import bias
from jarilab.encodings.formulas.bias import t5_bucket
from jarilab.encodings.formulas.content import shaw_label_score, shaw_label_value
from jarilab.encodings.formulas.oracle import array, package_oracles
from jarilab.encodings.formulas.rotary import rotate_rotary
from jarilab.positions.coordinates import Positions
from jarilab.positions.masks import Mask

ORACLES = package_oracles()
WIDTH, HEADS = 12, 3
FAR = 900

INPUT_SPECS = [
    "sinusoidal",
    "sinusoidal:layout=concatenated",
    "sinusoidal:layout=tensor2tensor,base=500",
    "learned:positions=1000",
]
PAIR_SPECS = [
    "none",
    "rotary",
    "rotary:pairing=interleaved",
    "rotary:base=500,fraction=0.5",
    "rotary:pairing=interleaved,fraction=0.5",
    "shaw:clip=2",
    "shaw:clip=40",
    "shaw:clip=2,values=false",
    "shaw:clip=2,keys=false",
    "t5:buckets=8,distance=10",
    "alibi",
]
VALUE_SPECS = ["shaw:clip=2", "shaw:clip=40", "shaw:clip=2,keys=false"]
SUMS = [
    "sinusoidal+rotary+alibi",
    "learned:positions=1000+shaw:clip=2",
    "t5:buckets=8,distance=10+alibi",
    "rotary+shaw:clip=2",
]


def loops(attention, encoding, names, x_BQD, y_BKD, q_pos, k_pos, allowed_QK):
    """Attention as explicit sums. In a sum of encodings queries and keys are rotated before the others add to the score
    and the values."""
    parts = list(zip(names, getattr(encoding, "parts", [encoding]), strict=True))

    def linear(layer, x_D):
        return array(layer.weight) @ x_D + array(layer.bias)

    def placed(x_BLD, positions):
        return [[x_D + sum(ORACLES[n].embed(e, p) for n, e in parts) for x_D, p in zip(x_LD, positions, strict=True)]
                for x_LD in array(x_BLD)]  # fmt: skip

    def turned(x_E, position):
        for name, part in parts:
            if name == "rotary":
                x_E = rotate_rotary(part, x_E, position)
        return x_E

    def head_of(x, head):
        return numpy.split(x, HEADS)[head]

    output = []
    for x_QD, y_KD in zip(placed(x_BQD, q_pos), placed(y_BKD, k_pos), strict=True):
        rows = []
        for i, x_D in enumerate(x_QD):
            heads = []
            for head in range(HEADS):
                q_E = turned(head_of(linear(attention.query, x_D), head), q_pos[i])
                weights, values = [], []
                for j, y_D in enumerate(y_KD):
                    if not allowed_QK[i][j]:
                        continue
                    k_E = turned(head_of(linear(attention.key, y_D), head), k_pos[j])
                    v_E = head_of(linear(attention.value, y_D), head)
                    pair = (q_pos[i], k_pos[j], head)
                    content = ORACLES["none"].score(None, q_E, k_E, *pair, attention.scale)
                    added = [ORACLES[n].score(e, q_E, k_E, *pair, attention.scale) - content
                             for n, e in parts if n != "rotary"]  # fmt: skip
                    weights.append(math.exp(content + sum(added)))
                    values.append(v_E + sum(ORACLES[n].value(e, v_E, *pair) - v_E for n, e in parts))
                total = sum(weights)
                heads.append(sum(w / total * v for w, v in zip(weights, values, strict=True)))
            rows.append(linear(attention.out, numpy.concatenate(heads)))
        output.append(rows)
    return numpy.array(output)


def assert_equal_to_paper(spec, *, causal=False, cross=False, kernel="auto"):
    attention = Attention(WIDTH, HEADS, encoding=None, causal=causal, cross=cross, kernel=kernel).double()
    encoding = compose.build(spec, attention.site).double()
    q_pos = Positions.sequence(7, FAR)
    k_pos = Positions.sequence(9, FAR - 5) if cross else q_pos
    x_BQD = torch.randn(2, 7, WIDTH, dtype=torch.float64)
    y_BKD = torch.randn(2, 9, WIDTH, dtype=torch.float64) if cross else x_BQD
    geometry = geometry_of(encoding, q_pos, k_pos, Mask(causal=causal))
    got = attention(encoding.embed(x_BQD, q_pos), encoding.embed(y_BKD, k_pos) if cross else None, geometry=geometry)
    q, k = q_pos.index().tolist(), k_pos.index().tolist()
    allowed = [[not causal or j <= i for j in k] for i in q]
    names = [part.partition(":")[0] for part in compose.split_sum(spec)]
    wanted = loops(attention, encoding, names, x_BQD, y_BKD, q, k, allowed)
    # Rotations and slopes are kept in float32, whatever the model's precision: 2^-24 of the values of order 1 here.
    numpy.testing.assert_allclose(array(got), wanted, rtol=0, atol=2e-6)


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("spec", INPUT_SPECS + PAIR_SPECS + SUMS)
def test_self_attention_is_the_papers(spec, causal):
    assert_equal_to_paper(spec, causal=causal)


@pytest.mark.parametrize("spec", [*PAIR_SPECS, "rotary+shaw:clip=2"])
def test_cross_attention_measures_from_the_queries_own_positions(spec):
    assert_equal_to_paper(spec, cross=True)


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize(
    ("spec", "kernel"),
    [(s, "definition") for s in PAIR_SPECS] + [(s, "fused") for s in PAIR_SPECS if s not in VALUE_SPECS],
)
def test_every_kernel_is_the_papers(spec, kernel, causal):
    assert_equal_to_paper(spec, kernel=kernel, causal=causal)


def test_shaw_takes_the_labels_of_a_graph():
    """Section 3.1: any edge label in the place of a distance; here of a slice of a graph of five nodes."""
    attention = Attention(WIDTH, HEADS, encoding="shaw:labels=4").double()
    labels = torch.tensor([[0, 1, 2, 3, 1], [3, 0, 1, 2, 2], [2, 2, 0, 1, 3], [1, 3, 3, 0, 2], [0, 2, 1, 3, 0]])
    x_1LD = torch.randn(1, 3, WIDTH, dtype=torch.float64)
    got = attention(x_1LD, positions=Positions.graph(labels).slice(2, 5))
    encoding, (q, k, v) = (
        attention.encoding,
        (array(p(x_1LD))[0] for p in (attention.query, attention.key, attention.value)),
    )
    rows = []
    for i in range(3):
        heads = []
        for head in range(HEADS):
            own = slice(4 * head, 4 * head + 4)
            edge = [int(labels[2 + i, 2 + j]) for j in range(3)]
            e = [math.exp(shaw_label_score(encoding, q[i, own], k[j, own], edge[j], attention.scale)) for j in range(3)]
            heads.append(sum(e[j] / sum(e) * shaw_label_value(encoding, v[j, own], edge[j]) for j in range(3)))
        rows.append(array(attention.out.weight) @ numpy.concatenate(heads) + array(attention.out.bias))
    numpy.testing.assert_allclose(array(got)[0], rows, rtol=0, atol=1e-9)


@pytest.mark.parametrize("width", [2, 3, 7, 16])
@pytest.mark.parametrize("layout", ["interleaved", "concatenated", "tensor2tensor"])
def test_sinusoids_of_even_and_odd_widths(layout, width):
    encoding = compose.build(f"sinusoidal:layout={layout}", Attention(width, 1).site)
    index = [0, 1, 100, 4096, 2.5]
    got = sinusoids(torch.tensor(index, dtype=torch.float64), width, layout, 10000.0)
    numpy.testing.assert_allclose(array(got), [ORACLES["sinusoidal"].embed(encoding, p) for p in index], atol=1e-11)


@pytest.mark.parametrize(("buckets", "farthest"), [(32, 128), (18, 128), (8, 10), (10, 33), (64, 1000)])
@pytest.mark.parametrize("causal", [False, True], ids=["both ways", "back only"])
def test_t5_buckets_in_whole_numbers(buckets, farthest, causal):
    encoding = compose.build(f"t5:buckets={buckets},distance={farthest}", Attention(WIDTH, HEADS, causal=causal).site)
    ahead = range(-2 * farthest, 2 * farthest + 1)
    wanted = [t5_bucket(d, buckets, farthest, both_ways=not causal) for d in ahead]
    assert encoding.bucket(torch.tensor([list(ahead)]))[0].tolist() == wanted


@pytest.mark.parametrize("heads", [1, 2, 3, 6, 8, 12, 16, 40])
def test_alibi_slopes(heads):
    assert alibi_slopes(heads) == pytest.approx(bias.alibi_slopes(heads), rel=1e-12)
