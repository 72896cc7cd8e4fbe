"""Product files: both formats, where they are looked for, what is said about bad ones."""

from __future__ import annotations

import io
import json
import lzma
from pathlib import Path
from typing import Any

import pytest

from envs.data import EnvDataError
from envs.webshop.catalogue import load_catalogue
from envs.webshop.env import SPLITS, WebShopEnv, check_data, task_list
from envs.webshop.files import find_files, iterate_array, read_mapping, read_records
from envs.webshop.prepare import main
from envs.webshop.products import Product

pytestmark = pytest.mark.unit


def test_a_product_is_read_from_an_official_record(shirt: Product):
    assert shirt.asin == "b0shirt001"
    assert shirt.title == "Harbour Cotton Shirt for Men"
    assert shirt.description == "A shirt for every day. Machine wash."
    assert shirt.features == ("Long sleeve", "Buttons")
    assert shirt.rating == "4.5"
    assert shirt.category_path == ("Clothing", "Men", "Shirts")
    assert shirt.query == "shirts"
    assert shirt.options == {"size": ("small", "x-small"), "color": ("red | white", "small")}
    assert shirt.instruction == "Find me a machine wash shirt"
    assert [goal.instruction for goal in shirt.human_goals] == ["i want a red shirt"]


def test_a_price_range_becomes_one_price_by_the_product_alone(shirt: Product):
    assert shirt.price == 24.73


def test_a_product_without_a_price_costs_a_hundred_dollars(lamp: Product):
    assert lamp.price == 100.0


def test_a_record_that_webshops_loader_went_over_is_the_same_product(
    tmp_path: Path, shop_folder: Path
):
    packed = tmp_path / "packed"
    packed.mkdir()
    official = load_catalogue("small", "synthetic", 0, str(shop_folder))
    records = list(read_records(shop_folder / "items_shuffle_1000.json"))
    with lzma.open(packed / "webshop_products_1000.jsonl.xz", "wt", encoding="utf-8") as file:
        for record in records:
            pricing = [19.99, 29.99] if record["asin"] == "B0SHIRT001" else [100.0]
            product = {**record, "pricing": pricing, "options": {}}
            file.write(json.dumps({"id": "", "contents": "", "product": product}) + "\n")
    synthetic = (shop_folder / "items_ins_v2_1000.json").read_text(encoding="utf-8")
    (packed / "webshop_items_ins_v2_1000.json").write_text(synthetic, encoding="utf-8")
    assert load_catalogue("small", "synthetic", 0, str(packed)).products == official.products


def test_bad_and_repeated_records_are_left_out(shop_folder: Path):
    shop = load_catalogue("small", "synthetic", 0, str(shop_folder))
    assert [product.asin for product in shop.products[:3]] == [
        "b0shirt001",
        "b0000lamp1",
        "b0blouse00",
    ]
    assert len(shop.products) == 14
    assert [product.asin for product in shop.candidates] == ["b0shirt001", "b0000lamp1"]


def test_a_shop_is_loaded_once_in_a_process(shop_folder: Path):
    one = load_catalogue("small", "synthetic", 0, str(shop_folder))
    assert load_catalogue("small", "synthetic", 0, str(shop_folder)) is one


def test_a_part_of_the_full_file_is_read_as_it_is(shop_folder: Path):
    assert len(load_catalogue("full", "synthetic", 3, str(shop_folder)).products) == 2
    assert len(load_catalogue("full", "synthetic", 1, str(shop_folder)).products) == 1


@pytest.mark.parametrize("goals", ["synthetic", "human"])
def test_the_prepared_catalogue_is_the_same_shop(shop_folder: Path, goals: str):
    if goals == "synthetic":
        (shop_folder / "items_human_ins.json").unlink()
    assert main([str(shop_folder)]) == 0
    prepared = load_catalogue("full", goals, 0, str(shop_folder))
    in_memory = load_catalogue("full", goals, 1000, str(shop_folder))
    assert list(prepared.products) == in_memory.products
    assert list(prepared.candidates) == in_memory.candidates
    assert prepared.products[-1] == in_memory.products[-1]
    assert list(prepared.products[1:]) == in_memory.products[1:]
    for query in ("cotton shirt", "lamp", "zzz"):
        assert prepared.search(query) == in_memory.search(query)
    for seed in range(10):
        assert prepared.draw_goal(seed) == in_memory.draw_goal(seed)
    name = prepared.draw_goal(0).name
    assert prepared.named_goal(name) == in_memory.named_goal(name)
    with pytest.raises(ValueError, match="must name a"):
        prepared.named_goal("b0blouse00-0")
    options = {"catalogue": "full", "data_dir": str(shop_folder), "goals": goals}
    check_data(options)
    assert {start.name for split in SPLITS for start in task_list(split, options)}


