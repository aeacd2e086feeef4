"""What lies beside an export: the tokenizer or image processor, and a README.md whose example runs without jarilab."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from textwrap import dedent
from typing import Any

from jarilab.core.errors import UserError
from jarilab.core.storage.files import write_text
from jarilab.data.text import SPECIAL
from jarilab.export import image_processor, tokenizer
from jarilab.huggingface.loading import TARGET
from jarilab.models.base import Generates
from jarilab.models.vision import VisionTransformer
from jarilab.runs.loaded import OpenRun

WRITTEN = 20
"""Tokens that the example of a language model writes."""
TITLES = {
    "onnx": ("ONNX, opset {opset}", "numpy onnxruntime"),
    "torch": ("torch.export", "numpy torch"),
    "ctranslate2": ("CTranslate2", "ctranslate2"),
    "huggingface": ("Hugging Face transformers", "transformers torch"),
}
"""The format, and packages of its example."""

TOKENIZERS = """
    import json
    from tokenizers import Tokenizer

    tokenizer, answers = Tokenizer.from_file("tokenizer.json"), Tokenizer.from_file("{answers}tokenizer.json")
    tokenizer.encode_special_tokens = True  # "<eos>" in a text is text
"""
IMAGE = """
    import json
    import numpy as np
    from PIL import Image

    image = Image.open("image.png")  # any image of yours
    if image.mode.startswith("I;16"):  # 16 bits, of which Pillow would cut off all above 255
        image = Image.fromarray((np.asarray(image) >> 8).astype("uint8"))
"""
RUN = {
    "onnx": """
    import numpy as np
    import onnxruntime

    made = json.load(open("jarilab.json", encoding="utf-8"))
    graphs = {part["file"]: onnxruntime.InferenceSession(part["file"]) for part in made["parts"]}

    def run(part, *arrays):
        names = [one["name"] for one in part["inputs"]]
        return graphs[part["file"]].run(part["outputs"], dict(zip(names, arrays)))
""",
    "torch": """
    import numpy as np
    import torch

    made = json.load(open("jarilab.json", encoding="utf-8"))
    graphs = {part["file"]: torch.export.load(part["file"]).module() for part in made["parts"]}

    def run(part, *arrays):
        return [one.detach().numpy() for one in graphs[part["file"]](*map(torch.as_tensor, arrays))]
""",
}
DECODER = """
    *encoder, decoder = made["parts"]
    sizes = {"batch": 1, "before": 0}
    past = [one for one in decoder["inputs"] if one["name"].startswith("past")]
    past = [np.zeros([sizes.get(size, size) for size in one["shape"]], one["dtype"]) for one in past]
"""
EXAMPLES = {
    "graphs, sequence": """
    ids, tokens = np.array([tokenizer.encode({text}).ids]), made["tokens"]
    keep, written, token = np.ones(ids.shape, bool), [], tokens["first"]
    source = run(encoder[0], ids, keep)
    while token != tokens["end"] and len(written) < {longest}:
        scores, *past = run(decoder, np.array([[token]]), keep, *past, *source)
        token = int(scores[0, -1].argmax())
        written.append(token)
    print(answers.decode(written))
""",
    "graphs, continuation": """
    step, written = tokenizer.encode({text}).ids, []
    while len(written) < {longest} and step[0] != made["tokens"]["end"]:
        scores, *past = run(decoder, np.array([step]), np.ones((1, len(step)), bool), *past)
        step = [int(scores[0, -1].argmax())]
        written += step
    print(answers.decode(written))
""",
    "graphs, classes": """
    channels, height, width = made["pixels"]["shape"]
    image = image.convert("L" if channels == 1 else "RGB").resize((width, height), Image.Resampling.BILINEAR)
    pixels = np.asarray(image, "float32").reshape(1, height, width, channels).transpose(0, 3, 1, 2) / 255
    factor, offset = (np.array(made["pixels"][name], "float32").reshape(-1, 1, 1) for name in ("factor", "offset"))
    (scores,) = run(made["parts"][0], pixels * factor + offset)
    print(made["classes"][int(scores[0].argmax())])
