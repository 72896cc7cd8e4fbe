"""What a customer wants. A shop has a fixed, numbered set of goals, the same in every process.

A synthetic goal is a product that has an instruction, one value of each of its options, and a price
limit above its price. A human goal is one of the instructions that people wrote for a product.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from envs.webshop.products import Product

_PRICE_STEP = 10.0
_MAX_PRICE_LIMIT = 990.0
_NUM_LIMITS = 4
_EVAL_SHARE = 0.25
_MAX_LISTED_PER_PRODUCT = 20
_MAX_LISTED = 50_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Goal:
    """What to buy, and what counts as a match (see `envs.webshop.reward`)."""

    name: str
    """``<product>-<number>``."""
    target: Product
    """The product that the goal was made from; the reward does not ask for this very one."""
    wish: str
    """The instruction without the price limit."""
    attributes: tuple[str, ...]
    options: tuple[tuple[str, str], ...]
    """``(option name, value)``; the name is empty where a person named only a value."""
    price_limit: float | None
    """In dollars; None when any price will do."""

    @property
    def instruction(self) -> str:
        """The whole wish in words."""
        if self.price_limit is None:
            return self.wish
        return f"{self.wish}, and price lower than {self.price_limit:.2f} dollars"


def num_goals(product: Product, kind: str) -> int:
    """How many goals of ``kind`` (``synthetic`` or ``human``) ask for ``product``."""
    if kind == "human":
        return len(product.human_goals)
    if not (product.instruction and product.instruction_attributes):
        return 0
    number = 1
    for values in product.options.values():
        number *= len(values)
    return number


def make_goal(product: Product, kind: str, number: int) -> Goal:
    """Goal ``number`` of a product, from 0 to below `num_goals`."""
    name = f"{product.asin}-{number}"
    if kind == "human":
        written = product.human_goals[number]
        wish, attributes = written.instruction, written.attributes
        options = tuple(("", value) for value in written.options)
    else:
        options = _combination(product, number)
        wish, attributes = product.instruction, product.instruction_attributes
        if options:
            wish += " with " + ", and ".join(f"{option}: {value}" for option, value in options)
    return Goal(
        name=name,
        target=product,
        wish=wish,
        attributes=attributes,
        options=options,
        price_limit=_draw_limit(product.price, random.Random(f"webshop limit {name}")),
    )


def draw_goal(candidates: Sequence[Product], kind: str, seed: int) -> Goal:
    """The goal of ``seed``, among those of ``candidates``, each of which has goals.

    Products are drawn evenly, not goals: one product with 558 combinations of options would
    otherwise be every twelfth task.
    """
    rng = random.Random(f"webshop goal {seed}")
    product = rng.choice(candidates)
    return make_goal(product, kind, rng.randrange(num_goals(product, kind)))


def listed_goals(candidates: Sequence[Product], kind: str, split: str) -> Iterator[str]:
    """Names of the goals of a split (``train`` or ``eval``).

    The product decides the split, so no product wanted in evaluation is ever wanted in training. Of
    a product with many goals only a few are listed, the same ones always.
    """
    most = max(1, min(_MAX_LISTED_PER_PRODUCT, _MAX_LISTED // len(candidates)))
    for product in candidates:
        if split_of(product) == split:
            numbers: Sequence[int] = range(num_goals(product, kind))
            if len(numbers) > most:
                rng = random.Random(f"webshop list {product.asin}")
                numbers = sorted(rng.sample(numbers, most))
            yield from (f"{product.asin}-{number}" for number in numbers)


def split_of(product: Product) -> str:
    """``eval`` for a quarter of the products, decided by nothing but the product's number."""
    digest = hashlib.blake2b(product.asin.encode(), digest_size=8).digest()
    return "eval" if int.from_bytes(digest, "big") < _EVAL_SHARE * 2**64 else "train"


def options_to_choose(goal: Goal) -> Mapping[str, str]:
    """The options of the target that fulfil the goal, by name.

    A human goal's nameless value is looked up among the target's values; one that is not there is
    left out, since nothing on the page fulfils it.
    """
    chosen: dict[str, str] = {}
    for name, value in goal.options:
        for candidate in [name] if name else list(goal.target.options):
            if candidate not in chosen and value in goal.target.options[candidate]:
                chosen[candidate] = value
                break
    return chosen


def _combination(product: Product, number: int) -> tuple[tuple[str, str], ...]:
    """One value of every option; ``number`` counts through all combinations."""
    pairs = []
    for option in sorted(product.options):
        values = product.options[option]
        number, place = divmod(number, len(values))
        pairs.append((option, values[place]))
    return tuple(pairs)


def _draw_limit(price: float, rng: random.Random) -> float | None:
    """One of the next few round prices above ``price``; the higher of two, as in WebShop. Products
    at the top of the scale get no limit.
    """
    first = int(price // _PRICE_STEP) + 1
    limits = [_PRICE_STEP * (first + number) for number in range(_NUM_LIMITS)]
    limits = [limit for limit in limits if limit <= _MAX_PRICE_LIMIT]
    return max(rng.sample(limits, 2)) if len(limits) >= 2 else None
