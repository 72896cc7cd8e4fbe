"""Every file in configs/ composes and passes all checks but for the model that is not there."""

from __future__ import annotations

import copy
import importlib.util
import itertools
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from envs.registry import env_names, load_env
from megatron_agent.config import Findings, check_config, compose_config, root_names
from megatron_agent.config.overrides import CONFIGS_DIR, GROUPS, group_options
from megatron_agent.config.values import leaf_items
from megatron_agent.config.verl_tree import verl_defaults

pytestmark = pytest.mark.unit

MODULES_OF_EXTRAS = {
    "alfworld": "fast_downward",
    "scienceworld": "scienceworld",
    "textworld": "textworld",
    "textworld_express": "textworld_express",
}
CHOICES = [(group, name) for group in GROUPS for name in group_options(group)]


def keys_with_problems(root: str, *overrides: str) -> list[str]:
    findings = Findings()
    check_config(compose_config(overrides, config_name=root, findings=findings), findings)
    assert findings.warnings == []
    return [problem.key for problem in findings.problems]


@pytest.mark.parametrize("root", root_names())
def test_every_root_is_fine(root: str) -> None:
    assert set(keys_with_problems(root)) <= {"actor_rollout_ref.model.path"}


@pytest.mark.parametrize(("group", "name"), CHOICES)
def test_every_file_of_a_group_is_fine(
    group: str,
    name: str,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    is_there = name not in MODULES_OF_EXTRAS or importlib.util.find_spec(MODULES_OF_EXTRAS[name])
    if group == "env" and name == "alfworld":
        game = tmp_path / "json_2.1.1/train/pick_and_place_simple-A-None-B-1/trial/game.tw-pddl"
        game.parent.mkdir(parents=True)
        game.touch()
        monkeypatch.setenv("ALFWORLD_DATA", str(tmp_path))
    elif group == "env" and name == "textworld":
        (tmp_path / "textworld" / "train").mkdir(parents=True)
        (tmp_path / "textworld" / "train" / "cooking-0.z8").touch()
        monkeypatch.setenv("MEGATRON_AGENT_DATA", str(tmp_path))
    elif group == "env" and name == "appworld":
        options = request.getfixturevalue("appworld_options")
        monkeypatch.setenv("APPWORLD_PYTHON", options["python"])
        monkeypatch.setenv("APPWORLD_ROOT", options["data_dir"])
    elif group == "env" and name == "openenv":
        url = request.getfixturevalue("openenv_url")
        monkeypatch.setenv("MEGATRON_AGENT_OPENENV_URL", f"{url}/hunt")
    elif group == "env" and name in env_names() and is_there and load_env(name).check_data:
        monkeypatch.setenv("MEGATRON_AGENT_DATA", str(request.getfixturevalue("shared_data")))
    expected = {"actor_rollout_ref.model.path"}
    if compose_config([f"{group}={name}"]).cluster.get("hardware") is not None:
        # Sized for a node's CPUs; and the data of a large run need not be here.
        monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: range(128))
        expected.add("env.env_name")
    if name == "custom":  # it is for an environment of one's own, which has no name yet
        expected.add("env.env_name")
    if not is_there:
        expected.add("env.env_name")  # the message says which extra to install
    assert set(keys_with_problems("gigpo", f"{group}={name}")) <= expected


def test_no_file_is_left_out() -> None:
    files = {str(path.relative_to(CONFIGS_DIR)) for path in CONFIGS_DIR.rglob("*.yaml")}
    covered = {f"{root}.yaml" for root in root_names()}
    covered |= {f"{group}/{name}.yaml" for group, name in CHOICES}
    parts = {"base.yaml", "env/base.yaml", "credit/base.yaml"}
    parts |= {f"cluster/gpu/{name}.yaml" for name in ("node", "h100", "h200")}
    parts |= {"experiment/paper/gigpo_1p5b.yaml"}
    assert files - covered == parts


def test_values_for_a_cpu_stand_in_one_file() -> None:
    """`configs/cluster/` alone decides the device (ARCHITECTURE.md, what must stay true, 8)."""
    named = ("device:", "engine_kwargs:", "ray_kwargs:", "use_cpu_initialization:", "dtype:")
    for path in CONFIGS_DIR.rglob("*.yaml"):
        if path.parent.name not in ("cluster", "gpu"):
            lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
            assert not [line for line in lines if line.lstrip().startswith(named)], path


