"""Who may import whom, and what may stand nowhere: read from the source, without running it."""

import ast
import functools
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import jaxtyping
import pytest
import torch

import jarilab
from jarilab.encodings.base import registry

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "jarilab"
MODULES = sorted(SOURCE.rglob("*.py"))

BASE = {"errors", "shapes", "_version"}
SPECS = BASE | {"options", "registry"}
PLACES = BASE | {"positions", "patches", "boxes"}
# Lowest first. Each room may import what it names, and nothing above it.
MAY_IMPORT = {
    "_version": set(),
    "errors": set(),
    "shapes": set(),
    "options": BASE,
    "registry": BASE | {"options"},
    "positions": BASE,
    "masks": BASE | {"positions"},
    "patches": BASE | {"positions"},
    "boxes": BASE,
    "devices": BASE,
    "rows": BASE | {"positions"},
    "skew": BASE | {"positions"},
    "storage": BASE,
    "text": BASE | {"storage"},
    "encodings": SPECS | {"positions", "skew"},
    "attention": BASE | {"options", "positions", "masks", "skew", "encodings", "nn", "devices", "storage"},
    "nn": BASE | {"encodings"},  # initial values are asked of an encoding
    "policies": SPECS | {"positions", "nn"},
    "models": SPECS | PLACES | {"masks", "encodings", "attention", "nn", "devices"},
    "decoding": BASE | {"positions", "models", "devices"},
    "images": SPECS | PLACES | {"storage", "text", "nn", "models"},  # the image tokenizer is a model
    "captions": SPECS | PLACES | {"storage", "nn", "images"},
    "tasks": SPECS | PLACES | {"storage", "text", "nn", "images", "captions", "policies", "devices"},
    "inspect": PLACES | {"encodings", "attention", "nn"},
    "predictors": SPECS | PLACES | {"storage", "text", "images", "models", "decoding", "inspect", "tasks", "devices"},
    "runs": SPECS | {"storage", "encodings", "nn", "policies", "models", "tasks", "predictors", "devices"},
    "web": {"shapes", "patches"},
    # The score of a rotation, a bias or a term is the definition's, and initial values are those of a model.
    "drawing": SPECS | {"positions", "storage", "encodings", "attention", "nn", "inspect", "web"},
    "training": BASE
    | {"options", "encodings", "attention", "nn", "inspect", "tasks", "predictors", "runs", "devices", "rows"}
    | {"drawing"},
    "testing": BASE | {"conformance"},
    "huggingface": BASE | {"storage", "positions", "masks", "encodings", "attention", "nn", "models"},
    "comparison": SPECS | {"storage", "attention", "inspect", "tasks", "predictors", "runs", "training", "web"},
    "conformance": SPECS | {"positions", "skew", "masks", "encodings", "attention", "nn", "models", "decoding"},
    "api": SPECS
    | {"storage", "attention", "inspect", "tasks", "predictors", "runs", "training", "comparison", "devices"},
    "serving": SPECS | {"images", "predictors", "runs", "web"},
    "explorer": PLACES
    | {"storage", "images", "attention", "inspect", "predictors", "runs", "export", "web", "serving", "huggingface"},
    "export": PLACES
    | {"storage", "text", "encodings", "attention", "nn", "models", "inspect", "runs", "web", "huggingface"},
    "cli": SPECS
    | {"api", "conformance", "comparison", "drawing", "explorer", "export", "inspect", "predictors", "runs", "serving"}
    | {"huggingface"}
    | {"storage", "tasks", "training", "web"},
    "__main__": {"cli"},
}
# What others may import of a room that is full of implementations: what it asks of them.
INTERFACES = {
    "models": {"base", "stacks"},
    "encodings": {"base", "by_distance", "compose", "sums", "formulas", "oracle"},
    "tasks": {"base", "metrics"},
    "policies": {"base", "sequential"},
    "predictors": {"base", "learner", "reading"},
}
KNOW_IMPLEMENTATIONS = {
    "conformance": "tries encodings in the stacks of a model",
    "export": "writes the layers of one model for another program",
    "images": "the image tokenizer is an autoencoder",
    "huggingface": "copies weights into the models that have layers for them",
}
NAME_ENCODINGS = {
    "encodings": "its own",
    "huggingface": "says which of them a model of another library has",
}


@functools.cache
def tree_of(path: Path) -> ast.Module:
    """Each file is parsed once, for all rules."""
    return ast.parse(path.read_text())


def found_in(paths: Iterable[Path], look: Callable[[ast.Module], list[str]]) -> list[str]:
    """What breaks a rule, each with its file."""
    return [f"{path.relative_to(ROOT)}: {one}" for path in paths for one in look(tree_of(path))]


def room(path: Path) -> str:
    """`src/jarilab/encodings/rotary.py` -> `encodings`."""
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imports(path: Path) -> Iterator[str]:
    """The modules of jari that a file imports, wherever in the file."""
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.partition(".")[0] == "jarilab")
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] == "jarilab":
            # `from jarilab.attention import definition` imports the module jarilab.attention.definition.
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (name if _is_module(name) else node.module for name in names)


