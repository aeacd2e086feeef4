"""What is released is built from the sources alone, and the same whoever builds it."""

import contextlib
import email
import hashlib
import importlib
import importlib.metadata
import importlib.util
import json
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent.parent
ADDRESS = "https://example.org/someone/jari"
RELATIVE = re.compile(r"\]\((?!https://)[^)]*\)|<this")


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch) -> Any:
    """hatch_build.py, without hatchling, which only a build has."""
    interface: Any = ModuleType("interface")
    interface.MetadataHookInterface = object
    for name in ("hatchling", "hatchling.metadata", "hatchling.metadata.plugin"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, "hatchling.metadata.plugin.interface", interface)
    spec: Any = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def filled(hook: Any, root: Path = ROOT) -> dict[str, Any]:
    """The metadata that a build is given."""
    made, metadata = hook.Addressed(), {"version": "1.2.3"}
    made.root = str(root)
    made.update(metadata)
    return metadata


def test_with_an_address_no_link_of_the_readme_is_relative(hook: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(hook.VARIABLE, ADDRESS)
    metadata = filled(hook)
    text, own = metadata["readme"]["text"], (ROOT / "README.md").read_text()
    assert len(RELATIVE.findall(own)) > 20
    assert RELATIVE.findall(text) == []
    assert f"]({ADDRESS}/raw/v1.2.3/docs/explore.png)" in text
    assert f"]({ADDRESS}/blob/v1.2.3/docs/contents.md#results)" in text
    assert f"git clone {ADDRESS} jari" in text
    assert {"Homepage", "Repository", "Documentation", "Changelog", "Issues"} == set(metadata["urls"])
    led = [to.removeprefix(f"{ADDRESS}/") for to in re.findall(rf"\(({ADDRESS}/[^)]*)\)", text)]
    led += [to.removeprefix(f"{ADDRESS}/") for to in metadata["urls"].values() if "/v1.2.3/" in to]
    for to in led:
        kind, tag, path = to.partition("#")[0].split("/", 2)
        assert (kind in ("blob", "raw", "tree"), tag, (ROOT / path).exists()) == (True, "v1.2.3", True), to


def test_without_an_address_nothing_is_added(hook: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(hook.VARIABLE, raising=False)
    assert filled(hook) == {"version": "1.2.3", "readme": "README.md", "urls": {}}


@pytest.mark.parametrize("address", ["example.org/a/b", "https://example.org/", f"{ADDRESS}/", "https://<owner>/jari"])
def test_what_is_no_address_is_refused(address: str, hook: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(hook.VARIABLE, address)
    with pytest.raises(ValueError, match="expected the address of a repository"):
        filled(hook)


@pytest.mark.parametrize("address", ["", "http://host/owner/name", "https://host/owner/", "https://host"])
def test_a_release_without_an_address_says_what_to_give(address: str) -> None:
    asked = ["make", "--no-print-directory", "release", f"REPOSITORY={address}"]
    done = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2
    assert "make release REPOSITORY=https://HOST/OWNER/NAME" in done.stderr
    assert done.stdout == ""


def test_the_matrix_has_the_pythons_that_are_promised() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    promised = re.findall(r"Python :: (3\.\d+)", "\n".join(project["classifiers"]))
    assert json.loads((ROOT / ".ci" / "matrix.json").read_text()) == {"python": promised}
    assert project["requires-python"] == f">={promised[0]}"


def built(out: Path) -> dict[str, str]:
    """The files of a build and their digests."""
    command = [sys.executable, "-m", "build", "--outdir", out, ROOT]
    environment = {**os.environ, "SOURCE_DATE_EPOCH": "1700000000", "JARILAB_REPOSITORY": ADDRESS}
    subprocess.run(command, check=True, capture_output=True, env=environment)
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in out.iterdir()}


@pytest.mark.long
def test_two_builds_have_equal_bytes_and_all_that_pages_are_made_of(tmp_path):
    """The wheel is built from the sdist, so that what is missing there is missing in both."""
    first, second = built(tmp_path / "first"), built(tmp_path / "second")
    assert first == second
    assert sorted(Path(name).suffix for name in first) == [".gz", ".whl"]
    (wheel,) = (tmp_path / "first").glob("*.whl")
    package = ROOT / "src"
    wanted = {path.relative_to(package).as_posix() for path in package.rglob("*") if path.is_file()}
    wanted = {name for name in wanted if "__pycache__" not in name and ".egg-info" not in name}
    with zipfile.ZipFile(wheel) as held:
        assert wanted - set(held.namelist()) == set()
        (named,) = (name for name in held.namelist() if name.endswith(".dist-info/METADATA"))
        described = [held.read(named).decode()]
    (sdist,) = (tmp_path / "first").glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        described.append(archive.extractfile(f"{sdist.name.removesuffix('.tar.gz')}/PKG-INFO").read().decode())
    for text in described:
        metadata = email.message_from_string(text)
        assert f"Homepage, {ADDRESS}" in metadata.get_all("Project-URL")
        assert RELATIVE.findall(metadata.get_payload()) == []
    subprocess.run([sys.executable, "-m", "twine", "check", "--strict", wheel, sdist], check=True, capture_output=True)


def lowest() -> str:
    """The oldest versions that the package says it works with, as constraints."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return "\n".join(line.split(";")[0].replace(">=", "==") for line in project["dependencies"])


@pytest.mark.long
@pytest.mark.parametrize("versions", ["lowest", "newest"])
def test_a_wheel_in_a_new_environment_trains_looks_and_checks(tmp_path, versions):
    """Without extras, on the oldest and the newest versions of what it stands on."""
    built(tmp_path / "dist")
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    constraints = tmp_path / "constraints.txt"
    constraints.write_text(lowest() if versions == "lowest" else "")
    environment = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    python = environment / "bin" / "python"
    install = [python, "-m", "pip", "install", "--quiet", "--constraint", constraints, wheel]
    installed = subprocess.run(install, capture_output=True, text=True)
    assert installed.returncode == 0, installed.stderr
    subprocess.run([python, "-m", "pip", "check"], check=True, capture_output=True)
    small = ["--examples", "640", "--batch-size", "16", "--evaluations", "1", "--d-model", "16", "--n-heads", "2"]
    for command in (
        ["train", "arithmetic:maximum=30", "--out", "run", *small],
        ["predict", "run", "1+1"],
        ["explore", "run", "--save", "page.html"],
        ["laws", "rotary"],
    ):
        done = subprocess.run(
            [environment / "bin" / "jarilab", *command],
            cwd=tmp_path,
            env={"PATH": os.environ["PATH"], "HOME": str(tmp_path)},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, (command, done.stderr)


@pytest.fixture(scope="module")
def bill() -> Any:
    sys.path.insert(0, str(ROOT / "docs" / "build"))
    return importlib.import_module("bill_of_materials")


def test_the_bill_of_materials_has_each_dependency_and_every_file_its_hash(bill: Any, tmp_path: Path) -> None:
    (tmp_path / "dist").mkdir()
    (tmp_path / "dist" / "a.whl").write_bytes(b"wheel")
    for out in ("one", "two"):
        bill.main(str(tmp_path / "dist"), str(tmp_path / out))
    text = (tmp_path / "one" / "jarilab.cdx.json").read_text()
    assert text == (tmp_path / "two" / "jarilab.cdx.json").read_text()
    assert f"{hashlib.sha256(b'wheel').hexdigest()}  a.whl\n" == (tmp_path / "one" / "SHA256SUMS").read_text()
    listed = {one["name"]: one for one in json.loads(text)["components"]}
    assert {"torch", "numpy", "sympy", "typing-extensions"} <= set(listed)  # of dependencies of dependencies, too
    assert {"captum", "sentencepiece", "transformers"} <= set(listed)  # of all extras, installed or not
    assert "jarilab" not in listed
    stated = {one["licenses"][0]["license"]["name"] for one in listed.values() if "version" in one}
    assert stated.isdisjoint({"unknown", "FreeBSD", "Apache 2.0 License", "3-Clause BSD License", "ISC License"})


def test_the_security_page_lists_the_licence_of_each_dependency(bill: Any) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = {name: needs for name, needs in project["optional-dependencies"].items() if name not in OURS}
    named = [need for needs in ([project["dependencies"]], extras.values()) for group in needs for need in group]
    names = {re.split(r"[<>=;\[]", need)[0].strip() for need in named}
    page = (ROOT / "SECURITY.md").read_text().partition("## What it depends on")[2]
    rows = dict(re.findall(r"^\| ([\w-]+) \| [\w, ]*\| (.+) \|$", page, re.MULTILINE))
    rows.pop("package")
    assert set(rows) == names
    for name, licence in rows.items():
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):  # an extra that is not installed
            stated = bill.licence_of(name)
            assert re.split(" AND | OR ", stated)[0] in licence, (name, stated)


OURS = ("all", "dev", "docs", "release")
"""Extras of those who work on jari."""
