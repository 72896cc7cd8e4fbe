"""The pages of the shop: what each says, and what can be done there.

A page's text names everything that matters on it, chosen options included, so the text is also the
state by which steps are compared. Left out is the search that led to a product's page: it decides
only what ``< prev`` shows, and two ways to one product should meet.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from envs.webshop.products import Product

PAGE_SIZE = 10
BACK_TO_SEARCH = "back to search"
NEXT_PAGE = "next >"
PREVIOUS = "< prev"
BUY_NOW = "buy now"
DESCRIPTION, FEATURES = "description", "features"
DETAILS = (DESCRIPTION, FEATURES)
_BUTTONS = frozenset({BACK_TO_SEARCH, NEXT_PAGE, PREVIOUS, BUY_NOW, *DETAILS})
_MAX_DETAIL_CHARS = 2000
"""The longest descriptions have 15,000 characters; a prompt should not be made of one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Where the customer is. Immutable: every click makes a new one."""

    results: tuple[Product, ...] | None = None
    """Of the last search; None on the search page."""
    page_number: int = 1
    product: Product | None = None
    """The open product, if any."""
    chosen: Mapping[str, str] = field(default_factory=dict)
    """Chosen values by option name."""
    detail: str = ""
    """Which page of details is open on top of the product's, one of `DETAILS`, or empty."""

    @property
    def num_pages(self) -> int:
        """Pages of results, at least one."""
        return max(1, -(-len(self.results or ()) // PAGE_SIZE))

    @property
    def listed(self) -> tuple[Product, ...]:
        """Products on the current page of results."""
        last = self.page_number * PAGE_SIZE
        return (self.results or ())[last - PAGE_SIZE : last]


SEARCH_PAGE = Place()


def render(place: Place) -> str:
    """The page as text; its first line says which page it is."""
    if place.product is not None and place.detail:
        return _render_detail(place, place.product)
    if place.product is not None:
        return _render_product(place, place.product)
    if place.results is None:
        return "Search page\nThe shop lists products for the words you search."
    if not place.results:
        return "Results page 1 of 1, 0 products\nNothing was found."
    head = f"Results page {place.page_number} of {place.num_pages}, {len(place.results)} products"
    return "\n".join([head, *(f"{p.asin}: {p.title}, ${p.price:.2f}" for p in place.listed)])


def clickables(place: Place) -> tuple[str, ...]:
    """What can be clicked on a page, in reading order."""
    if place.product is not None and place.detail:
        return (BACK_TO_SEARCH, PREVIOUS)
    if place.product is not None:
        return (BACK_TO_SEARCH, PREVIOUS, *DETAILS, *option_labels(place.product), BUY_NOW)
    if place.results is None:
        return ()
    around = []
    if place.page_number > 1:
        around.append(PREVIOUS)
    if place.page_number < place.num_pages:
        around.append(NEXT_PAGE)
    return (BACK_TO_SEARCH, *around, *(product.asin for product in place.listed))


def follow(place: Place, label: str) -> Place:
    """Where a click on ``label``, one of `clickables` other than ``buy now``, leads."""
    if label == BACK_TO_SEARCH:
        return SEARCH_PAGE
    if place.product is not None:
        return _follow_on_product(place, place.product, label)
    if label == NEXT_PAGE:
        return replace(place, page_number=place.page_number + 1)
    if label == PREVIOUS:
        return replace(place, page_number=place.page_number - 1)
    product = next(product for product in place.listed if product.asin == label)
    return replace(place, product=product, chosen={})


def option_labels(product: Product) -> dict[str, tuple[str, str]]:
    """What to click for each option: label to ``(option name, value)``.

    The label is the value. A value that two options share, or that reads like a button, is written
    ``name: value``.
    """
    pairs = [(name, value) for name, values in product.options.items() for value in values]
    values = [value for _, value in pairs]
    return {
        value if values.count(value) == 1 and value not in _BUTTONS else f"{name}: {value}": (
            name,
            value,
        )
        for name, value in pairs
    }


def _follow_on_product(place: Place, product: Product, label: str) -> Place:
    if label == PREVIOUS:
        return (
            replace(place, detail="") if place.detail else replace(place, product=None, chosen={})
        )
    if label in DETAILS:
        return replace(place, detail=label)
    name, value = option_labels(product)[label]
    return replace(place, chosen={**place.chosen, name: value})


def _render_product(place: Place, product: Product) -> str:
    lines = [
        f"Product {product.asin}",
        product.title,
        f"Price: ${product.price:.2f}",
        f"Rating: {product.rating}",
    ]
    for name, values in product.options.items():
        lines.append(f"{name}: {'; '.join(values)} (chosen: {place.chosen.get(name, 'none')})")
    return "\n".join(lines)


def _render_detail(place: Place, product: Product) -> str:
    if place.detail == DESCRIPTION:
        text = product.description
    else:
        text = "\n".join(f"- {feature}" for feature in product.features)
    if len(text) > _MAX_DETAIL_CHARS:
        text = f"{text[:_MAX_DETAIL_CHARS].rstrip()} ..."
    lines = [f"{place.detail.capitalize()} of product {product.asin}", text or "There is none."]
    # In the order of the options, not of the clicks: the same choice is the same state.
    chosen = [f"{name}: {place.chosen[name]}" for name in product.options if name in place.chosen]
    if chosen:
        lines.append(f"Chosen: {'; '.join(chosen)}")
    return "\n".join(lines)