def test_every_setting_of_a_file_for_gpus_has_its_reason() -> None:
    """A value without a comment above it, or above the section it stands in, is a riddle later."""
    for folder in ("cluster/gpu", "experiment", "experiment/paper", "model"):
        for path in (CONFIGS_DIR / folder).glob("*.yaml"):
            if path.stem not in ("demo", "frozenlake_cpu", "tiny"):
                assert unexplained(path.read_text(encoding="utf-8").splitlines()) == [], path


def unexplained(lines: list[str]) -> list[str]:
    """Values that follow neither a comment nor another value of the same section; names may."""
    found = []
    for before, line in itertools.pairwise(lines):
        needs_none = ("#", "-", "name:", "model_shape:")
        is_value = not line.lstrip().startswith(needs_none) and re.search(r":\s+\S", line)
        follows_value = re.search(r":\s+\S", before) and indent(before) == indent(line)
        if is_value and not before.lstrip().startswith("#") and not follows_value:
            found.append(line)
    return found


@pytest.mark.parametrize("name", group_options("experiment"))
def test_every_value_of_an_experiment_differs_from_what_it_inherits(name: str) -> None:
    path = CONFIGS_DIR / "experiment" / f"{name}.yaml"
    before = dict(leaf_items(inherited(path)))
    own = leaf_items(without_defaults(path))
    assert [key for key, value in own if key in before and before[key] == value] == []


def inherited(path: Path) -> dict[str, Any]:
    """verl's values, ours of every run, and those of the files in the defaults list of ``path``."""
    tree: dict[str, Any] = copy.deepcopy(dict(verl_defaults()))
    for name in ("base", "credit/base"):
        section = without_defaults(CONFIGS_DIR / f"{name}.yaml")
        merge(tree, {"algorithm": section} if name == "credit/base" else section)
    for parent in parents(path):
        merge(tree, without_defaults(parent))
    return tree


def parents(path: Path) -> Iterator[Path]:
    """Files of the defaults list in its order, ancestors first."""
    entries = (yaml.safe_load(path.read_text(encoding="utf-8")) or {}).get("defaults", [])
    for entry in entries:
        if isinstance(entry, str) and entry != "_self_" and "@" not in entry:
            parent = path.parent / f"{entry}.yaml"
            yield from (*parents(parent), parent)
        elif isinstance(entry, dict):
            ((group, name),) = entry.items()
            parent = CONFIGS_DIR / group.removeprefix("override /") / f"{name}.yaml"
            yield from (*parents(parent), parent)


def without_defaults(path: Path) -> dict[str, Any]:
    tree = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    tree.pop("defaults", None)
    return tree


def merge(tree: dict[str, Any], more: Mapping[str, Any]) -> None:
    for key, value in more.items():
        if isinstance(value, dict) and isinstance(tree.get(key), dict):
            merge(tree[key], value)
        else:
            tree[key] = copy.deepcopy(value)


def test_published_differences_are_of_scale_alone() -> None:
    """A perfect purchase pays a tenth of the published reward: so does what is weighed with it."""
    actor = compose_config(["experiment=paper_webshop_1p5b"]).actor_rollout_ref.actor
    published = compose_config(["experiment=paper_alfworld_1p5b"]).actor_rollout_ref.actor
    for key in ("invalid_action_penalty_coef", "kl_loss_coef", "entropy_coeff"):
        assert actor[key] == pytest.approx(published[key] / 10), key
    assert actor.optim.clip_grad == pytest.approx(published.optim.clip_grad / 10)


def test_what_the_published_scripts_choose_is_chosen() -> None:
    assert compose_config(["experiment=paper_webshop_1p5b"]).env.options.reward == "success"
    assert compose_config(["experiment=paper_alfworld_1p5b"]).env.options.anchor == "observation"
    search = compose_config(["experiment=paper_search_7b"]).actor_rollout_ref.rollout.val_kwargs
    assert (search.do_sample, search.temperature) == (False, 0.0)


def indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def test_a_cluster_has_the_last_word_over_what_all_runs_share() -> None:
    """Or the weight sync would go unwatched on a CPU."""
    config = compose_config(["experiment=demo"])
    assert config.trainer.max_rollout_probs_diff == 1e-4
