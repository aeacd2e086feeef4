"""Folders of small Hugging Face models with random weights and tokenizers of their own, as `save_pretrained` writes."""

from __future__ import annotations

from pathlib import Path

import torch

SENTENCE = "The animal didn't cross the street because it was too tired"
WORDS = ["The", "animal", "didn't", "cross", "the", "street", "because", "it", "was", "too", "tired", "wide"]
FELT = {"vocab_size": 17, "initializer_range": 0.4}
"""Of a model whose words all have names, and whose heads each change what it says."""
SMALL = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "vocab_size": 24,
    "max_position_embeddings": 64,
}
BOTH = {
    **{"encoder_attention_heads": 4, "encoder_layers": 2, "encoder_ffn_dim": 64},
    **{"decoder_attention_heads": 4, "decoder_layers": 2, "decoder_ffn_dim": 64},
}
IDS = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3, "decoder_start_token_id": 2}


def tokenizer_of(words: list[str] = WORDS):
    """Whole words, with BERT's special tokens around a text."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    vocabulary = {word: number for number, word in enumerate([*special, *words])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    ends = [("[CLS]", 2), ("[SEP]", 3)]
    pair = "[CLS] $A [SEP] $B:1 [SEP]:1"
    tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", pair=pair, special_tokens=ends)
    named = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, mask_token="[MASK]", **named)


def bert(folder: Path, seed: int = 0, **settings) -> Path:
    return saved(folder, "Bert", "ForMaskedLM", seed, **settings)


def saved(folder: Path, family: str, head: str, seed: int = 0, **settings) -> Path:
    """A small model of a family of encoders or decoders, with this head."""
    import transformers

    torch.manual_seed(seed)
    config = getattr(transformers, f"{family}Config")(**{**SMALL, **settings})
    getattr(transformers, f"{family}{head}")(config).save_pretrained(folder)
    tokenizer_of().save_pretrained(folder)
    return folder


def llama(folder: Path, seed: int = 0, **settings) -> Path:
    return saved(folder, "Llama", "ForCausalLM", seed, num_key_value_heads=2, **settings)


def bart(folder: Path, **settings) -> Path:
    from transformers import BartConfig, BartForConditionalGeneration

    torch.manual_seed(0)
    sizes = {"d_model": 32, "vocab_size": 24, "max_position_embeddings": 64, "forced_eos_token_id": 3, **BOTH, **IDS}
    config = BartConfig(**{**sizes, **settings})
    BartForConditionalGeneration(config).save_pretrained(folder)
    tokenizer_of().save_pretrained(folder)
    return folder


def marian(folder: Path, **settings) -> Path:
    from transformers import MarianConfig, MarianMTModel

    torch.manual_seed(0)
    sizes = {"d_model": 32, "vocab_size": 24, "max_position_embeddings": 64, **BOTH, **IDS}
    MarianMTModel(MarianConfig(**{**sizes, **settings})).save_pretrained(folder)
    tokenizer_of().save_pretrained(folder)
    return folder


def t5(folder: Path, **settings) -> Path:
    from transformers import T5Config, T5ForConditionalGeneration

    torch.manual_seed(0)
    sizes = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4, "vocab_size": 24}
    T5ForConditionalGeneration(T5Config(**{**sizes, **IDS, **settings})).save_pretrained(folder)
    tokenizer_of().save_pretrained(folder)
    return folder


def led(folder: Path, **settings) -> Path:
    """An encoder that pads its source to its window, so that its keys are more than those of the decoder."""
    from transformers import LEDConfig, LEDForConditionalGeneration

    torch.manual_seed(0)
    lengths = {"max_encoder_position_embeddings": 64, "max_decoder_position_embeddings": 64, "attention_window": 4}
    config = LEDConfig(**{"d_model": 32, "vocab_size": 24, **lengths, **BOTH, **IDS, **settings})
    LEDForConditionalGeneration(config).save_pretrained(folder)
    tokenizer_of().save_pretrained(folder)
    return folder


def vit(folder: Path) -> Path:
    from transformers import ViTConfig, ViTForImageClassification, ViTImageProcessorPil

    torch.manual_seed(0)
    sizes = {name: size for name, size in SMALL.items() if name not in ("vocab_size", "max_position_embeddings")}
    classes = {"id2label": {0: "cat", 1: "dog"}, "label2id": {"cat": 0, "dog": 1}}
    config = ViTConfig(**sizes, image_size=32, patch_size=8, **classes)
    ViTForImageClassification(config).save_pretrained(folder)
    ViTImageProcessorPil(size={"height": 32, "width": 32}).save_pretrained(folder)
    return folder


def whisper(folder: Path) -> Path:
    from transformers import WhisperConfig, WhisperFeatureExtractor, WhisperForConditionalGeneration

    torch.manual_seed(0)
    frames = {"num_mel_bins": 16, "max_source_positions": 50, "max_target_positions": 64}
    free = {"suppress_tokens": [], "begin_suppress_tokens": []}
    config = WhisperConfig(d_model=32, vocab_size=24, **frames, **BOTH, **IDS, **free)
    WhisperForConditionalGeneration(config).save_pretrained(folder)
    WhisperFeatureExtractor(feature_size=16, chunk_length=1).save_pretrained(folder)
    tokenizer_of().save_pretrained(folder)
    return folder


def writer(folder: Path, make, seed: int = 0, **settings) -> Path:
    """A model of `make` that writes different tokens, with parameters that a page holds exactly.

    settings: of generation.
    """
    import transformers

    make(folder)
    config = transformers.AutoConfig.from_pretrained(folder)
    model = getattr(transformers, config.architectures[0]).from_pretrained(folder)
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.5 * torch.randn_like(parameter) * (parameter.ndim > 1)
    for name, value in settings.items():
        setattr(model.generation_config, name, value)
    model.generation_config._from_model_config = False  # otherwise Whisper reads its configuration only
    model.save_pretrained(folder)
    return rounded(folder)


def rounded(folder: Path) -> Path:
    """The folder with parameters that a page holds exactly."""
    import transformers

    from jarilab.pages.program.program import halved

    (kind,) = transformers.AutoConfig.from_pretrained(folder).architectures
    model = getattr(transformers, kind).from_pretrained(folder)
    halved(model)
    model.save_pretrained(folder)
    return folder


def wav2vec2(folder: Path) -> Path:
    from transformers import Wav2Vec2Config, Wav2Vec2FeatureExtractor, Wav2Vec2Model

    torch.manual_seed(0)
    sizes = {name: size for name, size in SMALL.items() if name != "max_position_embeddings"}
    layers = {"conv_dim": (8, 8), "conv_stride": (40, 8), "conv_kernel": (40, 8), "num_feat_extract_layers": 2}
    positions = {"num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2}
    Wav2Vec2Model(Wav2Vec2Config(**sizes, **layers, **positions)).save_pretrained(folder)
    Wav2Vec2FeatureExtractor(sampling_rate=8000).save_pretrained(folder)
    return folder


def swin(folder: Path) -> Path:
    """16 x 16 patches in windows of 4 x 4, moved by 2 in every other layer, then 8 x 8."""
    from transformers import SwinConfig, SwinForImageClassification, ViTImageProcessorPil

    torch.manual_seed(0)
    config = SwinConfig(
        image_size=64, patch_size=4, embed_dim=8, depths=[2, 1], num_heads=[2, 2], window_size=4, num_labels=3
    )
    SwinForImageClassification(config).save_pretrained(folder)
    ViTImageProcessorPil(size={"height": 64, "width": 64}).save_pretrained(folder)
    return folder


def byte_tokenizer():
    """Bytes by the letters of GPT-2, with one piece of a blank and the first byte of most Korean syllables."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: number for number, letter in enumerate([*letters, "Ġí"])}
    tokenizer = Tokenizer(models.BPE(vocabulary, [("Ġ", "í")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def gpt2(folder: Path, **settings) -> Path:
    """Reads bytes."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    sizes = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "vocab_size": 260}
    GPT2LMHeadModel(GPT2Config(**{**sizes, **settings})).save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder


def llava(folder: Path, family: str = "Llava", **settings) -> Path:
    """CLIP's vision model under LLaMA, with a processor that puts a token for each patch of 8 x 8 pixels."""
    import transformers
    from transformers import CLIPImageProcessorPil, CLIPVisionConfig, LlamaConfig, LlavaProcessor

    torch.manual_seed(0)
    tokenizer = tokenizer_of(["what", "is", "it", "cat", "dog"])
    tokenizer.add_special_tokens({"additional_special_tokens": ["<image>"]})
    sizes = {
        name: SMALL[name] for name in ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
    }
    layers = {"vision_feature_layers": [-2, -1]} if family == "VipLlava" else {}
    config = getattr(transformers, f"{family}Config")(
        vision_config=CLIPVisionConfig(**sizes, image_size=32, patch_size=8, initializer_range=0.4),
        text_config=LlamaConfig(
            **{**SMALL, "vocab_size": 11, "pad_token_id": 0, "initializer_range": 0.4, **settings},
            num_key_value_heads=2,
        ),
        image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
        **layers,
    )
    getattr(transformers, f"{family}ForConditionalGeneration")(config).save_pretrained(folder)
    images = CLIPImageProcessorPil(size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32})
    own = {"patch_size": 8, "vision_feature_select_strategy": "default", "num_additional_image_tokens": 1}
    LlavaProcessor(image_processor=images, tokenizer=tokenizer, **own).save_pretrained(folder)
    return folder
