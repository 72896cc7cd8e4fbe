"""What a purchase is worth, after the reward of the WebShop paper (arXiv 2207.01206).

    score = type * (matched attributes + matched options + [price <= limit])
                 / (wanted attributes + wanted options + 1)

Compared is the bought product with the goal, never with the goal's own product, so another product
may be worth 1 too. Where the paper leaves room, or its published code does something else:

- *Title words* decide the type. The paper takes the nouns that spaCy finds; here they are the words
  of the title without function words and numbers, so no language model is needed.
- A wanted option is matched by the bought value of the same name. The published code counts bought
  values instead: a value that stands anywhere in the title scores, though nobody asked for it.
- The published code also reduces options to colours they contain, which makes "standard" equal to
  "tan". It is left out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from rapidfuzz.fuzz import token_set_ratio
from rapidfuzz.utils import default_process

from envs.webshop.goals import Goal
from envs.webshop.products import Product

_SIMILAR = 85.0
_EXACT_OPTIONS = ("size",)  # "small" is contained in "x-small" and is something else
_TITLE_WORD = re.compile(r"[^\W\d_]{2,}")
_FUNCTION_WORDS = frozenset(
    _TITLE_WORD.findall(
        "an and are as at by for from in into is it its of on or per the this to with without you "
        "your inch inches pack pcs piece pieces set"
    )
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Score:
    """The parts of a purchase's worth."""

    type_factor: float
    """1, 0.5, 0.1 or 0: how far the product is of the wanted kind."""
    num_attributes: int
    num_options: int
    price_fits: bool
    total: float
    """From 0 to 1."""


def score_purchase(product: Product, chosen: Mapping[str, str], goal: Goal) -> Score:
    """The worth of buying ``product`` with the options ``chosen`` (name to value)."""
    type_factor = score_type(product, goal.target)
    num_attributes = sum(_has_attribute(product, wanted) for wanted in goal.attributes)
    num_options = sum(_is_chosen(chosen, name, value) for name, value in goal.options)
    price_fits = goal.price_limit is None or product.price <= goal.price_limit
    matched = num_attributes + num_options + price_fits
    wanted = len(goal.attributes) + len(goal.options) + 1
    return Score(
        type_factor=type_factor,
        num_attributes=num_attributes,
        num_options=num_options,
        price_fits=price_fits,
        total=type_factor * matched / wanted,
    )


def score_type(product: Product, target: Product) -> float:
    """How far ``product`` is of the kind of ``target``.

    0 when the titles share no word, 0.1 when they share less than a tenth of the target's; else 1
    when they share more than a fifth, were found by the same search, or have two categories in
    common; else 0.5.
    """
    wanted_words = title_words(target.title)
    shared = 0.2  # the published value for a title without any noun
    if wanted_words:
        shared = len(wanted_words & title_words(product.title)) / len(wanted_words)
    if shared == 0:
        return 0.0
    if shared < 0.1:
        return 0.1
    same_category = len(set(product.category_path) & set(target.category_path)) >= 2
    if shared > 0.2 or product.query == target.query or same_category:
        return 1.0
    return 0.5


def title_words(title: str) -> frozenset[str]:
    """The words of a title that say what it is.

    Example:
        >>> sorted(title_words("2-Pack of Cotton Socks for Men"))
        ['cotton', 'men', 'socks']
    """
    return frozenset(_TITLE_WORD.findall(title.lower())) - _FUNCTION_WORDS


def _has_attribute(product: Product, wanted: str) -> bool:
    if any(_is_similar(attribute, wanted) for attribute in product.attributes):
        return True
    return wanted.lower() in product.page_text()


def _is_chosen(chosen: Mapping[str, str], name: str, value: str) -> bool:
    candidates = [name] if name else list(chosen)
    return any(
        chosen[candidate] == value
        or (candidate not in _EXACT_OPTIONS and _is_similar(chosen[candidate], value))
        for candidate in candidates
        if candidate in chosen
    )


def _is_similar(one: str, other: str) -> bool:
    return token_set_ratio(one, other, processor=default_process) > _SIMILAR
