"""When is each word spoken, and which heads know it: the cross-attention of Whisper, beams included.

    python examples/words_to_time.py

The model is a small Whisper with random weights, so its times mean nothing: they show the steps. With a trained model,
use `from_pretrained`, real sound, and the heads of `model.generation_config.alignment_heads`, or those that are ranked
first here.
"""

from typing import Any

import torch
from transformers import WhisperConfig, WhisperForConditionalGeneration
from transformers.generation.utils import GenerationMixin

import jarilab
from jarilab.inspect.fields.speech import TimedWord, alignment_scores, words_to_time

PROMPT = [3, 5]
"""The tokens before the text, such as the language."""


def small_model() -> Any:
    torch.manual_seed(0)
    config = WhisperConfig(
        vocab_size=60, num_mel_bins=8, d_model=32, encoder_layers=1, decoder_layers=2, encoder_attention_heads=4,
        decoder_attention_heads=4, max_source_positions=50, pad_token_id=0, bos_token_id=1, eos_token_id=2,
        decoder_start_token_id=3,
    )  # fmt: skip
    model = WhisperForConditionalGeneration(config).eval()
    for parameter in model.parameters():
        parameter.data *= 4  # else all maps of random weights are nearly even
    return model


def recorded(model: Any, sound: torch.Tensor) -> tuple[list[list[int]], jarilab.Tape]:
    """The IDs of each hypothesis, and a tape whose row k is hypothesis k. sound: spectrograms `(B, bins, frames)`."""
    # Whisper's own `generate` cuts long sound into parts; this one makes one generation.
    generate: Any = vars(GenerationMixin)["generate"]
    with jarilab.record(model) as tape:
        answer = generate(
            model,
            input_features=sound,
            decoder_input_ids=torch.tensor([PROMPT] * len(sound)),
            num_beams=3,
            num_return_sequences=2,
            max_new_tokens=10,
            return_dict_in_generate=True,
            output_scores=True,
            suppress_tokens=None,
            begin_suppress_tokens=None,
        )
    return answer.sequences.tolist(), tape.merged_steps(answer.beam_indices)


def ranked_heads(tape: jarilab.Tape) -> list[tuple[float, tuple[str, int]]]:
    """The heads that follow the speech, best first: the weight on their path above that of rows in random order."""
    ranked = []
    for site in tape.sites_of("cross"):
        scored = alignment_scores(tape.weights(site)[0, :, len(PROMPT) :])
        above = (scored.value - scored.chance).tolist()
        ranked += [(value, (site, head)) for head, value in enumerate(above)]
    return sorted(ranked, reverse=True)


def main() -> list[list[TimedWord]]:
    model = small_model()
    sound = torch.randn(1, 8, 100, generator=torch.Generator().manual_seed(3))
    hypotheses, tape = recorded(model, sound)
    ranked = ranked_heads(tape.row(0))
    for above, (site, head) in ranked[:3]:
        print(f"{site} head {head}: {above:.2f} above chance")
    best = [head for _, head in ranked[:2]]
    timed = []
    for row, ids in enumerate(hypotheses):
        tokens = [f"t{token}" for token in ids]
        timed.append(words_to_time(tape.row(row), tokens, best, prompt=len(PROMPT)))
        words = "  ".join(f"{word.name} {word.start:.2f}-{word.end:.2f}" for word in timed[-1])
        print(f"hypothesis {row}: {words}")
    return timed


if __name__ == "__main__":
    main()
