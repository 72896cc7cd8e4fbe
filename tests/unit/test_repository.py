"""Rules about the repository as a whole: layering, metadata, lock files, maps in documents."""

from __future__ import annotations

import ast
import itertools
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from setuptools import Distribution  # first: it provides the distutils imported next
from setuptools.dist import distutils

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parents[2]
PROFILES = ("cpu", "gpu")
HEAVY = {
    "verl", "ray", "torch", "sglang", "megatron", "transformers", "tensordict", "transfer_queue",
}  # fmt: skip
LIGHT_MODULES = (
    "megatron_agent",
    "megatron_agent.types",
    "megatron_agent.errors",
    "megatron_agent.tasks",
    "megatron_agent.rollout",
    "megatron_agent.credit",
    "megatron_agent.plan",
    "megatron_agent.ledger",
    "envs",
)
# Room -> top-level packages (or packages of ours) that its files must not import, not even lazily.
FORBIDDEN_IMPORTS = {
    "envs": {*HEAVY, "megatron_agent"},
    "megatron_agent/rollout": HEAVY,
    "megatron_agent/credit": HEAVY - {"torch"},
    "megatron_agent/plan": {"verl", "ray"},
    "megatron_agent/ledger": HEAVY,
    "megatron_agent/checkpoint": {"verl", "ray", "sglang"},
}


# --- layering --------------------------------------------------------------------------------


@pytest.mark.parametrize("module", LIGHT_MODULES)
def test_importing_a_light_module_loads_no_heavy_package(module: str) -> None:
    program = f"import sys, {module}; print(*{{name.split('.')[0] for name in sys.modules}})"
    loaded = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    assert HEAVY.intersection(loaded) == set()


def imported_packages(path: Path) -> set[str]:
    """Top-level names of all absolute imports in a file, those inside functions too."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names.update(alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names.add(node.module.split(".")[0])
    return names


@pytest.mark.parametrize("room", FORBIDDEN_IMPORTS)
def test_a_room_imports_only_what_it_may(room: str) -> None:
    offenders = {
        str(path.relative_to(ROOT)): sorted(bad)
        for path in (ROOT / room).rglob("*.py")
        if (bad := imported_packages(path) & FORBIDDEN_IMPORTS[room])
    }
    assert offenders == {}


def test_tests_is_not_a_package_because_verls_wheel_owns_that_name() -> None:
    assert list((ROOT / "tests").rglob("__init__.py")) == []


def test_no_module_is_a_drawer_for_everything() -> None:
    assert [p for room in ("megatron_agent", "envs") for p in (ROOT / room).rglob("utils.py")] == []


# --- metadata --------------------------------------------------------------------------------


@cache
def distribution() -> Distribution:
    """What setup.py declares, without building anything."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        return distutils.core.run_setup("setup.py", stop_after="init")


def requirements_of(*extras: str) -> list[Requirement]:
    """The base requirements and those of the extras."""
    declared = distribution()
    groups = [declared.install_requires, *(declared.extras_require[extra] for extra in extras)]
    return [Requirement(text) for group in groups for text in group]


def test_every_entry_point_names_something_that_exists() -> None:
    groups = distribution().entry_points.values()
    targets = [line.split("=")[1].strip() for lines in groups for line in lines]
    assert targets
    for target in targets:
        module, _, attribute = target.partition(":")
        path = ROOT / (module.replace(".", "/") + ".py")
        assert path.is_file(), f"{target}: there is no {path.relative_to(ROOT)}"
        body = ast.parse(path.read_text(encoding="utf-8")).body
        assert attribute in {getattr(node, "name", None) for node in body}, target


EXTRAS = tuple(
    extra
    for extra in distribution().extras_require
    if extra not in PROFILES and (ROOT / "requirements" / f"{extra}.lock").is_file()
)


def test_extras_with_a_lock_agree_on_what_they_share() -> None:
    assert {"alfworld", "scienceworld", "textworld", "textworld-express"} <= set(EXTRAS)
    for first, second in itertools.combinations(EXTRAS, 2):
        held, other = locked_versions(first), locked_versions(second)
        assert {name for name in held if other.get(name, held[name]) != held[name]} == set()


