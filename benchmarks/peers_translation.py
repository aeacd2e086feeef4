"""The recipes of others for translation, as `peers.py` has them: JoeyNMT, and Marian with transformers' trainer."""

from __future__ import annotations

import contextlib
import importlib
from pathlib import Path
from typing import Any

import torch
import translation
from peers import Budget, EnoughError, Tell, Watch
from torch import Tensor

from jarilab.data.text import END, PADDING, text_files
from jarilab.data.text.pairs import PairCounts
from jarilab.data.text.pairs import pairs as read_pairs
from jarilab.tasks.translation import Translation

SIZE = translation.Size(vocab_size=4000, d_model=128, n_heads=4, d_ff=512, n_layers=2, dropout=0.1)
LOOKS = 20
"""To translate the validation set takes long beside the steps between."""

JOEY: dict[str, Any] = {
    "name": "multi30k",
    "use_cuda": False,
    "testing": {"beam_size": 1, "eval_metrics": ["bleu"], "batch_size": 100, "batch_type": "sentence",
                "max_output_length": 60, "sacrebleu_cfg": {"tokenize": "13a"}},
    "training": {
        "optimizer": "adam", "normalization": "tokens", "adam_betas": [0.9, 0.999], "scheduling": "plateau",
        "patience": 5, "decrease_factor": 0.7, "loss": "crossentropy", "learning_rate": 3e-4,
        "learning_rate_min": 1e-8, "weight_decay": 0.0, "label_smoothing": 0.1, "batch_size": 4096,
        "batch_type": "token", "early_stopping_metric": "bleu", "epochs": 100, "validation_freq": 100,
        "logging_freq": 100, "shuffle": True, "print_valid_sents": [], "keep_best_ckpts": 1,
    },
}  # fmt: skip
"""`configs/transformer_iwslt14_deen_bpe.yaml` of JoeyNMT 2, but for the sizes and what is told of the way."""


def joey_side() -> dict[str, Any]:
    embeddings = {"embedding_dim": SIZE.d_model, "scale": True, "dropout": 0.0}
    return {
        "type": "transformer", "num_layers": SIZE.n_layers, "num_heads": SIZE.n_heads, "embeddings": embeddings,
        "dropout": 0.3, "hidden_size": SIZE.d_model, "ff_size": SIZE.d_ff,
    }  # fmt: skip


def joeynmt(data: Path, out: Path, seed: int, budget: Budget, tell: Tell) -> None:
    """Its own trainer, data and greedy search; a vocabulary of 4,000 learned by SentencePiece, as its scripts do."""
    training, vocabulary = importlib.import_module("joeynmt.training"), importlib.import_module("sentencepiece")
    out.mkdir(parents=True, exist_ok=True)
    for part in ("train", "val"):
        for language in ("de", "en"):
            lines = text_files.lines(data / "multi30k" / f"{part}.{language}.gz")
            (out / f"{part}.{language}").write_text("".join(f"{line.strip()}\n" for line in lines))
    vocabulary.SentencePieceTrainer.train(
        input=[str(out / "train.de"), str(out / "train.en")], model_prefix=str(out / "joint"),
        vocab_size=SIZE.vocab_size, character_coverage=1.0, unk_id=0, pad_id=1, bos_id=2, eos_id=3,
        unk_piece="<unk>", pad_piece="<pad>", bos_piece="<s>", eos_piece="</s>", minloglevel=2,
    )  # fmt: skip
    pieces = [line.split("\t")[0] for line in (out / "joint.vocab").read_text().splitlines()]
    (out / "joint.txt").write_text("".join(f"{piece}\n" for piece in pieces))
    side = {"level": "bpe", "tokenizer_type": "sentencepiece", "voc_file": str(out / "joint.txt"), "lowercase": False,
            "max_length": 128, "tokenizer_cfg": {"model_file": str(out / "joint.model")}}  # fmt: skip
    sides = {"src": {"lang": "de", **side}, "trg": {"lang": "en", **side}}
    updates = {"max_updates": max(2, int(budget.share * 10_000))}
    if budget.share < 1:
        updates |= {"validation_freq": 1, "logging_freq": 1}
    config = {
        **JOEY,
        "model_dir": str(out / "model"),
        "random_seed": seed,
        "data": {"train": str(out / "train"), "dev": str(out / "val"), "sample_dev_subset": 200, **sides},
        "training": {**JOEY["training"], **updates},
        "model": {
            "initializer": "xavier_uniform", "embed_initializer": "xavier_uniform", "embed_init_gain": 1.0,
            "init_gain": 1.0, "bias_initializer": "zeros", "tied_embeddings": True, "tied_softmax": True,
            "encoder": joey_side(), "decoder": joey_side(),
        },
    }  # fmt: skip
    (out / "model").mkdir(exist_ok=True)
    watch = Watch(budget, tell)

    class Watched(training.TrainManager):
        def _validate(self, valid_data: Any) -> None:
            watch.look(lambda: self._scored(valid_data))

        def _scored(self, valid_data: Any) -> float:
            super()._validate(valid_data)
            return self.bleu

        def _add_report(self, valid_scores: dict[str, float], new_best: bool) -> None:
            super()._add_report(valid_scores=valid_scores, new_best=new_best)
            self.bleu = valid_scores["bleu"]

    def plateau(verbose: bool, **options: Any) -> torch.optim.lr_scheduler.ReduceLROnPlateau:
        """As JoeyNMT 2.3 asks for it; PyTorch has no `verbose` any more."""
        return torch.optim.lr_scheduler.ReduceLROnPlateau(**options)

    setattr(importlib.import_module("joeynmt.builders"), "ReduceLROnPlateau", plateau)  # noqa: B010
    setattr(training, "TrainManager", Watched)  # noqa: B010
    with contextlib.suppress(EnoughError):
        training.train(0, 1, config, skip_test=True)


