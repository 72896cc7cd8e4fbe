"""Products as the shop uses them, made from records of the official files.

Two kinds of record are read: those of ``items_shuffle*.json`` as downloaded, and those that
WebShop's own loader has gone over (``pricing`` as numbers, ``options`` ready).
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from envs.printable import one_line

_DEFAULT_PRICE = 100.0
_PRICE = re.compile(r"\d[\d,]*(?:\.\d+)?")
_CATEGORY_MARK = "\N{SINGLE RIGHT-POINTING ANGLE QUOTATION MARK}"
_MAX_ASIN_CHARS = 10


@dataclass(frozen=True, kw_only=True, slots=True)
class HumanGoal:
    """An instruction that a person wrote for a product (``items_human_ins.json``)."""

    instruction: str
    attributes: tuple[str, ...]
    options: tuple[str, ...]
    """Values without the names of their options."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Product:
    """One product. All texts are printable and on one line."""

    asin: str
    """Its name in the shop, lower case."""
    title: str
    description: str
    features: tuple[str, ...]
    price: float
    """In dollars, two decimals."""
    rating: str
    category_path: tuple[str, ...]
    """From the widest to the narrowest, e.g. ``("Home & Kitchen", "Furniture")``."""
    query: str
    """The search by which the product was found when the data were collected: its kind."""
    options: Mapping[str, tuple[str, ...]]
    """Option name to values, lower case."""
    attributes: tuple[str, ...]
    instruction: str
    """What a customer who wants this product says; empty for most products."""
    instruction_attributes: tuple[str, ...]
    human_goals: tuple[HumanGoal, ...]

    def index_text(self) -> str:
        """What the search engine looks at."""
        options = (f"{name}: {', '.join(values)}" for name, values in self.options.items())
        return " ".join([self.title, self.description, *self.features[:1], *options])

    def page_text(self) -> str:
        """All that the product's pages say, lower case, to look for attributes in."""
        return "\n".join([self.title, *self.features, self.description]).lower()


def product_from_json(fields: Mapping[str, Any]) -> Product:
    """The product whose ``dataclasses.asdict`` went through JSON."""
    values = {name: _as_tuple(value) for name, value in fields.items()}
    values["options"] = {name: tuple(listed) for name, listed in fields["options"].items()}
    values["human_goals"] = tuple(
        HumanGoal(**{name: _as_tuple(value) for name, value in goal.items()})
        for goal in fields["human_goals"]
    )
    return Product(**values)


def is_usable(record: Mapping[str, Any]) -> bool:
    """Whether the record has a proper product number; the official file has a few without."""
    asin = record.get("asin")
    if not isinstance(asin, str) or not asin.isascii():
        return False
    return asin != "nan" and 0 < len(asin) <= _MAX_ASIN_CHARS


def product_from_record(
    record: Mapping[str, Any],
    synthetic: Mapping[str, Any] | None = None,
    human: Iterable[Mapping[str, Any]] = (),
) -> Product:
    """Make a product.

    Args:
        record: from the products file.
        synthetic: entry of ``items_ins_v2*.json`` for this product.
        human: entries of ``items_human_ins.json`` for this product.

    Raises:
        KeyError, TypeError: the record is not one of a product.
    """
    synthetic = synthetic or {}
    return Product(
        asin=record["asin"].lower(),
        title=one_line(record["name"]),
        description=one_line(record.get("full_description")),
        features=_features(record.get("small_description")),
        price=_price(record["asin"], record.get("pricing")),
        rating=one_line(record.get("average_rating")) or "none yet",
        category_path=tuple(
            part
            for part in map(one_line, str(record["product_category"]).split(_CATEGORY_MARK))
            if part
        ),
        query=one_line(record["query"]).lower(),
        options=_options(record.get("customization_options")),
        attributes=tuple(map(one_line, synthetic.get("attributes", ()))),
        instruction=one_line(synthetic.get("instruction")).rstrip("."),
        instruction_attributes=tuple(map(one_line, synthetic.get("instruction_attributes") or ())),
        human_goals=tuple(
            HumanGoal(
                instruction=one_line(entry["instruction"]).rstrip("."),
                attributes=tuple(map(one_line, entry["instruction_attributes"])),
                options=tuple(filter(None, map(_option_value, entry["instruction_options"]))),
            )
            for entry in human
            if entry["instruction_attributes"]
        ),
    )


def _as_tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _features(given: Any) -> tuple[str, ...]:
    lines = given if isinstance(given, list) else [given]
    return tuple(line for line in map(one_line, lines) if line)


def _price(asin: str, given: Any) -> float:
    """The official data give one price, or a range, or none. Out of a range each product has one
    price for good: it follows from the product's number alone, so all processes agree on it.
    """
    if isinstance(given, str):
        given = [float(number.replace(",", "")) for number in _PRICE.findall(given)]
    if not given:
        return _DEFAULT_PRICE
    low, high = min(given[:2]), max(given[:2])
    return round(random.Random(f"webshop price {asin}").uniform(low, high), 2)


def _options(given: Any) -> dict[str, tuple[str, ...]]:
    if not given:
        return {}
    options = {
        one_line(name).lower(): tuple(
            dict.fromkeys(filter(None, (_option_value(entry["value"]) for entry in entries or ())))
        )
        for name, entries in given.items()
    }
    return {name: values for name, values in options.items() if values}


def _option_value(text: Any) -> str:
    # Written with bars as in WebShop, so that human goals, which quote values so, match.
    return one_line(str(text).replace("/", " | ")).lower()