def _is_module(name: str) -> bool:
    path = SOURCE.joinpath(*name.split(".")[1:])
    return path.with_suffix(".py").is_file() or path.is_dir()


def test_imports_go_down_only() -> None:
    wrong = []
    for path in MODULES:
        if path == SOURCE / "__init__.py":
            continue  # the front door imports, when asked, from everywhere
        here = room(path)
        allowed = MAY_IMPORT[here] | {here}
        others = [name for name in imports(path) if name != "jarilab"]
        wrong += [f"{path}: may not import {name}" for name in others if name.split(".")[1] not in allowed]
    assert not wrong


def test_others_are_known_by_their_interface_only() -> None:
    """Nobody imports a concrete task, model, encoding or kind of answer: their registries find them."""
    concrete = []
    for path in MODULES:
        here = room(path)
        if path == SOURCE / "__init__.py" or here in KNOW_IMPLEMENTATIONS:
            continue
        for name in imports(path):
            _, there, module, *_ = [*name.split("."), "", ""]
            foreign = there in INTERFACES and there != here
            if module and foreign and module not in INTERFACES[there]:
                concrete.append(f"{path}: {name}")
    assert not concrete


def test_no_kind_of_task_is_asked_for() -> None:
    """A task or a predictor answers for itself: nobody asks for its class."""
    asked = []
    for path in MODULES:
        if room(path) in ("tasks", "predictors"):
            continue
        for node in ast.walk(tree_of(path)):
            is_question = isinstance(node, ast.Call) and ast.unparse(node.func) in ("isinstance", "issubclass")
            if is_question and re.search(r"Task|Predictor|Captions", ast.unparse(node)):
                asked.append(f"{path.relative_to(SOURCE)}:{node.lineno}")
    assert not asked


def encodings_named(path: Path) -> list[str]:
    tree, names = tree_of(path), set(registry.names())
    allowed = {id(d) for n in ast.walk(tree) if isinstance(n, ast.arguments) for d in (*n.defaults, *n.kw_defaults)}
    # So may a choice of another option: what a `Literal` lists decides nothing by itself.
    literals = [n for n in ast.walk(tree) if isinstance(n, ast.Subscript) and ast.unparse(n.value) == "Literal"]
    allowed |= {id(node) for literal in literals for node in ast.walk(literal)}
    # `words` names a tokenizer of sacreBLEU, one of which is called none.
    targets = {id(n): n.targets if isinstance(n, ast.Assign) else [n.target]
               for n in ast.walk(tree) if isinstance(n, ast.Assign | ast.AnnAssign)}  # fmt: skip
    words = [n for n in ast.walk(tree) if any(ast.unparse(t).endswith("words") for t in targets.get(id(n), []))]
    allowed |= {id(node) for assignment in words for node in ast.walk(assignment)}
    named = [
        f"line {node.lineno}: {node.value!r}"
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and node.value in names
        and id(node) not in allowed
    ]
    own = {f"jarilab.encodings.{module}" for module in ("base", "by_distance", "compose", "oracle", "sums")} | {
        "jarilab.encodings"
    }
    named += [name for name in imports(path) if name.startswith("jarilab.encodings") and name not in own]
    return named


def test_no_encoding_is_named_outside_its_folder() -> None:
    """A name may be the default of a parameter, and nothing else that runs: no branch can depend on it."""
    named = {str(path): encodings_named(path) for path in MODULES if room(path) not in NAME_ENCODINGS}
    assert not {path: found for path, found in named.items() if found}


FORBIDDEN_CALLS = {"eval", "exec", "compile", "__import__"}
# Each unpickles, executes what it reads, or starts a shell.
FORBIDDEN_FUNCTIONS = {
    "torch": {"load", "hub", "package"},
    "torch.jit": {"load"},
    "torch.hub": {"load"},
    "numpy": {"load"},
    "np": {"load"},
    "os": {"system", "popen"},
    "subprocess": {"getoutput", "getstatusoutput"},
    "torch.distributed.checkpoint": {"FileSystemReader", "FileSystemWriter"},  # their metadata are a pickle
}
FORBIDDEN_MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve", "yaml", "runpy", "code"}
FORBIDDEN_KEYWORDS = {"shell", "allow_pickle"}


def violations(tree: ast.AST) -> list[str]:
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [f"line {node.lineno}: imports {a.name}" for a in node.names if _is_forbidden(a.name)]
        if isinstance(node, ast.ImportFrom):
            module = node.module or ""
            refused = FORBIDDEN_FUNCTIONS.get(module, set()) & {a.name for a in node.names}
            found += [f"line {node.lineno}: imports {module}"] if _is_forbidden(module) else []
            found += [f"line {node.lineno}: imports {module}.{name}" for name in sorted(refused)]
        if isinstance(node, ast.Call):
            text = ast.unparse(node.func)
            owner, _, name = text.rpartition(".")
            if text in FORBIDDEN_CALLS or name in FORBIDDEN_FUNCTIONS.get(owner, ()):
                found.append(f"line {node.lineno}: calls {text}")
            given = {k.arg for k in node.keywords if ast.unparse(k.value) == "True"}
            found += [f"line {node.lineno}: {name}=True" for name in sorted(FORBIDDEN_KEYWORDS & given)]
    return found


