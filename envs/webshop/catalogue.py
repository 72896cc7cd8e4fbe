"""A shop: its products, its search engine, and the products that goals are made from.

Loaded once in a process and shared by all environments in it; nothing here changes after loading.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from envs.bm25 import Bm25Index
from envs.data import EnvDataError
from envs.webshop.files import (
    ShopFiles,
    find_files,
    find_prepared,
    read_mapping,
    read_records,
)
from envs.webshop.goals import Goal, draw_goal, make_goal, num_goals
from envs.webshop.prepared import INDEX_FOLDER, PreparedProducts
from envs.webshop.products import Product, is_usable, product_from_record

_MAX_RESULTS = 50


@dataclass(frozen=True, kw_only=True)
class Catalogue:
    """Products in the order of the file; places in it are what the search engine returns."""

    products: Sequence[Product]
    index: Bm25Index
    candidates: Sequence[Product]
    """The products that goals are made from; at least one."""
    find_candidate: Callable[[str], Product | None]
    """One of them by its ``asin``."""
    goal_kind: str

    def search(self, query: str) -> tuple[Product, ...]:
        """At most 50 products that share a word with ``query``, best first."""
        return tuple(self.products[place] for place, _ in self.index.search(query, _MAX_RESULTS))

    def draw_goal(self, seed: int) -> Goal:
        """The goal of ``seed``."""
        return draw_goal(self.candidates, self.goal_kind, seed)

    def named_goal(self, name: str) -> Goal:
        """The goal of that name; raises ValueError when there is none."""
        asin, _, number = name.rpartition("-")
        product = self.find_candidate(asin)
        if product is None or not number.isdecimal():
            raise ValueError(
                f"option 'goal' of environment 'webshop' must name a {self.goal_kind} goal, such "
                f"as {self.candidates[0].asin}-0, got {name!r}."
            )
        if int(number) >= num_goals(product, self.goal_kind):
            raise ValueError(
                f"option 'goal' of environment 'webshop': product {asin} has the "
                f"{self.goal_kind} goals 0 to {num_goals(product, self.goal_kind) - 1}, "
                f"got {name!r}."
            )
        return make_goal(product, self.goal_kind, int(number))


def load_catalogue(catalogue: str, goals: str, num_products: int, data_dir: str) -> Catalogue:
    """The shop that these options name.

    Args:
        catalogue: ``small`` or ``full``.
        goals: ``synthetic`` or ``human``.
        num_products: only so many products from the start of the file; 0 for all.
        data_dir: option ``data_dir``, see `envs.data`.

    Raises:
        EnvDataError: files that are missing, damaged, or without a goal of that kind.
    """
    if catalogue == "full" and not num_products:
        return _load_prepared(find_prepared(data_dir), goals)
    return _load(find_files(catalogue, data_dir, human=goals == "human"), goals, num_products)


# One run uses one shop; two, when it evaluates on another one.
@functools.lru_cache(maxsize=2)
def _load(files: ShopFiles, goals: str, num_products: int) -> Catalogue:
    products = list(iterate_products(files, num_products))
    candidates = [product for product in products if num_goals(product, goals)]
    _require_candidates(candidates, products, goals, files.products)
    return Catalogue(
        products=products,
        index=Bm25Index(product.index_text() for product in products),
        candidates=candidates,
        find_candidate={product.asin: product for product in candidates}.get,
        goal_kind=goals,
    )


@functools.lru_cache(maxsize=2)
def _load_prepared(folder: Path, goals: str) -> Catalogue:
    products = PreparedProducts(folder)
    candidates = products.with_goals(goals)
    _require_candidates(candidates, products, goals, folder)
    return Catalogue(
        products=products,
        index=Bm25Index.load(folder / INDEX_FOLDER),
        candidates=candidates,
        find_candidate=candidates.find,
        goal_kind=goals,
    )


def _require_candidates(
    candidates: Sequence[Product], products: Sequence[Product], goals: str, place: Path
) -> None:
    if not candidates:
        raise EnvDataError(
            f"webshop: {place} must have products with {goals} goals, and none of its "
            f"{len(products)} has one. Use another catalogue, more products, or other goals."
        )


def iterate_products(files: ShopFiles, num_products: int = 0) -> Iterator[Product]:
    """The products of the official files, each once; 0 for all.

    Raises:
        EnvDataError: files that are damaged.
    """
    synthetic = read_mapping(files.synthetic)
    human = read_mapping(files.human) if files.human else {}
    seen: set[str] = set()
    for number, record in enumerate(read_records(files.products)):
        if num_products and number >= num_products:
            break
        try:
            if not is_usable(record) or record["asin"] in seen:
                continue
            asin = record["asin"]
            product = product_from_record(record, synthetic.get(asin), human.get(asin, ()))
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise EnvDataError(
                f"{files.products}: record {number} is not a product of WebShop "
                f"({type(error).__name__}: {error}). Download the file again."
            ) from error
        seen.add(asin)
        yield product
