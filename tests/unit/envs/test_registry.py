"""Exact names, lazy loading, and errors that help."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import subprocess
import sys
from types import SimpleNamespace

import pytest

from envs import registry
from envs.registry import (
    EnvCollisionError,
    EnvLoadError,
    EnvNotFoundError,
    EnvSpec,
    env_names,
    load_env,
)

pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True)
def fresh_lookup():
    registry._targets.cache_clear()
    yield
    registry._targets.cache_clear()


def register(monkeypatch: pytest.MonkeyPatch, **targets: str) -> None:
    found = [SimpleNamespace(name=name, value=value) for name, value in targets.items()]
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: found)


def test_a_registered_name_gives_its_spec():
    spec = load_env("frozenlake")
    assert isinstance(spec, EnvSpec)
    assert spec.name == "frozenlake"
    assert "frozenlake" in env_names()


@pytest.mark.parametrize("typo", ["frozenlak", "FrozenLake", "frozen_lake", "frozenlake "])
def test_an_unknown_name_lists_the_names_and_the_nearest(typo: str):
    with pytest.raises(EnvNotFoundError, match=r"Did you mean 'frozenlake'\? Registered: .*froz"):
        load_env(typo)


def test_a_name_like_no_other_gets_no_suggestion():
    with pytest.raises(EnvNotFoundError, match=r"'qqq'\. Registered: "):
        load_env("qqq")


def test_names_are_listed_without_importing_any_environment():
    code = (
        "import sys; from envs.registry import env_names; assert 'frozenlake' in env_names(); "
        "assert 'gymnasium' not in sys.modules and 'envs.frozenlake' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_two_packages_with_one_name_are_an_error(monkeypatch: pytest.MonkeyPatch):
    register(monkeypatch, frozenlake="other_package:SPEC")
    with pytest.raises(
        EnvCollisionError, match=r"'frozenlake' is claimed by both 'envs\.froz.*oth"
    ):
        load_env("frozenlake")


def test_one_package_seen_twice_is_no_collision(monkeypatch: pytest.MonkeyPatch):
    register(monkeypatch, frozenlake="envs.frozenlake:SPEC")
    assert load_env("frozenlake").name == "frozenlake"


def test_a_missing_dependency_is_named(monkeypatch: pytest.MonkeyPatch):
    register(monkeypatch, needy="no_such_package_here.env:SPEC")
    with pytest.raises(EnvLoadError, match=r"'needy'.*No module named 'no_such_package_here'.*pip"):
        load_env("needy")


def test_a_target_that_is_no_spec_is_an_error(monkeypatch: pytest.MonkeyPatch):
    register(monkeypatch, odd="envs.frozenlake:NAME")
    with pytest.raises(EnvLoadError, match=r"must be an EnvSpec, got str"):
        load_env("odd")


def test_a_spec_under_another_name_is_an_error(monkeypatch: pytest.MonkeyPatch):
    register(monkeypatch, ice="envs.frozenlake:SPEC")
    with pytest.raises(EnvLoadError, match=r"the one it is registered under, got 'frozenlake'"):
        load_env("ice")


@pytest.mark.parametrize("name", registry._BUILT_IN)
def test_the_built_in_table_names_real_modules(name: str):
    try:
        assert load_env(name).name == name
    except EnvLoadError as error:
        # What a module needs may not be installed; the module itself is there.
        missing = error.__cause__
        assert isinstance(missing, ModuleNotFoundError)
        assert not str(missing.name).startswith("envs")
