"""COMET by the program `comet-score` of unbabel-comet, in an environment of its own.

unbabel-comet 2.2.7 needs NumPy below 2 and transformers below 5, so it cannot be installed beside jarilab.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from jarilab.core.errors import UserError, as_user_error

PROGRAM = "comet-score"

# The last line of `comet-score --only_system`: the file, a tab, and the mean over all lines.
_SCORE = re.compile(r"\tscore: (-?\d+\.\d+)\s*\Z")
_PYTHON = re.compile(rb"/[^\s'\"]*python[\d.]*")
_VERSION = "import importlib.metadata as m; print(m.version('unbabel-comet'))"


@dataclass(frozen=True)
class Comet:
    """The program at `path`, with a model named as on Hugging Face, or its checkpoint file."""

    path: str
    model: str

    @staticmethod
    def find(model: str) -> Comet:
        """Return the program on PATH. Raises UserError if there is none."""
        path = shutil.which(PROGRAM)
        if path is None:
            raise UserError(
                f"comet: expected the program {PROGRAM} on PATH; got none; install it in an environment of its own: "
                "pipx install unbabel-comet"
            )
        return Comet(path, model)

    def judge(self, pairs: Sequence[tuple[str, str]], written: Sequence[str]) -> dict[str, Any]:
        """Return the score of answers to pairs of source and reference, with model and version. Raises UserError."""
        sources, references = zip(*pairs, strict=True)
        with TemporaryDirectory() as folder:
            command = [self.path, "--model", self.model, "--quiet", "--only_system"]
            for flag, texts in (("-s", sources), ("-r", references), ("-t", written)):
                file = Path(folder, flag[1:])
                # The program ends a line at a carriage return, too.
                lines = (f"{' '.join(text.split())}\n" for text in texts)
                file.write_text("".join(lines), encoding="utf-8", newline="")
                command += [flag, str(file)]
            code, out = _run(command)
        score = _SCORE.search(out)
        if code or score is None:
            raise UserError(
                f"{self.path}: expected a score; got exit code {code} and {out.strip()[-200:]!r}; read its own "
                "messages above"
            )
        python = _PYTHON.search(Path(self.path).read_bytes()[:1000])
        code, out = _run([os.fsdecode(python[0]), "-c", _VERSION]) if python else (1, "")
        version = "of unknown version" if code else out.strip()
        signature = f"{self.model}|unbabel-comet {version}"
        return {"comet": float(score[1]), "signature_comet": signature}


def _run(command: Sequence[str]) -> tuple[int, str]:
    """Run a program; return its exit code and standard output."""
    # Its environment has packages of its own.
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    with as_user_error(f"{command[0]}: expected a program that runs"):
        done = subprocess.run(
            command, stdout=subprocess.PIPE, env={**environment, "PYTHONUTF8": "1"}, check=False
        )
    return done.returncode, done.stdout.decode(errors="replace")
