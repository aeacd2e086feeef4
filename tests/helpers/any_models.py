"""Tiny models of every architecture, each with a batch of four padded rows."""

import torch
import transformers
from torch import Tensor

import jarilab
from jarilab.inspect.study.example import Batch

LENGTHS = (9, 9, 6, 6)
ARCHITECTURES = ("llama", "bert", "gpt2", "t5", "jarilab", "jarilab decoder", "jarilab encoder")
"""llama and jarilab's decoder have grouped queries."""


def padded(ids: Tensor, lengths=LENGTHS) -> Tensor:
    return torch.arange(ids.shape[1]) < torch.tensor(lengths)[:, None]


def hugging_face(name: str) -> tuple[torch.nn.Module, Batch]:
    sizes = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 4}
    sizes |= {"intermediate_size": 24, "max_position_embeddings": 32}
    makers = {
        "llama": (transformers.LlamaForCausalLM, transformers.LlamaConfig(**sizes, num_key_value_heads=2)),
        "bert": (transformers.BertModel, transformers.BertConfig(**sizes)),
        "gpt2": (
            transformers.GPT2LMHeadModel,
            transformers.GPT2Config(vocab_size=40, n_embd=16, n_layer=3, n_head=4, n_positions=32),
        ),
        "t5": (
            transformers.T5ForConditionalGeneration,
            transformers.T5Config(vocab_size=40, d_model=16, d_kv=4, d_ff=24, num_layers=2, num_heads=4),
        ),
    }
    maker, config = makers[name]
    torch.manual_seed(1)
    model = maker(config).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    ids = torch.randint(3, 40, (4, 9), generator=torch.Generator().manual_seed(2))
    keep = padded(ids)
    kwargs = {"input_ids": ids, "attention_mask": keep.long()}
    sides = {"source": (ids, keep), "target": (ids, keep)}
    if name == "t5":
        kwargs |= {"decoder_input_ids": ids.flip(1)[:, :7]}
        sides["target"] = (ids.flip(1)[:, :7], torch.ones(4, 7, dtype=torch.bool))
    valid = {side: each for side, (_, each) in sides.items()}
    tokens = {side: [str(each) for each in range(9)] for side in sides}
    return model, Batch((), kwargs, [tokens] * 4, valid, ids={side: each for side, (each, _) in sides.items()})


def jarilab_model() -> tuple[torch.nn.Module, Batch]:
    torch.manual_seed(1)
    model = jarilab.EncoderDecoder(
        40, 40, d_model=16, n_heads=4, n_encoder_layers=2, n_decoder_layers=2, encoding="rotary", d_ff=24
    ).eval()
    ids = torch.randint(3, 40, (4, 9), generator=torch.Generator().manual_seed(2))
    sides = {"source": ids, "target": ids.flip(1)}
    args = tuple(
        jarilab.Tokens(each, jarilab.Positions.sequence(9, frame=side), padded(each)) for side, each in sides.items()
    )
    valid = {side: padded(each) for side, each in sides.items()}
    tokens = {side: [str(each) for each in range(9)] for side in valid}
    return model, Batch(args, {}, [tokens] * 4, valid, ids=sides)


def jarilab_stack(name: str) -> tuple[torch.nn.Module, Batch]:
    torch.manual_seed(1)
    sizes = {"d_model": 16, "n_heads": 4, "n_kv_heads": 2, "n_layers": 3, "d_ff": 24}
    makers = {"jarilab decoder": (jarilab.LanguageModel, {}), "jarilab encoder": (jarilab.TextEncoder, {"words": True})}
    maker, options = makers[name]
    model = maker(40, **sizes, **options).eval()
    ids = torch.randint(3, 40, (4, 9), generator=torch.Generator().manual_seed(2))
    tokens = jarilab.Tokens(ids, jarilab.Positions.sequence(9), padded(ids))
    sides = ("source", "target")
    names = {side: [str(each) for each in range(9)] for side in sides}
    valid = {side: padded(ids) for side in sides}
    return model, Batch((tokens,), {}, [names] * 4, valid, ids=dict.fromkeys(sides, ids))


def any_model(name: str, dtype: torch.dtype = torch.float32) -> tuple[torch.nn.Module, Batch]:
    """A model with random weights and a batch of rows of `LENGTHS` tokens."""
    if name == "jarilab":
        model, batch = jarilab_model()
    else:
        model, batch = jarilab_stack(name) if name.startswith("jarilab") else hugging_face(name)
    return model.to(dtype), batch
