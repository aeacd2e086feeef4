"""A whole model of transformers as one of jari, by its weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from torch import nn

from jarilab.errors import UserError
from jarilab.huggingface import causal, encoders, translators
from jarilab.huggingface.copying import Copying
from jarilab.huggingface.folder import load

FAMILIES: dict[str, Callable[[Copying], nn.Module]] = {
    "GPT2LMHeadModel": causal.gpt2,
    "GPTNeoXForCausalLM": causal.neox,
    "LlamaForCausalLM": causal.llama,
    "MistralForCausalLM": causal.llama,
    "Qwen2ForCausalLM": causal.llama,
    "T5ForConditionalGeneration": translators.t5,
    "BartForConditionalGeneration": translators.bart,
    "MarianMTModel": translators.marian,
    "BlenderbotForConditionalGeneration": translators.blenderbot,
    "BertModel": encoders.bert,
    "BertForMaskedLM": encoders.bert_of_words,
    "ViTForImageClassification": encoders.vit,
}
"""The class that a folder's weights were written by, and who copies them."""


def from_huggingface(folder: str | Path) -> nn.Module:
    """A model of jari with the weights of a model of transformers, in evaluation: it computes the same.

        model = jarilab.from_huggingface("gpt2")  # a folder on disk, as model.save_pretrained(FOLDER) writes it
        scores_BLV = model(ids_BL)

    GPT-2, GPT-NeoX, LLaMA, Mistral and Qwen 2 become a `LanguageModel`; T5, BART, Marian and Blenderbot an
    `EncoderDecoder`; BERT a `TextEncoder`; ViT a `VisionTransformer`. Dropout is 0. Raises UserError for what is no
    such folder, for other models, and for settings that jari's layers have no option for.
    """
    loaded = load(folder)
    copy = FAMILIES.get(loaded.kind)
    if copy is None:
        raise UserError(
            f"{folder} holds a {loaded.kind}, which cannot be copied: expected one of {', '.join(FAMILIES)}; look at "
            "it as it is, by jarilab.record(model)"
        )
    return copy(Copying(loaded))
