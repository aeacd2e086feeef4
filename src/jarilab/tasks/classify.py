"""Classes of texts, and of pairs of texts."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, final

import numpy as np
import torch
from annotated_types import Ge, Gt, Le, Len, Lt

from jarilab.core.errors import UserError, counted
from jarilab.core.options import check_fields
from jarilab.core.shapes import Int, Tensor
from jarilab.core.storage.files import read_json
from jarilab.data.finding import Finding, overlap_severity, share
from jarilab.data.text import END, FIRST, PADDING, store, text_files
from jarilab.data.text.checks import find_unknown, lines_of, quantiles
from jarilab.data.text.labelled_texts import LabelledTexts, Texts, read_labelled_texts, role_pairs
from jarilab.data.text.scan import normal
from jarilab.data.text.tokenizers import Tokenizer, UnknownPieces, unknown_notice
from jarilab.positions.coordinates import Tokens
from jarilab.tasks.base import Batch, full_names, registry, right_padded
from jarilab.tasks.ceiling import bag_ceiling
from jarilab.tasks.labels import LabelTask

SHOWN = 4  # sample inputs
SHOWN_CLASSES = 10  # of a check
_FACTS = {"classes": Annotated[list[str], Len(1, 1_000_000)], "pairs": bool}
_FILES = ("vocabulary.json", "labels.json")


@final
class Labelled(store.Encoded):
    """Texts as token ids, with their classes. texts: the originals."""

    def __init__(self, rows: Sequence[list[int]], labels: Sequence[int], texts: Sequence[Texts]):
        offsets = np.cumsum([0, *map(len, rows)])
        super().__init__(np.concatenate([np.array(row) for row in rows]), offsets)
        self.labels, self.texts = torch.tensor(labels), texts


@registry.register("classify")
@final
class Classify(LabelTask):
    """Classify texts: a TSV or CSV of label and text, or a folder with a folder of .txt files for each class.

    train: file or folder of labelled texts. Without it, jarilab generates pairs of sentences: does the second say who
    did what to whom as the first? columns: columns of a TSV or CSV for label and text, or both texts, by number or
    title; recognised by default. pairs: each label has two texts, such as text_a and text_b. valid: held-out data of
    the same kind. Without it, a share of `train` is held out, chosen by content. tokenizer: bpe (byte-level, no unknown
    tokens), unigram, words or characters; or a file: a tokenizer.json, a SentencePiece model, or the folder of a run or
    of transformers. vocab_size: tokens of the tokenizer. lowercase: convert the text to lower case. byte_fallback:
    spell unknown words and characters in bytes, as bpe and unigram always do. longest: maximal tokens of a text; longer
    ones are cut and counted. held_out: share of the texts to hold out if `valid` is not given.
    """

    predictor = "text_classes"
    usual_model = "text_encoder"
    model_arguments = ("vocab_size", "classes")

    def __init__(
        self,
        *,
        train: str = "",
        columns: tuple[str, ...] = (),
        pairs: bool = False,
        valid: str = "",
        tokenizer: str = "bpe",
        vocab_size: Annotated[int, Ge(1), Le(1_000_000)] = 4000,
        lowercase: bool = False,
        byte_fallback: bool = False,
        longest: Annotated[int, Ge(1), Le(100_000)] = 128,
        held_out: Annotated[float, Gt(0), Lt(1)] = 0.1,
    ):
        self.train, self.valid, self.columns = train, valid, tuple(columns)
        self.tokenizer, self.vocab_size = tokenizer, vocab_size
        self.form = {"lowercase": lowercase, "byte_fallback": byte_fallback}
        self.share, self._longest = held_out, longest
        self._facts: dict[str, Any] = {"classes": [], "pairs": pairs or not train}
        self._tokenizer: Tokenizer | None = None
        self._training: Labelled | None = None
        self._held_out: Labelled | None = None
        self._is_causal = False
        self._findings: list[Finding] = []
        self._held_out_findings: list[Finding] = []

    @classmethod
    def defaults(cls, model: str) -> Mapping[str, Any]:
        training = {"examples": 100_000, "batch_size": 64, "lr": 3e-3, "evaluations": 10}
        options = {"d_model": 64, "n_heads": 4, "n_layers": 2, "norm": "pre"}
        return full_names(training=training, model=options)

    # Its data -------------------------------------------------------------------------------------------------------

    def prepare(self) -> None:
        training, held_out = self._read()
        texts = [text for each in training.texts for text in each]
        self._tokenizer = store.tokenizer_of(texts, self.tokenizer, self.vocab_size, **self.form)
        self._facts["classes"] = sorted(set(training.labels))
        if len(self.classes) < 2:
            raise UserError(
                f"{self.train}: expected two classes or more among the training texts, got {self.classes[0]!r} alone; "
                "add texts of another class, or name the columns of label and text with --columns"
            )
        self._training, self._findings = self._encoded(training, self.train)
        self._held_out, self._held_out_findings = self._encoded(held_out, self.valid or self.train)
        self._held_out_findings += _overlap(held_out, training, self.valid)

    def check(self) -> list[Finding]:
        """Return the texts of each class, their lengths and unknown tokens, and what training says of them."""
        self.prepare()
        assert self._training is not None
        assert self._held_out is not None
        findings = []
        for name, texts in (("training", self._training), ("held out", self._held_out)):
            counts = torch.bincount(texts.labels, minlength=len(self.classes)).tolist()
            largest = sorted(zip(counts, self.classes, strict=True), reverse=True)
            listed = ", ".join(f"{label} {count:,}" for count, label in largest[:SHOWN_CLASSES])
            more = "" if len(largest) <= SHOWN_CLASSES else ", ..."
            text = f"{name}: {counted(len(texts.texts), 'texts')}; {listed}{more}"
            findings.append(Finding("note", "classes", text))
            lengths = np.array([sum(map(len, each)) for each in texts.texts])
            findings.append(
                Finding("note", "characters", f"{name}: {quantiles(lengths)} characters")
            )
            every = ([text] for each in texts.texts for text in each)
            findings.append(find_unknown(UnknownPieces.of(every, self._known), name))
        return list(dict.fromkeys([*findings, *self._findings, *self._held_out_findings]))

    def _read(self) -> tuple[LabelledTexts, LabelledTexts]:
        """Return training and held-out texts. Raises UserError."""
        if not self.train:
            if self.valid or self.columns:
                raise UserError(
                    "--train names no texts; write --train FILE, a TSV or CSV of label and text"
                )
            return role_pairs(self.share)
        texts = self._read_file(self.train)
        if self.valid:
            return texts, self._read_file(self.valid)
        training, held_out = texts.split(self.share)
        if not training.texts or not held_out.texts:
            raise UserError(
                f"{self.train}: {counted(len(texts.texts), 'texts', 'are')} too few to hold some out; give held-out "
                "ones with --valid"
            )
        return training, held_out

    def _read_file(self, path: str) -> LabelledTexts:
        return read_labelled_texts(Path(path), self.columns, pairs=self._facts["pairs"])

    def _encoded(self, texts: LabelledTexts, path: str) -> tuple[Labelled, list[Finding]]:
        """Return texts as tokens, and what to say about them. Raises UserError for a class without training texts."""
        numbers = {name: number for number, name in enumerate(self.classes)}
        missing = sorted(set(texts.labels) - set(numbers))
        if missing and path == self.train:
            raise UserError(
                f"{path}: expected training texts of each class, got {missing[0]!r}, whose texts are all held out; add "
                "texts of it, leave it out, or name held-out texts with --valid"
            )
        if missing:
            raise UserError(
                f"{path}: expected the classes {', '.join(self.classes[:10])}, got {missing[0]!r}, which no training "
                "text has; add training texts of it, or leave it out"
            )
        rows, cuts = zip(
            *(self._row(each, self._known.encode) for each in texts.texts), strict=True
        )
        findings = list(texts.findings)
        if cut := sum(cuts):
            cut_texts = share(cut, len(rows), "texts", "are")
            text = f"{path}: {cut_texts} longer than {self._longest} tokens and cut"
            findings.append(Finding("warning", "tokens", text, "--longest keeps more"))
        every = ([text] for each in texts.texts for text in each)
        lines = unknown_notice(path, UnknownPieces.of(every, self._known).share)
        findings += (Finding("warning", "unknown", line) for line in lines)
        return Labelled(rows, [numbers[label] for label in texts.labels], texts.texts), findings

    def _row(self, texts: Texts, encode: Callable[[str], list[int]]) -> tuple[list[int], bool]:
        """Return the first token and each text with an end, and whether a text was cut."""
        parts = [encode(text) for text in texts]
        row = [FIRST]
        for part in parts:
            row += [*part[: self._longest], END]
        return row, max(map(len, parts)) > self._longest

    def artifacts(self) -> dict[str, bytes]:
        facts = json.dumps(self._facts, ensure_ascii=False, indent=1)
        return dict(
            zip(_FILES, (self._known.to_json().encode(), f"{facts}\n".encode()), strict=True)
        )

    def restore(self, folder: Path) -> None:
        self._tokenizer = Tokenizer.read(folder / _FILES[0])
        self._facts = read_json(folder / _FILES[1])
        check_fields(str(folder / _FILES[1]), _FACTS, self._facts)

    def hold_out(self, paths: Sequence[str]) -> None:
        if len(paths) != 1:
            raise UserError(f"--data expects one TSV, CSV or folder, got {len(paths)}; give one")
        measured = self._read_file(paths[0])
        self._held_out, self._held_out_findings = self._encoded(measured, paths[0])
        if self.train and not Path(self.train).exists():
            notice = (
                f"whether data are also among the training texts is not known: {self.train} is gone"
            )
            self._held_out_findings.append(Finding("note", "overlap", notice))
        else:
            self._held_out_findings += _overlap(measured, self._read()[0], paths[0])

    @property
    def held_out_of(self) -> tuple[str, ...]:
        return () if self.valid or not self.train else (self.train,)

    @property
    def held_out(self) -> Labelled:
        if self._held_out is None:
            self._held_out, self._held_out_findings = self._encoded(
                self._read()[1], self.valid or self.train
            )
        return self._held_out

    @property
    def _known(self) -> Tokenizer:
        assert self._tokenizer is not None, "prepare or restore comes first"
        return self._tokenizer

    @property
    def _trained(self) -> Labelled:
        assert self._training is not None, "prepare comes first"
        return self._training

    # For the model and the training loop ---------------------------------------------------------------------------

    @property
    def model_options(self) -> dict[str, Any]:
        return {"vocab_size": len(self._known), "classes": len(self.classes)}

    def check_model(self, options: Mapping[str, Any]) -> None:
        self._is_causal = "pool" not in options  # a decoder, which knows the order by its mask

    @property
    def longest(self) -> dict[str, int]:
        return {"source": 1 + (1 + self._facts["pairs"]) * (self._longest + 1)}

    @property
    def training_size(self) -> int:
        return len(self._trained)

    @property
    def training_lengths(self) -> Int[Tensor, "N S"]:
        return self._trained.lengths.unsqueeze(1)

    def training_batch(self, indices: Int[Tensor, " B"], generator: torch.Generator) -> Batch:
        return self._batch(self._trained, indices)

    def _held_out_batch(self, indices: Int[Tensor, " B"]) -> Batch:
        return self._batch(self.held_out, indices)

    def _batch(self, texts: Labelled, indices: Int[Tensor, " B"]) -> Batch:
        return Batch((self.tokens(texts.padded(indices)),), texts.labels[indices])

    def ceiling(self) -> dict[str, float] | None:
        """Return the ceiling of the generated pairs: no bag of words decides."""
        if self.train or self._is_causal:
            return None
        every = self.held_out.padded(torch.arange(len(self.held_out))).numpy()
        return {"all": bag_ceiling(every, self.held_out.labels.unsqueeze(1).numpy())}

    def ceiling_sentence(self) -> str:
        return (
            "Without positions an encoder sees only which words a pair has. Each bag of words occurs as often with "
            "either label."
        )

    # Text and answers --------------------------------------------------------------------------------------------

    def read(self, line: str) -> list[int]:
        texts = tuple(text.strip() for text in line.split("\t"))
        expected = 1 + self._facts["pairs"]
        if len(texts) != expected or not all(texts):
            raise UserError(
                f"expected {'two texts with a tab between them' if expected == 2 else 'one text'}, got {line[:80]!r}"
            )
        row, is_cut = self._row(texts, self._known.encode_known)
        if is_cut:
            raise UserError(
                f"expected a text of at most {self._longest} tokens; this one has more; shorten it, or train with a "
                "larger --longest"
            )
        return row

    def sources(self, lines: Sequence[list[int]]) -> Tokens:
        return self.tokens(right_padded(lines))

    def tokens(self, ids_BL: Int[Tensor, "B L"], frame: str = "source") -> Tokens:
        """Return padded ids as tokens."""
        keep_BL = ids_BL != PADDING
        tokens = Tokens.of(ids_BL, frame)
        return tokens if bool(keep_BL.all()) else Tokens(ids_BL, tokens.positions, keep_BL)

    def show_source(self, numbers: Sequence[int]) -> list[str]:
        return self._known.names(list(numbers))

    def expected(self, line: str) -> str | None:
        texts = tuple(text.strip() for text in line.split("\t"))
        pairs = zip(self.held_out.texts, self.held_out.labels.tolist(), strict=True)
        return next((self.classes[int(label)] for each, label in pairs if each == texts), None)

    def sample_inputs(self) -> list[str]:
        return ["\t".join(each) for each in self.held_out.texts[:SHOWN]]

    def notices(self) -> list[str]:
        return lines_of(self._findings)

    def held_out_notices(self) -> list[str]:
        return lines_of(self._held_out_findings)

    def describe(self) -> str:
        of = Path(self.train).name or "who did what to whom"
        what = "pairs of texts" if self._facts["pairs"] else "texts"
        return f"{of}: {self.training_size:,} {what} in {len(self.classes)} classes; {self._known.kind}"

    def purpose(self) -> tuple[str, str]:
        count = len(self.classes)
        if self._facts["pairs"]:
            return (
                f"Says which of {count} classes a pair of texts belongs to.",
                f"두 글의 짝이 {count}가지 중 어디에 속하는지 말합니다.",
            )
        return (
            f"Says which of {count} classes a text belongs to.",
            f"글이 {count}가지 중 어디에 속하는지 말합니다.",
        )

    def fingerprint(self) -> str:
        if not self.train:
            return self.describe()
        path = Path(self.train)
        return f"sha256 {text_files.content_hash(text_files.document_files(path))}"


def _overlap(held_out: LabelledTexts, training: LabelledTexts, path: str) -> list[Finding]:
    """Return a finding if held-out texts are training texts, too."""
    known = {tuple(map(normal, each)) for each in training.texts}
    shared = sum(tuple(map(normal, each)) in known for each in held_out.texts)
    total = len(held_out.texts)
    text = f"{path}: {share(shared, total, 'held-out texts', 'are')} among the training texts, too"
    remedy = "they make scores better than they are; hold out others"
    severity = overlap_severity(shared, total)
    return [Finding(severity, "overlap", text, remedy, shared, total)] if shared else []
