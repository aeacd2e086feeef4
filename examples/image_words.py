"""Where in the image does a vision-language model look, word by word: LLaVA and models that read images as tokens.

    python examples/image_words.py

The model is a small LLaVA with random weights, so its maps mean nothing: they show the steps. With a trained model, use
`from_pretrained` and its processor. For Qwen-VL the grid is `image_grid_thw[0, 1:] // spatial_merge_size`.
"""

import sys
from typing import Any

import torch
from transformers import (
    CLIPVisionConfig,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
)

import jarilab
from jarilab.inspect.figures.images import draw_over_image

IMAGE_TOKEN, GRID = 90, (4, 4)


def small_model() -> Any:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
    }
    text = LlamaConfig(vocab_size=99, num_key_value_heads=2, pad_token_id=0, **sizes)
    vision = CLIPVisionConfig(image_size=32, patch_size=8, projection_dim=32, **sizes)
    config = LlavaConfig(
        vision_config=vision, text_config=text, image_token_index=IMAGE_TOKEN, image_seq_length=16
    )
    return LlavaForConditionalGeneration(config).eval()


def word_maps(
    tape: jarilab.Tape, ids: torch.Tensor, prompt: int, grid: tuple[int, int]
) -> torch.Tensor:
    """The weights on the image while each word was written, mean over layers and heads: `(words, rows, columns)`.

    tape: of one generation, merged. ids: `(L,)` of the prompt and the answer. prompt: how many are the prompt's.
    """
    # The row of a token predicts the next one.
    rows = slice(prompt - 1, len(ids) - 1)
    weights = torch.stack([tape.weights(site)[0, :, rows] for site in tape.sites_of("decoder")])
    is_image = ids[:-1] == IMAGE_TOKEN
    return weights.mean((0, 1))[:, is_image].unflatten(1, grid)


def main(figure: str = "image_words.png") -> tuple[torch.Tensor, torch.Tensor]:
    model = small_model()
    pixels = torch.zeros(1, 3, 32, 32)
    pixels[..., 8:16, 16:24] = 1.0  # the patch in row 1, column 2
    prompt = torch.tensor([[1, 5, *[IMAGE_TOKEN] * 16, 7, 8, 9]])
    with jarilab.record(model) as tape:
        answer = model.generate(
            input_ids=prompt, pixel_values=pixels, max_new_tokens=4, do_sample=False
        )
    maps = word_maps(tape.merged_steps(), answer[0], prompt.shape[1], GRID)
    words = [f"word {token}" for token in answer[0, prompt.shape[1] :].tolist()]
    for word, share in zip(words, maps.sum((1, 2)).tolist(), strict=True):
        print(f"{word}: {share:.2f} of its weight is on the image")
    # Patches that every word looks at, such as those at the border, say little about one word.
    relative = maps / maps.mean(0)
    draw_over_image(
        pixels[0].permute(1, 2, 0).numpy(), (relative / relative.max()).numpy(), words
    ).save(figure)
    print(f"{figure}: each word, relative to the mean of all words")
    return answer, maps


if __name__ == "__main__":
    main(*sys.argv[1:2])
