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

# Lowest first. Each package may import those that it names, and itself. `jarilab` is the front door, `import jarilab`.
MAY_IMPORT: dict[str, set[str]] = {
    "_version": set(),
    "core": {"_version"},
    "positions": {"core"},
    "encodings": {"core", "positions"},
    "nn": {"core", "encodings"},  # encodings set their own initial values
    "attention": {"core", "positions", "encodings", "nn"},
    "models": {"core", "positions", "encodings", "attention", "nn"},
    "inspect": {"core", "positions", "encodings", "attention", "nn"},
    "laws": {"core", "positions", "encodings", "attention", "nn", "models"},
    # Rows of a data set become batches of a study.
    "huggingface": {"core", "positions", "encodings", "attention", "nn", "models", "data", "inspect"},
    "data": {"core", "positions", "nn", "models"},  # the image tokenizer is a model
    "tasks.policies": {"core", "positions", "nn"},
    "tasks": {"core", "positions", "data", "nn", "tasks.policies"},
    "tasks.predictors": {"core", "positions", "data", "models", "inspect", "tasks"},
    "runs": {"_version", "core", "encodings", "nn", "models", "tasks", "tasks.policies", "tasks.predictors"}
    | {"data", "inspect", "huggingface"},  # weights that a run starts from
    "pages": set(),
    "pages.kit": {"core", "positions"},
    # A page computes with the exported graph of a forward.
    "pages.program": {"core", "positions", "attention", "inspect", "pages.kit"},
    # Drawings ask the attention for scores and `inspect` for the steps of softmax.
    "pages.encodings": {"core", "positions", "encodings", "attention", "nn", "inspect", "pages.kit"},
    "training": {
        "_version",
        "core",
        "positions",
        "encodings",
        "attention",
        "nn",
        "inspect",
        "tasks",
        "tasks.predictors",
    }
    | {"runs", "pages.encodings"},
    "comparison": {"core", "encodings", "attention", "inspect", "tasks", "tasks.predictors", "runs", "training"}
    | {"pages.kit"},
    "api": {"core", "attention", "inspect", "tasks.predictors", "runs", "training", "comparison"},
    "serving": {"_version", "core", "data", "tasks.predictors", "runs", "pages.kit"},
    "export": {"_version", "core", "positions", "data", "encodings", "attention", "nn", "models", "inspect", "runs"}
    | {"huggingface", "pages.program"},
    "explorer": {"_version", "core", "positions", "data", "attention", "inspect", "tasks.predictors", "runs"}
    | {"huggingface", "export", "pages.kit", "pages.program", "serving"},
    "cli": {
        "_version",
        "core",
        "data",
        "inspect",
        "tasks",
        "tasks.predictors",
        "runs",
        "training",
        "laws",
        "huggingface",
    }
    | {"comparison", "api", "pages.encodings", "serving", "export", "explorer"},
    "__main__": {"cli"},
}
# The names that a package below may take from the front door, inside a function, and why.
FRONT_DOOR = {
    "inspect/record/capture.py": {
        "draw_attention",
        "measure_heads",
        "preview",
        "show",
    },  # methods of a tape that open the rooms above it
}
# What other packages may import of a package that holds implementations: the interface.
INTERFACES = {
    "models": {"base", "stacks", "decoding"},
    "encodings": {"base", "distance_forms", "compose", "sums", "skew", "formulas"},
    "tasks": {"base", "metrics"},
    "tasks.policies": {"base"},
    "tasks.predictors": {"base", "learner"},
}
KNOW_IMPLEMENTATIONS = {
    "laws": "tries encodings in the stacks of a model",
    "export": "writes the layers of one model for another program",
    "data": "the image tokenizer is an autoencoder",
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


NESTED = {room for room in MAY_IMPORT if "." in room}
"""Folders of a package that have rules of their own."""


def room(path: Path) -> str:
    """`src/jarilab/encodings/rotary/polar.py` -> `encodings`; `src/jarilab/pages/kit/page.py` -> `pages.kit`."""
    return room_of(".".join(("jarilab", *path.relative_to(SOURCE).with_suffix("").parts)))


def room_of(module: str) -> str:
    """The package of a module by its dotted name, with the rules that concern it."""
    parts = module.split(".")[1:3]
    nested = ".".join(parts)
    return nested if nested in NESTED else parts[0]


def imports(path: Path) -> Iterator[str]:
    """The modules of jari that a file imports, wherever in the file."""
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.partition(".")[0] == "jarilab")
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] == "jarilab":
            # `from jarilab.attention import kernels` imports the module jarilab.attention.kernels.
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (name if _is_module(name) else node.module for name in names)


def _is_module(name: str) -> bool:
    path = SOURCE.joinpath(*name.split(".")[1:])
    return path.with_suffix(".py").is_file() or path.is_dir()


def test_imports_go_down_only() -> None:
    wrong = []
    for path in MODULES:
        if path == SOURCE / "__init__.py":
            continue  # the front door imports from everywhere, when a name is asked of it
        here = room(path)
        allowed = MAY_IMPORT[here] | {here}
        others = [name for name in imports(path) if name != "jarilab"]
        wrong += [f"{path}: may not import {name}" for name in others if room_of(name) not in allowed]
    assert not wrong


def front_door_names(path: Path) -> set[str]:
    """The names that a file takes from `import jarilab`."""
    tree = tree_of(path)
    if "jarilab" not in imports(path):
        return set()
    attributes = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    named = {node.attr for node in attributes if isinstance(node.value, ast.Name) and node.value.id == "jarilab"}
    froms = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module == "jarilab"]
    return named | {alias.name for node in froms for alias in node.names}


