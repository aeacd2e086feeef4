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


def hugging_face(name: str, seed: int = 2) -> tuple[torch.nn.Module, Batch]:
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
    ids = torch.randint(3, 40, (4, 9), generator=torch.Generator().manual_seed(seed))
    keep = padded(ids)
    kwargs = {"input_ids": ids, "attention_mask": keep.long()}
    sides = {"source": (ids, keep), "target": (ids, keep)}
    if name == "t5":
        kwargs |= {"decoder_input_ids": ids.flip(1)[:, :7]}
        sides["target"] = (ids.flip(1)[:, :7], torch.ones(4, 7, dtype=torch.bool))
    valid = {side: each for side, (_, each) in sides.items()}
    tokens = {side: [str(each) for each in range(9)] for side in sides}
    return model, Batch((), kwargs, [tokens] * 4, valid, ids={side: each for side, (each, _) in sides.items()})


def jarilab_model(seed: int = 2) -> tuple[torch.nn.Module, Batch]:
    torch.manual_seed(1)
    model = jarilab.EncoderDecoder(
        40, 40, d_model=16, n_heads=4, n_encoder_layers=2, n_decoder_layers=2, encoding="rotary", d_ff=24
    ).eval()
    ids = torch.randint(3, 40, (4, 9), generator=torch.Generator().manual_seed(seed))
    sides = {"source": ids, "target": ids.flip(1)}
    args = tuple(
        jarilab.Tokens(each, jarilab.Positions.sequence(9, frame=side), padded(each)) for side, each in sides.items()
    )
    valid = {side: padded(each) for side, each in sides.items()}
    tokens = {side: [str(each) for each in range(9)] for side in valid}
    return model, Batch(args, {}, [tokens] * 4, valid, ids=sides)


def jarilab_stack(name: str, seed: int) -> tuple[torch.nn.Module, Batch]:
    torch.manual_seed(1)
    sizes = {"d_model": 16, "n_heads": 4, "n_kv_heads": 2, "n_layers": 3, "d_ff": 24}
    makers = {"jarilab decoder": (jarilab.LanguageModel, {}), "jarilab encoder": (jarilab.TextEncoder, {"words": True})}
    maker, options = makers[name]
    model = maker(40, **sizes, **options).eval()
    ids = torch.randint(3, 40, (4, 9), generator=torch.Generator().manual_seed(seed))
    tokens = jarilab.Tokens(ids, jarilab.Positions.sequence(9), padded(ids))
    sides = ("source", "target")
    names = {side: [str(each) for each in range(9)] for side in sides}
    valid = {side: padded(ids) for side in sides}
    return model, Batch((tokens,), {}, [names] * 4, valid, ids=dict.fromkeys(sides, ids))


def any_model(name: str, dtype: torch.dtype = torch.float32, seed: int = 2) -> tuple[torch.nn.Module, Batch]:
    """A model with random weights, always the same, and a batch of rows of `LENGTHS` tokens. seed: of the tokens."""
    if name == "jarilab":
        model, batch = jarilab_model(seed)
    else:
        model, batch = jarilab_stack(name, seed) if name.startswith("jarilab") else hugging_face(name, seed)
    return model.to(dtype), batch


OUTPUTS = {
    "llama": "model.layers.{layer}.self_attn.o_proj",
    "bert": "encoder.layer.{layer}.attention.output.dense",
    "gpt2": "transformer.h.{layer}.attn.c_proj",
    "t5": "{stack}.block.{layer}.layer.{part}.o",
    "jarilab": "{stack}.layers.{layer}.{part}",
    "jarilab decoder": "{stack}.layers.{layer}.self.attention.out",
    "jarilab encoder": "{stack}.layers.{layer}.attention.out",
}


def output_projection(name: str, model: torch.nn.Module, site: str) -> torch.nn.Module:
    """The module W_O of a site."""
    stack, layer, *kind = site.split(".")
    part = "1.EncDecAttention" if kind == ["cross"] else "0.SelfAttention"
    if name == "jarilab":
        part = {"encoder": "attention.out"}.get(stack, f"{''.join(kind)}_attention.out")
    return model.get_submodule(OUTPUTS[name].format(stack=stack, layer=layer, part=part))
