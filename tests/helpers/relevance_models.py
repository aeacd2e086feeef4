"""Models, batches and answers for tests of relevance and of removal."""

from typing import Any

import torch
from torch import Tensor, nn

import jarilab
from helpers import architectures
from helpers.small import initialised
from jarilab.inspect.study.example import Batch
from jarilab.inspect.study.model_batches import batch_of


def answer(outputs: Any, batch: Batch) -> Tensor:
    """The number 5 of the last vector of a decoder, or of the first vector of an encoder."""
    for name in ("logits", "last_hidden_state"):
        outputs = getattr(outputs, name, outputs)
    valid = batch.valid.get("target")
    if outputs.shape[1] == 1 or valid is None or outputs.shape[1] != valid.shape[1] or outputs.shape[2] == 32:
        return outputs[:, 0, 5]
    last = torch.arange(valid.shape[1]).mul(valid).amax(1)
    return outputs[torch.arange(len(last)), last, 5]


def model_and_batch(name: str) -> tuple[nn.Module, Batch]:
    if name == "jarilab":
        model = jarilab.EncoderDecoder(
            99, 99, d_model=16, n_heads=2, n_encoder_layers=2, n_decoder_layers=2, encoding="shaw:values=yes", d_ff=24
        )
        keep = architectures.RIGHT.bool()
        sides = ("source", architectures.IDS), ("target", architectures.IDS.flip(1))
        return initialised(model), batch_of(
            tuple(jarilab.Tokens(ids, jarilab.Positions.sequence(7, frame=side), keep) for side, ids in sides)
        )
    kinds = {"Llama": "ForCausalLM", "GPT2": "LMHeadModel", "T5": "ForConditionalGeneration"}
    if name == "ViT":
        model, inputs = architectures.of_images(name)
    else:
        special = {"T5": {"written": True}, "Llama": architectures.GROUPED}.get(name, {})
        model, inputs = architectures.of_text(name, kind=kinds.get(name, "Model"), **special)
    return initialised(model), batch_of(inputs)


NAMES = ("Llama", "GPT2", "Bert", "T5", "ViT", "jarilab")


def row_alone(batch: Batch, row: int) -> Batch:
    """A row of a batch without its padding."""
    valid = {side: each[row] for side, each in batch.valid.items()}

    def cut(value: Any, side: str) -> Any:
        if isinstance(value, jarilab.Tokens):
            ids = value.ids[row : row + 1, valid[side]]
            return jarilab.Tokens(ids, jarilab.Positions.sequence(ids.shape[1], frame=side))
        return value[row : row + 1, valid[side]] if value.ndim == 2 else value[row : row + 1]

    if batch.args:
        return batch_of(tuple(cut(each, side) for each, side in zip(batch.args, ("source", "target"), strict=True)))
    sides = {"decoder_input_ids": "target"}
    return batch_of({name: cut(each, sides.get(name, "source")) for name, each in batch.kwargs.items()})


class OneLayer(nn.Module):
    """Embeddings, one attention, and logits of each position, without norms or a residual."""

    def __init__(self, vocab: int = 9, width: int = 6, heads: int = 1, *, causal: bool = True):
        super().__init__()
        self.heads, self.causal = heads, causal
        self.embed = nn.Embedding(vocab, width)
        self.q, self.k, self.v = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.read = nn.Linear(width, vocab, bias=False)
        initialised(self)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        q, k, v = (each(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for each in (self.q, self.k, self.v))
        z = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.read(z.transpose(1, 2).flatten(2))


def logit(word: int, position: int = -1) -> Any:
    """The logit of a word at a position, as an answer."""
    return lambda outputs, batch: outputs[:, position, word]