@pytest.mark.parametrize("extra", EXTRAS)
def test_the_lock_of_an_extra_moves_nothing_that_a_profile_holds(extra: str) -> None:
    locked = locked_versions(extra)
    for text in distribution().extras_require[extra]:
        requirement = Requirement(text)
        assert requirement.specifier.contains(locked[canonicalize_name(requirement.name)]), text
    for profile in PROFILES:
        held = locked_versions(profile)
        assert {name for name in locked if held.get(name, locked[name]) != locked[name]} == set()


@pytest.mark.parametrize("profile", PROFILES)
def test_the_locked_versions_lie_inside_the_bounds_of_setup_py(profile: str) -> None:
    locked = locked_versions(profile)
    for requirement in requirements_of(profile, "dev"):
        version = locked[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(version), (
            f"{profile}.lock has {version}: {requirement}"
        )


# --- lock files ------------------------------------------------------------------------------


def lock_text(profile: str) -> str:
    return (ROOT / "requirements" / f"{profile}.lock").read_text(encoding="utf-8")


@cache
def locked_versions(profile: str) -> dict[str, str]:
    pins = re.findall(r"^([a-zA-Z0-9._-]+)==(\S+)", lock_text(profile), flags=re.MULTILINE)
    return {canonicalize_name(name): version for name, version in pins}


@pytest.mark.parametrize("profile", PROFILES)
def test_every_locked_package_has_one_version_and_hashes(profile: str) -> None:
    # A backslash-newline joins a pin with its hashes; what stays alone on a line has none.
    joined = lock_text(profile).replace("\\\n", " ")
    pins = [line for line in joined.splitlines() if line and not line.lstrip().startswith("#")]
    assert len(pins) == len(locked_versions(profile)) > 100
    assert [pin for pin in pins if "==" not in pin or "--hash=sha256:" not in pin] == []


@pytest.mark.parametrize("profile", PROFILES)
def test_the_apex_of_pypi_is_never_required(profile: str) -> None:
    declared = requirements_of(*distribution().extras_require)
    names = {canonicalize_name(requirement.name) for requirement in declared}
    assert "apex" not in names | locked_versions(profile).keys()


@pytest.mark.parametrize("profile", PROFILES)
def test_a_lock_file_names_no_folder_of_the_machine_that_made_it(profile: str) -> None:
    assert re.findall(r"(?:^|\s)/\S+|file:\S+", lock_text(profile)) == []


def test_both_profiles_hold_shared_packages_in_the_same_version() -> None:
    cpu, gpu = locked_versions("cpu"), locked_versions("gpu")
    assert {name: (cpu[name], gpu.get(name)) for name in cpu if cpu[name] != gpu.get(name)} == {}


def test_the_cpu_profile_leaves_out_what_its_list_says() -> None:
    lines = (ROOT / "requirements" / "excludes-cpu.txt").read_text(encoding="utf-8").splitlines()
    excluded = {canonicalize_name(line) for line in lines if line and not line.startswith("#")}
    assert excluded & locked_versions("cpu").keys() == set()


@pytest.mark.parametrize("profile", PROFILES)
def test_the_lock_answers_every_requirement_it_was_compiled_from(profile: str) -> None:
    for source in ("common.in", "bridge.in", f"{profile}.in"):
        for line in (ROOT / "requirements" / source).read_text(encoding="utf-8").splitlines():
            text = line.split("#")[0].strip()
            if text and not text.startswith("-"):
                requirement = Requirement(text)
                version = locked_versions(profile).get(canonicalize_name(requirement.name), "")
                assert version and requirement.specifier.contains(version), f"{source}: {text}"


# --- documents -------------------------------------------------------------------------------


@pytest.mark.parametrize("document", ["README.md", "CONTRIBUTING.md", "docs/architecture.md"])
def test_every_path_that_a_map_names_exists(document: str) -> None:
    text = (ROOT / document).read_text(encoding="utf-8")
    rooms = "megatron_agent|envs|configs|tools|benchmarks|tests|docs|requirements"
    paths = set(re.findall(rf"`((?:{rooms})/[\w./-]*)`", text))
    assert paths
    assert sorted(path for path in paths if not (ROOT / path).exists()) == []


@pytest.mark.parametrize("document", sorted(ROOT.glob("*.md")) + sorted(ROOT.glob("docs/*.md")))
def test_every_relative_link_of_a_document_leads_somewhere(document: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]+)[^)]*\)", document.read_text(encoding="utf-8"))
    relative = [link for link in links if "://" not in link and not link.startswith("mailto:")]
    assert [link for link in relative if not (document.parent / link).exists()] == []