def _is_forbidden(module: str) -> bool:
    return module.partition(".")[0] in FORBIDDEN_MODULES


def test_nothing_is_unpickled_or_evaluated() -> None:
    folders = ("benchmarks", "examples", "experiments", "docs/build")
    others = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    assert not found_in([*MODULES, *others], violations)


def test_the_check_for_unpickling_can_fail() -> None:
    bad = (
        "import pickle\ntorch.load('x')\neval('1')\nsubprocess.run('x', shell=True)\nfrom torch import load\n"
        "from yaml import safe_load\nnp.asarray(x, allow_pickle=True)\nos.popen('x')\ntorch.jit.load('x')"
    )
    assert len(violations(ast.parse(bad))) == 9
    assert not violations(ast.parse("subprocess.run(['x'], shell=False)\nfrom torch import nn\njson.load(file)"))


HTML = ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "setHTML", "createContextualFragment")
CODE = ("eval(", "Function(", "srcdoc", "javascript:", 'setTimeout("', "setTimeout('")


def html_written(text: str) -> list[str]:
    return [word for word in (*HTML, *CODE) if word in text]


def test_pages_never_write_html() -> None:
    for script in SOURCE.rglob("*.js"):
        assert not html_written(script.read_text()), script.name


def test_the_check_for_html_can_fail() -> None:
    assert html_written("a.innerHTML = b; setTimeout('x()', 5); frame.srcdoc = c") == [
        "innerHTML",
        "srcdoc",
        "setTimeout('",
    ]


def test_files_are_short_enough_to_hold_in_the_head() -> None:
    lines = {str(path.relative_to(SOURCE)): len(path.read_text().splitlines()) for path in MODULES}
    assert {path for path, count in lines.items() if count > 500} == set(), "one subject a file, 500 lines at most"


BARE = {"q", "k", "v", "x", "scores", "weights"}
LETTERED = ("attention", "models")


def bare_tensors(tree: ast.AST) -> list[str]:
    """Locals and private parameters named like a tensor, without the letters of its axes. Fields of a class and the
    parameters of public functions keep their short names."""
    fields = {id(field.target) for cls in ast.walk(tree) if isinstance(cls, ast.ClassDef)
              for field in cls.body if isinstance(field, ast.AnnAssign)}  # fmt: skip
    found: list[ast.Name | ast.arg] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and id(node) not in fields:
            found.append(node)
        private = isinstance(node, ast.FunctionDef) and node.name.startswith("_") and not node.name.startswith("__")
        if private or isinstance(node, ast.Lambda):
            found += [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
    names = [(node.id if isinstance(node, ast.Name) else node.arg, node.lineno) for node in found]
    return [f"line {line}: {name}" for name, line in names if name in BARE]


def test_tensors_carry_the_letters_of_their_axes() -> None:
    assert not found_in([path for path in MODULES if room(path) in LETTERED], bare_tensors)


def test_the_check_for_letters_can_fail() -> None:
    bad = "def _f(x, y_BLD):\n    q = x\n    for k in y_BLD: [v for v in k]\n    return lambda scores: (q, scores)"
    good = "class A:\n    q: int\n\n    def f(self, x):\n        x_BLD = x\n        return x_BLD"
    assert len(bare_tensors(ast.parse(bad))) == 5
    assert not bare_tensors(ast.parse(good))


COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def nested_comprehensions(tree: ast.AST) -> list[str]:
    """Comprehensions that hold another: two thoughts in one line."""
    found = [node for node in ast.walk(tree) if isinstance(node, COMPREHENSIONS)]
    inner = {id(child): child for node in found for child in ast.walk(node) if child is not node}
    return [f"line {node.lineno}" for node in inner.values() if isinstance(node, COMPREHENSIONS)]


def test_no_comprehension_stands_in_another() -> None:
    assert not found_in(MODULES, nested_comprehensions)


def test_the_check_for_nested_comprehensions_can_fail() -> None:
    assert len(nested_comprehensions(ast.parse("[[x for x in y] for y in z]\n[x for x in set(y for y in z)]"))) == 2
    assert not nested_comprehensions(ast.parse("[x for x in y]\n{x: 1 for x in y}"))


def test_every_room_is_in_the_plan() -> None:
    rooms = {room(path) for path in MODULES} - {"__init__"}
    assert rooms == set(MAY_IMPORT)


def test_the_tests_notice_a_wrong_shape() -> None:
    """Else the hook of conftest.py would check nothing without a word."""
    attention = jarilab.Attention(8, 2)
    with pytest.raises(jaxtyping.TypeCheckError, match="forward"):
        attention(torch.zeros(1, 3), torch.zeros(1, 3, 8))
