"""Small models of other libraries, with random weights: each a function that gives a model and what to call it with.

Batches are padded, on the side that a model's own generation pads.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

IDS = torch.tensor([[5, 17, 33, 5, 60, 71, 8], [9, 44, 12, 80, 3, 5, 61]])
RIGHT = torch.tensor([[1] * 7, [1] * 5 + [0] * 2])
LEFT = RIGHT.flip(1)
IMAGE = 32

Made = tuple[nn.Module, dict[str, Any]]

SIZES = {
    ("hidden_size", "d_model", "n_embd", "embed_dim", "dim", "emb_dim"): 32,
    ("num_hidden_layers", "n_layer", "num_layers", "n_layers", "encoder_layers", "decoder_layers"): 2,
    ("num_decoder_layers",): 2,
    ("num_attention_heads", "n_head", "num_heads", "n_heads", "encoder_attention_heads", "decoder_attention_heads"): 4,
    ("intermediate_size", "d_ff", "ffn_dim", "encoder_ffn_dim", "decoder_ffn_dim", "n_inner", "hidden_dim"): 64,
    ("vocab_size",): 99,
    ("d_kv", "head_dim"): 8,
    ("image_size",): IMAGE,
    ("patch_size",): 8,
    ("pad_token_id",): 0,
    ("bos_token_id", "eos_token_id", "decoder_start_token_id"): 1,
    ("embedding_size",): 32,
}
"""What is small, by the names that configurations have for it."""


def configured(config: type, **own: Any) -> Any:
    """A small one of this kind. own: what it needs beside."""
    known = _known(config)
    small = {name: size for names, size in SIZES.items() for name in names if name in known}
    return config(**{**small, **own})


def _known(config: type) -> set[str]:
    names = set(inspect.signature(config.__init__).parameters)
    for each in config.__mro__:
        names |= set(getattr(each, "__annotations__", {}))
    return names | set(getattr(config, "attribute_map", {}))


def of_text(name: str, *, mask: Tensor = RIGHT, written: bool = False, kind: str = "Model", **own: Any) -> Made:
    """A model of transformers that reads tokens. written: it has a decoder, too."""
    import transformers

    config = configured(getattr(transformers, f"{name}Config"), **own)
    model = getattr(transformers, f"{name}{kind}")(config)
    inputs: dict[str, Any] = {"input_ids": IDS, "attention_mask": mask}
    if written:
        inputs["decoder_input_ids"] = IDS[:, :4]
    return model.eval(), inputs


def of_images(name: str, *, channels: int = 3, **own: Any) -> Made:
    import transformers

    config = configured(getattr(transformers, f"{name}Config"), **own)
    model = getattr(transformers, f"{name}Model")(config)
    pixels = torch.randn(2, channels, IMAGE, IMAGE, generator=torch.Generator().manual_seed(3))
    return model.eval(), {"pixel_values": pixels}


GROUPED = {"num_key_value_heads": 2}

TEXT: dict[str, dict[str, Any]] = {
    "Bert": {},
    "Roberta": {},
    "XLMRoberta": {},
    "Camembert": {},
    "Albert": {},
    "DistilBert": {},
    "Electra": {},
    "MPNet": {},
    "Ernie": {},
    "ModernBert": {},
    "DebertaV2": {"relative_attention": True, "pos_att_type": ["c2p", "p2c"]},
    "GPT2": {"mask": LEFT},
    "GPTNeo": {"mask": LEFT, "attention_types": [[["global", "local"], 1]]},
    "GPTNeoX": {"mask": LEFT},
    "GPTJ": {"mask": LEFT, "rotary_dim": 4},
    "CodeGen": {"mask": LEFT, "rotary_dim": 4},
    "Bloom": {"mask": LEFT},
    "OPT": {"mask": LEFT, "word_embed_proj_dim": 32},
    "Falcon": {"mask": LEFT},
    "Llama": {"mask": LEFT, **GROUPED},
    "Mistral": {"mask": LEFT, **GROUPED, "sliding_window": 3},
    "Mixtral": {"mask": LEFT, **GROUPED, "num_local_experts": 2},
    "Qwen2": {"mask": LEFT, **GROUPED},
    "Qwen3": {"mask": LEFT, **GROUPED},
    "Gemma": {"mask": LEFT, **GROUPED},
    "Gemma2": {"mask": LEFT, **GROUPED},
    "Phi": {"mask": LEFT},
    "Phi3": {"mask": LEFT, **GROUPED},
    "StableLm": {"mask": LEFT, **GROUPED},
    "Starcoder2": {"mask": LEFT, **GROUPED},
    "Olmo2": {"mask": LEFT, **GROUPED},
    "Cohere": {"mask": LEFT, **GROUPED},
    "XGLM": {"mask": LEFT, "attention_heads": 4, "num_layers": 2},
    "T5": {"written": True},
    "MT5": {"written": True},
    "Bart": {"written": True},
    "MBart": {"written": True},
    "Marian": {"written": True},
    "Pegasus": {"written": True},
    "M2M100": {"written": True},
    "LED": {"written": True, "attention_window": 4},
}
"""Models of text, by transformers' name, and what is special."""

