import ast
import importlib
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

ROOMS = {
    "harness": "salience",
    "models": "salience_models",
    "memory": "salience_memory",
    "kernels": "salience_kernels",
    "experiments": "salience_experiments",
}

GENERATED = {"build", "dist"}

TEXT_SUFFIXES = {
    "",
    ".cfg",
    ".css",
    ".html",
    ".j2",
    ".js",
    ".json",
    ".jsonl",
    ".md",
    ".py",
    ".toml",
    ".txt",
    ".yaml",
}

MACHINE_PATH = re.compile(r"(?<![\w.~/-])/(?:home|root|work|Users|mnt|tmp/\w)/[\w.]")


def tracked_files():
    """Every file but what git ignores; in an unpacked archive, all that is not hidden nor generated."""
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listing.returncode == 0:
        return [path for name in listing.stdout.split("\0") if name and (path := ROOT / name).is_file()]
    found = (path.relative_to(ROOT) for path in ROOT.rglob("*") if path.is_file())
    return [
        ROOT / path for path in found if not path.parts[0].startswith(".") and path.parts[0] not in GENERATED
    ]


def packages():
    """Import names of all packages and subpackages."""
    return [
        ".".join(path.parent.relative_to(ROOT / room).parts)
        for room, package in ROOMS.items()
        for path in sorted((ROOT / room / package).rglob("__init__.py"))
    ]


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_holds_a_readme_and_its_package_and_is_no_package_itself(room):
    assert not (ROOT / room / "__init__.py").exists()
    assert (ROOT / room / "README.md").is_file()
    assert (ROOT / room / ROOMS[room] / "__init__.py").is_file()
    importable = [path.parent.name for path in (ROOT / room).glob("*/__init__.py")]
    assert importable == [ROOMS[room]]


def test_the_root_holds_only_rooms_and_tests():
    folders = {path.relative_to(ROOT).parts[0] for path in tracked_files() if path.parent != ROOT}
    assert {folder for folder in folders if not folder.startswith(".")} == {*ROOMS, "tests"}


@pytest.mark.parametrize("package", packages())
def test_all_lists_names_that_import(package):
    module = importlib.import_module(package)
    names = module.__all__
    assert len(names) == len(set(names))
    assert [name for name in names if not hasattr(module, name)] == []


def test_the_readme_maps_every_room_and_names_both_commands():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for room, package in ROOMS.items():
        assert f"[{room}]({room}/README.md) | `{package}`" in readme
    assert "make demo" in readme
    assert "make test" in readme


def test_links_between_documents_lead_somewhere():
    broken = []
    for document in (path for path in tracked_files() if path.suffix == ".md"):
        for target in re.findall(
            r"\]\((?!https?:|#|mailto:)([^)#\s]+)", document.read_text(encoding="utf-8")
        ):
            if not (document.parent / target).exists():
                broken.append(f"{document.relative_to(ROOT)}: {target}")
    assert broken == []


@pytest.mark.parametrize("package", ["salience_kernels", "salience_memory"])
def test_importing_a_lower_room_does_not_import_transformers(package):
    code = f"import sys, {package}; print(sorted({{'transformers', 'faiss'}} & set(sys.modules)))"
    rooms = [str(ROOT / room) for room in ROOMS]
    run = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:0] = {rooms!r}; {code}"],
        cwd=ROOT / "tests",
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stdout.strip() == "[]"


def test_kernels_import_torch_and_jaxtyping_only():
    allowed = {"torch", "jaxtyping", "triton", "salience_kernels", *sys.stdlib_module_names}
    outside = {
        (path.name, name)
        for path in (ROOT / "kernels" / "salience_kernels").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        for name in imported_modules(node)
        if name not in allowed
    }
    assert outside == set()


def imported_modules(node):
    if isinstance(node, ast.Import):
        return [alias.name.split(".")[0] for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.level == 0:
        return [(node.module or "").split(".")[0]]
    return []


def test_no_file_holds_a_path_of_somebodys_machine():
    found = []
    for path in tracked_files():
        if path.suffix in TEXT_SUFFIXES and (hit := MACHINE_PATH.search(path.read_text(encoding="utf-8"))):
            found.append(f"{path.relative_to(ROOT)}: {hit.group()}")
    assert found == []


def test_every_pinned_version_meets_what_the_project_asks_for():

    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = dict(line.split("==") for line in lines if line and not line.startswith("#"))
    pins = {canonicalize_name(name): version for name, version in pins.items()}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"].values()
    wanted = [
        Requirement(text)
        for text in [*project["dependencies"], *(text for extra in extras for text in extra)]
    ]
    unmet = [str(need) for need in wanted if pins.get(canonicalize_name(need.name)) not in need.specifier]
    assert unmet == []
