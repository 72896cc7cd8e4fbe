"""A shop of a dozen products, in the format of the official files. The hash of its number puts the
lamp into `eval`, the shirt into `train`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from envs.webshop.products import Product, product_from_record

SHIRT = {
    "asin": "B0SHIRT001",
    "name": "Harbour Cotton Shirt for Men\xa0",
    "full_description": "A shirt for every day.\nMachine wash.",
    "pricing": "$19.99$29.99",
    "images": [],
    "product_category": " \N{SINGLE RIGHT-POINTING ANGLE QUOTATION MARK} ".join(
        ["Clothing", "Men", "Shirts"]
    ),
    "average_rating": 4.5,
    "small_description": ["Long sleeve", " Buttons "],
    "customization_options": {
        "Size": [{"value": "Small"}, {"value": "X-Small"}],
        "Color": [{"value": "Red/White"}, {"value": "Small"}],
        "Style": None,
    },
    "category": "fashion",
    "query": "Shirts",
}
LAMP = {
    "asin": "B0000LAMP1",
    "name": "Brass Desk Lamp",
    "full_description": "x" * 3000,
    "pricing": "",
    "images": [],
    "product_category": "",
    "average_rating": "",
    "small_description": "Dimmable",
    "customization_options": "",
    "category": "garden",
    "query": "lamps",
}
BLOUSES = [
    {**LAMP, "asin": f"B0BLOUSE{number:02}", "name": f"Cotton Blouse Number {number}"}
    for number in range(12)
]
BROKEN = {**LAMP, "asin": "nan"}
SYNTHETIC = {
    "B0SHIRT001": {
        "attributes": ["machine wash", "long sleeve"],
        "instruction": "Find me a machine wash shirt.",
        "instruction_attributes": ["machine wash"],
    },
    "B0000LAMP1": {
        "attributes": ["dimmable"],
        "instruction": "Find me a dimmable lamp",
        "instruction_attributes": ["dimmable"],
    },
    "B0BLOUSE00": {"attributes": ["light weight"]},
}
HUMAN = {
    "B0SHIRT001": [
        {
            "instruction": "i want a red shirt.",
            "instruction_attributes": ["long sleeve"],
            "instruction_options": ["red | white"],
        },
        {"instruction": "?", "instruction_attributes": [], "instruction_options": []},
    ],
    "B0000LAMP1": [
        {"instruction": "a lamp", "instruction_attributes": ["dimmable"], "instruction_options": []}
    ],
}


@pytest.fixture
def shop_folder(tmp_path: Path) -> Path:
    """A data folder with the small catalogue, the full one, and human goals."""
    products: list[Any] = [SHIRT, BROKEN, LAMP, SHIRT, *BLOUSES]
    for name, content in (
        ("items_shuffle_1000.json", products),
        ("items_ins_v2_1000.json", SYNTHETIC),
        ("items_shuffle.json", products[:3]),
        ("items_ins_v2.json", SYNTHETIC),
        ("items_human_ins.json", HUMAN),
    ):
        (tmp_path / name).write_text(json.dumps(content), encoding="utf-8")
    return tmp_path


@pytest.fixture
def options(shop_folder: Path) -> dict[str, Any]:
    """Options that lead to the shop."""
    return {"data_dir": str(shop_folder)}


@pytest.fixture
def shirt() -> Product:
    return product_from_record(SHIRT, SYNTHETIC["B0SHIRT001"], HUMAN["B0SHIRT001"])


@pytest.fixture
def lamp() -> Product:
    return product_from_record(LAMP, SYNTHETIC["B0000LAMP1"])