def test_the_full_catalogue_wants_to_be_prepared(shop_folder: Path):
    options = {"catalogue": "full", "data_dir": str(shop_folder)}
    for ask in (check_data, lambda options: WebShopEnv().reset(seed=0, options=options)):
        with pytest.raises(EnvDataError, match=r"&& python -m envs\.webshop\.prepare \."):
            ask(options)


def test_a_failed_preparation_leaves_nothing_behind(
    shop_folder: Path, capsys: pytest.CaptureFixture[str]
):
    (shop_folder / "items_shuffle.json").write_text("[]", encoding="utf-8")
    assert main([str(shop_folder)]) == 2
    assert "It has no products." in capsys.readouterr().err
    assert [path for path in shop_folder.iterdir() if path.is_dir()] == []
    assert main([str(shop_folder / "none")]) == 2


def test_files_are_found_below_the_data_folder_of_the_tests(
    shop_folder: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("MEGATRON_AGENT_DATA", str(shop_folder))
    assert find_files("small", "").products == shop_folder / "items_shuffle_1000.json"
    monkeypatch.setenv("MEGATRON_AGENT_DATA", str(shop_folder.parent))
    shop_folder.rename(shop_folder.parent / "webshop")
    assert find_files("small", "").products.parent == shop_folder.parent / "webshop"


def test_missing_files_are_an_error_that_says_how_to_get_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("MEGATRON_AGENT_DATA", raising=False)
    with pytest.raises(EnvDataError, match="gdown 1EgHdxQ_"):
        WebShopEnv().reset(seed=0)
    with pytest.raises(EnvDataError, match="has no webshop_prepared"):
        check_data({"catalogue": "full", "data_dir": str(tmp_path)})


def test_human_goals_need_their_file(shop_folder: Path):
    (shop_folder / "items_human_ins.json").unlink()
    check_data({"data_dir": str(shop_folder)})
    with pytest.raises(EnvDataError, match=r"has no items_human_ins\.json"):
        check_data({"data_dir": str(shop_folder), "goals": "human"})


def test_products_without_goals_are_an_error(shop_folder: Path):
    (shop_folder / "items_ins_v2.json").write_text("{}", encoding="utf-8")
    with pytest.raises(EnvDataError, match=r"none of its 2 has one\. Use another catalogue"):
        load_catalogue("full", "synthetic", 1000, str(shop_folder))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "must start with"),
        ('[{"asin": "B1"', "ends in the middle"),
        ('[{"asin": "B1"}]', "record 0 is not a product of WebShop .KeyError: 'name'"),
    ],
)
def test_a_damaged_products_file_is_named(shop_folder: Path, content: str, message: str):
    (shop_folder / "items_shuffle.json").write_text(content, encoding="utf-8")
    with pytest.raises(EnvDataError, match=message) as error:
        load_catalogue("full", "synthetic", 1000, str(shop_folder))
    assert "items_shuffle.json" in str(error.value)


@pytest.mark.parametrize(("content", "message"), [("{", "cannot be read"), ("[]", "got a list")])
def test_a_damaged_file_of_goals_is_named(tmp_path: Path, content: str, message: str):
    path = tmp_path / "goals.json"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(EnvDataError, match=message):
        read_mapping(path)


def test_an_array_is_decoded_element_by_element_whatever_its_chunks(
    monkeypatch: pytest.MonkeyPatch,
):
    elements: list[Any] = [{"a": "x" * 50, "b": [1, 2]}, 12345, "[,]", {}]
    text = " " + json.dumps(elements, indent=2) + "\n"
    for size in (1, 2, 7, 64, 10_000):
        monkeypatch.setattr("envs.webshop.files._CHUNK_CHARS", size)
        if size > 1:  # the first chunk must show what the file is
            assert list(iterate_array(io.StringIO(text))) == elements
