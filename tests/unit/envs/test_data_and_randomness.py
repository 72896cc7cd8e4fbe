"""Data of users, private random state, printable text."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from envs.data import DATA_OPTION, EnvDataError, find_data
from envs.printable import printable
from envs.randomness import PrivateRandomState

pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("MEGATRON_AGENT_DATA", raising=False)
    monkeypatch.delenv("SHOP_DATA", raising=False)


def find(given: str = "") -> Path:
    return find_data(
        "shop", given, needs=["items.json", "*.db"], command="shop-get", variables=["SHOP_DATA"]
    )


def fill(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "items.json").touch()
    (folder / "any.db").touch()
    return folder


def test_the_option_goes_before_the_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    given, theirs = fill(tmp_path / "given"), fill(tmp_path / "theirs")
    ours = fill(tmp_path / "data" / "shop")
    monkeypatch.setenv("MEGATRON_AGENT_DATA", str(tmp_path / "data"))
    assert find() == ours
    monkeypatch.setenv("SHOP_DATA", str(theirs))
    assert find() == theirs
    assert find(str(given)) == given


def test_a_place_that_lacks_something_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    ours = fill(tmp_path / "data" / "shop")
    monkeypatch.setenv("SHOP_DATA", str(tmp_path))
    monkeypatch.setenv("MEGATRON_AGENT_DATA", str(tmp_path / "data"))
    assert find() == ours


def test_missing_data_name_places_command_and_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(EnvDataError, match=r"no folder was named .*Get them with: shop-get; then"):
        find()
    monkeypatch.setenv("SHOP_DATA", str(tmp_path))
    with pytest.raises(EnvDataError, match=r"\(\$SHOP_DATA\) has no items.json.*env.options"):
        find()
    with pytest.raises(EnvDataError, match=r"/nowhere \(option data_dir\) has no items.json\. Get"):
        find("/nowhere")


def test_a_data_folder_is_a_text():
    assert DATA_OPTION.allows("/somewhere")
    assert not DATA_OPTION.allows(None)


def test_private_states_neither_see_nor_change_the_global_one():
    random.seed(1)
    np.random.seed(1)
    outside = random.getstate(), np.random.get_state()[1].tolist()
    one, other = PrivateRandomState(7), PrivateRandomState(7)
    with one:
        first = random.random(), np.random.rand()
    with other:
        assert (random.random(), np.random.rand()) == first
    with one:
        assert (random.random(), np.random.rand()) != first
    assert (random.getstate(), np.random.get_state()[1].tolist()) == outside


def test_an_error_inside_gives_the_global_state_back():
    random.seed(1)
    outside = random.getstate()
    with pytest.raises(ZeroDivisionError), PrivateRandomState(2**40):
        random.random()
        raise ZeroDivisionError
    assert random.getstate() == outside


def test_a_private_state_is_used_once_at_a_time():
    private = PrivateRandomState(1)
    with private, pytest.raises(RuntimeError, match="in use"), private:
        pass


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain\tand\nlines", "plain\tand\nlines"),
        ("\x1b[1m\x1b[31mred\x1b[0m", "[red]"),
        ("\x1b[2J\x1b[Hcleared", "cleared"),
        ("a\x00b\x07\r\n", "ab\n"),
        ("bad \ud800 end", "bad  end"),
        ("\x1b", ""),
    ],
)
def test_text_of_libraries_is_made_printable(text: str, shown: str):
    assert printable(text) == shown