IMAGES: dict[str, dict[str, Any]] = {
    "ViT": {},
    "DeiT": {},
    "Beit": {},
    "Dinov2": {},
    "Swin": {"depths": [2, 2], "num_attention_heads": [2, 4], "num_heads": [2, 4], "window_size": 4, "patch_size": 4},
    "ViTMAE": {},
    "SiglipVision": {},
    "CLIPVision": {},
}


def speech(name: str) -> Made:
    """Whisper reads spectrograms; the others waves."""
    import transformers

    own: dict[str, Any] = {"max_source_positions": 40, "num_mel_bins": 16} if name == "Whisper" else {}
    if name != "Whisper":
        own = {"conv_dim": [16] * 7, "num_conv_pos_embeddings": 8, "num_conv_pos_embedding_groups": 2}
        own["num_feat_extract_layers"] = 7
    config = configured(getattr(transformers, f"{name}Config"), **own)
    model = getattr(transformers, f"{name}Model")(config).eval()
    drawn = torch.Generator().manual_seed(3)
    if name == "Whisper":
        spectrogram = torch.randn(2, 16, 80, generator=drawn)
        return model, {"input_features": spectrogram, "decoder_input_ids": IDS[:, :4]}
    return model, {"input_values": torch.randn(2, 4000, generator=drawn)}


class Written(nn.Module):
    """PyTorch's own Transformer, with the causal mask that its decoder needs."""

    def __init__(self) -> None:
        super().__init__()
        self.model = nn.Transformer(32, 4, 2, 2, 64, batch_first=True)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1])
        padded = ~RIGHT.bool()
        # Its fast path, which it leaves while it is recorded, has other numbers on padding: nobody may read them.
        hidden = {"src_key_padding_mask": padded, "memory_key_padding_mask": padded}
        return self.model(source, target, tgt_mask=mask, tgt_is_causal=True, **hidden)


def pytorch() -> Made:
    drawn = torch.Generator().manual_seed(3)
    source, target = torch.randn(2, 7, 32, generator=drawn), torch.randn(2, 5, 32, generator=drawn)
    return Written().eval(), {"source": source, "target": target}


MODELS: dict[str, Callable[[], Made]] = {
    **{name: (lambda name=name, own=own: of_text(name, **own)) for name, own in TEXT.items()},
    **{name: (lambda name=name, own=own: of_images(name, **own)) for name, own in IMAGES.items()},
    **{name: (lambda name=name: speech(name)) for name in ("Whisper", "Wav2Vec2", "Hubert", "WavLM")},
    "nn.Transformer": pytorch,
}
"""All of them, by name."""
