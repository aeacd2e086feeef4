"""What a hostile run is made of: strings that name code, files of that name, and contents that whoever believes in them
executes."""

from __future__ import annotations

import io
import itertools
import pickle
import zipfile
from pathlib import Path
from typing import Any

MARKER = "canary_bird"
BEFORE = ("", "./", "../places/", "sub/", "link/", "{root}/places/", " ", "file://", "http://127.0.0.1:9/", "~/")
NAMES = ("evil.py", "évil.py", "자리.py", "evil one.py", "evil.PY", "package")
AFTER = ("", ":Mine", "@x", ":Mine@image", ":Mine:k=1", "+rotary", ":", ":Mine:k=__import__('os')")
AROUND = ("rotary+{}", "[none,{}]", "learned@text+{}@image", "{},{}", "rotary:base={}")
PLAIN = (
    "os.system",
    "os:system",
    "os.py",
    "__import__('os').system('touch {canary}')",
    "exec(open('evil.py').read())",
    "builtins.eval",
    "jarilab.core.registry:trust_code",
    "subprocess.Popen",
    "$(touch {canary})",
    "`touch {canary}`",
    "; touch {canary}",
    "| touch {canary} #",
    "!!python/object/apply:os.system ['touch {canary}']",
    "{{{{ canary_bird }}}}",
    "evil",
    "evil:Mine",
    "evil.Mine",
    "places.evil",
    "--trust-code",
    "-c import evil",
    "{root}/places",
    "rotary\x00evil.py",
    "evil.py\n",
    "\u202eyp.live",
    "arithmetic:evil.py",
    "statistics.py",
)
STRINGS = 500


def hostile_strings(root: Path) -> list[str]:
    """500 of them, and each once."""
    files = [f"{a}{n}{b}" for a, n, b in itertools.product(BEFORE, NAMES, AFTER)]
    around = [form.replace("{}", name) for form in AROUND for name in ("evil.py", "./evil.py:Mine", "자리.py@x")]
    chosen = list(dict.fromkeys([*PLAIN, *around, *files]))[:STRINGS]
    assert len(chosen) == STRINGS
    return [text.replace("{root}", str(root)).replace("{canary}", str(root / MARKER)) for text in chosen]


def make_places(root: Path) -> Path:
    """The folder that the attack is carried out in: Python files of all names, each of which would leave its mark."""
    places = root / "places"
    code = f"open({str(root / MARKER)!r}, 'a').write(__file__)\nclass Mine:\n    pass\n"
    (places / "sub").mkdir(parents=True)
    (places / "link").symlink_to(places / "sub")
    (places / "package").mkdir()
    (places / "package" / "__init__.py").write_text(code)
    names = (*(name for name in NAMES if name != "package"), "os.py", "statistics.py", "x.py", "canary_bird.py")
    for folder, name in itertools.product((places, places / "sub"), names):
        (folder / name).write_text(code)
    (places / "innocent.py").symlink_to(places / "evil.py")
    return places


def payloads(root: Path, *, whole: bool) -> dict[str, bytes]:
    """Files that are executed by whoever believes in them. whole: and texts."""
    code = f"open({str(root / MARKER)!r}, 'a').write('x')\n"
    pickled = pickle.dumps(_Canary(str(root / MARKER)))
    torn = io.BytesIO()
    with zipfile.ZipFile(torn, "w") as archive:  # as torch.save writes it
        archive.writestr("archive/data.pkl", pickled)
        archive.writestr("archive/version", "3\n")
        archive.writestr("__main__.py", code)
    array = b"\x93NUMPY\x01\x00v\x00" + b"{'descr': '|O', 'fortran_order': False, 'shape': (1,)}".ljust(117) + b"\n"
    binary = {"pickle": pickled, "zip": torn.getvalue()}
    texts = {
        "python": code.encode(),
        "array of objects": array + pickled,
        "yaml": f"!!python/object/apply:os.system ['touch {root / MARKER}']\n".encode(),
        "shell": f"#!/bin/sh\ntouch {root / MARKER}\n".encode(),
    }
    return binary | texts if whole else binary


class _Canary:
    def __init__(self, path: str):
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (Path(self.path),)