def test_the_front_door_is_used_where_it_is_permitted() -> None:
    """`import jarilab` reaches every package: inside the package only the files of `FRONT_DOOR` may."""
    used = {
        str(path.relative_to(SOURCE)): front_door_names(path)
        for path in MODULES
        if "jarilab" in imports(path) and path != SOURCE / "__init__.py"
    }
    assert used == FRONT_DOOR


def module_name(path: Path) -> str:
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts).removesuffix(".__init__")


def circles(graph: dict[str, set[str]]) -> list[str]:
    """A module of each circle of imports, found by removing modules that import nothing that is left."""
    left = {module: set(targets) for module, targets in graph.items()}
    while True:
        leaves = {module for module, targets in left.items() if not targets & left.keys() - {module}}
        if not leaves:
            return sorted(left)
        left = {module: targets for module, targets in left.items() if module not in leaves}


def test_no_module_imports_itself_through_others() -> None:
    """Imports inside functions count."""
    modules = [path for path in MODULES if path != SOURCE / "__init__.py"]
    graph = {module_name(path): set(imports(path)) - {"jarilab", module_name(path)} for path in modules}
    assert not circles(graph)


def test_the_check_for_circles_can_fail() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": set()}) == ["a", "b", "c"]
    assert not circles({"a": {"b", "c"}, "b": {"c"}, "c": {"d"}})


def test_others_are_known_by_their_interface_only() -> None:
    """Nobody imports a concrete task, model, encoding or kind of answer: their registries find them."""
    concrete = []
    for path in MODULES:
        here = room(path)
        if path == SOURCE / "__init__.py" or here in KNOW_IMPLEMENTATIONS:
            continue
        for name in imports(path):
            there = room_of(name) if name != "jarilab" else ""
            module = name.removeprefix(f"jarilab.{there}").lstrip(".").partition(".")[0]
            foreign = there in INTERFACES and there != here
            if module and foreign and module not in INTERFACES[there]:
                concrete.append(f"{path}: {name}")
    assert not concrete


def test_no_kind_of_task_is_asked_for() -> None:
    """A task or a predictor answers for itself: nobody asks for its class."""
    asked = []
    for path in MODULES:
        if room(path) in ("tasks", "tasks.predictors"):
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
    own = {
        f"jarilab.encodings.{module}"
        for module in ("base", "distance_forms", "compose", "formulas.oracle", "formulas", "skew", "sums")
    } | {"jarilab.encodings"}
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


HTML = (
    "innerHTML",
    "outerHTML =",
    "outerHTML +=",
    "outerHTML=",
    "insertAdjacentHTML",
    "document.write",
    "setHTML",
    "createContextualFragment",
)
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


MAX_FILE, MAX_FUNCTION, MAX_METHODS = 500, 50, 16
"""Lines of a file, lines of a function without its docstring, public methods of a class."""
LARGER = {
    "encodings/base.py: Encoding": "the hooks of an encoding are its methods",
    "laws/law_subject.py: Subject": "the questions that laws ask of an encoding",
    "models/stacks.py: forward": "one pass through a stack, read from top to bottom",
    "tasks/captions.py: Captions": "a task: data, loss, metrics and what its predictor asks",
    "tasks/detection.py: Detection": "a task: data, loss, metrics and what its predictor asks",
    "tasks/classify.py: Classify": "a task: data, loss, metrics and what its predictor asks",
    "tasks/text.py: Text": "a task: data, loss, metrics and what its predictor asks",
}


def large_pieces(tree: ast.Module) -> list[str]:
    """The names of functions and classes above the limits."""
    pieces = []
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            docstring = ast.get_docstring(node, clean=False) or ""
            length = (node.end_lineno or 0) - node.lineno + 1 - docstring.count("\n")
            if length > MAX_FUNCTION:
                pieces.append(node.name)
        if isinstance(node, ast.ClassDef):
            methods = [item for item in node.body if isinstance(item, ast.FunctionDef) and item.name[0] != "_"]
            public = [item for item in methods if not item.decorator_list]
            if len(public) > MAX_METHODS:
                pieces.append(node.name)
    return pieces


def test_files_hold_one_subject() -> None:
    lines = {str(path.relative_to(SOURCE)): len(path.read_text().splitlines()) for path in MODULES}
    assert not {path: count for path, count in lines.items() if count > MAX_FILE}


def test_functions_and_classes_are_small() -> None:
    pieces = {f"{path.relative_to(SOURCE)}: {name}" for path in MODULES for name in large_pieces(tree_of(path))}
    assert pieces == set(LARGER), "cut it, or say why it is larger; what is small now leaves the list"


def test_the_check_for_large_pieces_can_fail() -> None:
    long = "def f():\n" + "    x = 1\n" * 50
    wide = "class A:\n" + "".join(f"    def m{number}(self): pass\n" for number in range(17))
    assert (large_pieces(ast.parse(long)), large_pieces(ast.parse(wide))) == (["f"], ["A"])


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
    rooms = {room(path) for path in MODULES if path.name != "__init__.py" or path.parent.parent == SOURCE}
    assert rooms - {"__init__"} == set(MAY_IMPORT)


def test_the_tests_notice_a_wrong_shape() -> None:
    """Else the hook of conftest.py would check nothing without a word."""
    attention = jarilab.Attention(8, 2)
    with pytest.raises(jaxtyping.TypeCheckError, match="forward"):
        attention(torch.zeros(1, 3), torch.zeros(1, 3, 8))