""",
    "ctranslate2, sequence": """
    import ctranslate2

    sources, targets = (json.load(open(name, encoding="utf-8")) for name in {vocabularies})
    ids = tokenizer.encode({text}, add_special_tokens=False).ids  # CTranslate2 adds the end
    settings = {{"beam_size": 1, "min_decoding_length": 0, "max_decoding_length": {longest}}}
    (answer,) = ctranslate2.Translator(".").translate_batch([[sources[number] for number in ids]], **settings)
    print(answers.decode([targets.index(name) for name in answer.hypotheses[0]]))
""",
    "huggingface, sequence": """
    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

    tokenizer, answers = AutoTokenizer.from_pretrained("."), AutoTokenizer.from_pretrained("./{answers}")
    written = AutoModelForSeq2SeqLM.from_pretrained(".").generate(**tokenizer([{text}], return_tensors="pt"))
    print(answers.decode(written[0], skip_special_tokens=True))
""",
    "huggingface, continuation": """
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer, model = AutoTokenizer.from_pretrained("."), AutoModelForCausalLM.from_pretrained(".")
    read = tokenizer([{text}], return_tensors="pt")
    written = model.generate(**read, max_new_tokens={longest}, do_sample=False)[0, read["input_ids"].shape[1] :]
    print(tokenizer.decode(written, skip_special_tokens=True))
""",
    "huggingface, classes": """
    from transformers import pipeline

    print(pipeline("image-classification", model=".")(image))
""",
}


def write_companions(loaded: OpenRun, out: Path, to: str, **facts: Any) -> str:
    """Write what reads inputs, and README.md; return a sentence about the former.

    to: the format. facts: further words of its title, such as `opset`.
    """
    title, packages = TITLES[to]
    lines = [
        f"# {title.format(**facts)}",
        f"Written by `jarilab export` from step {loaded.step:,} of a run.",
    ]
    said, file = _write_reader(loaded, out, to)
    if (out / file).is_file():
        packages += " tokenizers" if file == tokenizer.FILE else " pillow"
        lines += [
            f"It has {said}. Run this here, after `pip install {packages}`; it needs no jarilab:",
            f"```python\n{_example(loaded, out, to)}```",
        ]
    else:
        lines.append(f"It has {said}. jarilab.json says what its inputs and outputs are.")
    write_text(out / "README.md", "\n\n".join(lines) + "\n")
    return said


def _write_reader(loaded: OpenRun, out: Path, to: str) -> tuple[str, str]:
    """Write the tokenizer or the image processor; return a sentence, and the file that an example needs."""
    if isinstance(loaded.model, VisionTransformer):
        said = image_processor.write(loaded, out, in_colour=to == "huggingface")
        return said, image_processor.FILE if to == "huggingface" else "jarilab.json"
    if not isinstance(loaded.model, Generates):
        return "no example of images with boxes", ""
    try:
        return tokenizer.write(loaded, out, wrapped=to == "huggingface"), tokenizer.FILE
    except UserError as error:
        if to == "huggingface":
            raise
        return f"no tokenizer.json: {error}", tokenizer.FILE


def example_text(loaded: OpenRun) -> str:
    """An input that the run can read; its data may be missing where it is exported."""
    task: Any = loaded.task
    for text_of in (loaded.example, lambda: "one", lambda: task.write([len(SPECIAL) + 2])):
        with suppress(UserError):
            if task.read(text := text_of()):
                return text
    return "one"


def _example(loaded: OpenRun, out: Path, to: str) -> str:
    is_graph = to in RUN
    model: Any = loaded.model
    if not isinstance(loaded.model, Generates):
        code = RUN.get(to, "") + EXAMPLES["graphs, classes" if is_graph else f"{to}, classes"]
        return dedent(IMAGE + code).lstrip()
    is_pair, task = "source" in model.max_positions(), loaded.task
    code = EXAMPLES[f"{'graphs' if is_graph else to}, {'sequence' if is_pair else 'continuation'}"]
    vocabularies = [f"{side}_vocabulary.json" for side in ("source", "target")]
    values = {
        "text": repr(example_text(loaded)).replace("`", r"\x60"),
        "answers": f"{TARGET}/" if (out / TARGET).exists() else "",
        "longest": task.longest["target"] if is_pair or task.one_sequence else WRITTEN,
        "vocabularies": [
            name if (out / name).exists() else "shared_vocabulary.json" for name in vocabularies
        ],
    }
    before = "" if to == "huggingface" else TOKENIZERS.format(**values)
    graph = RUN[to] + DECODER if is_graph else ""
    return dedent(before + graph + code.format(**values)).lstrip()