def marian(data: Path, out: Path, seed: int, budget: Budget, tell: Tell) -> None:
    """transformers' own trainer, with sentences of like length in a batch, and its greedy search."""
    library: Any = importlib.import_module("transformers")
    train, held_out = (
        tuple(str(data / "multi30k" / f"{part}.{language}.gz") for language in ("de", "en"))
        for part in ("train", "val")
    )
    task = Translation(train=train, valid=held_out, vocab_size=SIZE.vocab_size)
    task.prepare()
    source, target = task.tokenizers
    pairs = read_pairs([[Path(path) for path in train]], PairCounts())
    # Every line ends with its end token: without it the model learns no end, and each answer is as long as it may be.
    examples = [
        {"input_ids": [*source.encode(one), END], "labels": [*target.encode(other), END]} for one, other in pairs
    ]
    texts, right = zip(*task.held_out, strict=True)
    library.set_seed(seed)
    model = translation.Marian(SIZE).model
    bleu = importlib.import_module("sacrebleu.metrics.bleu").BLEU()
    watch = Watch(budget, tell)

    def padded(rows: list[list[int]], value: int) -> Tensor:
        longest = max(map(len, rows))
        return torch.tensor([row + [value] * (longest - len(row)) for row in rows])

    def collate(chosen: list[dict[str, list[int]]]) -> dict[str, Tensor]:
        ids_BL = padded([each["input_ids"] for each in chosen], PADDING)
        labels_BL = padded([each["labels"] for each in chosen], -100)
        inputs = {"input_ids": ids_BL, "attention_mask": ids_BL != PADDING, "labels": labels_BL}
        return inputs | {"decoder_input_ids": model.prepare_decoder_input_ids_from_labels(labels=labels_BL)}

    @torch.no_grad()
    def measure() -> float:
        model.eval()
        answers: list[str] = []
        for first in range(0, len(texts), 100):
            ids_BL = padded([[*source.encode(text), END] for text in texts[first : first + 100]], PADDING)
            written = model.generate(
                input_ids=ids_BL, attention_mask=ids_BL != PADDING, num_beams=1, do_sample=False, max_new_tokens=60
            )
            answers += [target.decode(row[1:]) for row in written.tolist()]
        model.train()
        return bleu.corpus_score(answers, [list(right)]).score

    class Looks(library.TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
            if state.global_step % every == 0:
                watch.look(measure)

    passes = 8
    count = max(2, int(budget.share * passes * len(examples) // 128))
    every = max(1, count // LOOKS)
    arguments = library.Seq2SeqTrainingArguments(
        output_dir=str(out), use_cpu=True, seed=seed, per_device_train_batch_size=128, max_steps=count,
        learning_rate=5e-4, lr_scheduler_type="linear", warmup_steps=count // 5, adam_beta2=0.98,
        label_smoothing_factor=0.1, train_sampling_strategy="group_by_length", save_strategy="no", report_to=[],
        logging_strategy="no", disable_tqdm=True, dataloader_num_workers=0,
    )  # fmt: skip
    trainer = library.Seq2SeqTrainer(
        model=model, args=arguments, train_dataset=examples, data_collator=collate, callbacks=[Looks()]
    )
    with contextlib.suppress(EnoughError):
        trainer.train()
