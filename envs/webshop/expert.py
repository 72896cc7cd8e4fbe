"""A customer who knows which product the goal was made from, and finds it as anybody would."""

from __future__ import annotations

from envs.base import TextEnv
from envs.webshop.actions import MAX_QUERY_CHARS
from envs.webshop.catalogue import Catalogue
from envs.webshop.env import WebShopEnv
from envs.webshop.goals import Goal, options_to_choose
from envs.webshop.pages import (
    BACK_TO_SEARCH,
    BUY_NOW,
    NEXT_PAGE,
    PAGE_SIZE,
    PREVIOUS,
    Place,
    option_labels,
)
from envs.webshop.products import Product


def expert(env: TextEnv) -> list[str]:
    """The whole plan from the current page to the purchase; empty when the episode is over, or when
    no search brings the product up.

    It searches for the words of the instruction, so that a learner can see where the query comes
    from; only when they do not bring up the product, for its title.

    Raises:
        TypeError: ``env`` is not a `WebShopEnv`.
    """
    if not isinstance(env, WebShopEnv):
        raise TypeError(f"the WebShop expert needs a WebShopEnv, got {type(env).__name__}.")
    if env.done:
        return []
    place, goal = env.place, env.goal
    if place.product is None or place.product.asin != goal.target.asin:
        way = _find(place, goal, env.catalogue)
        return [*way, *_configure(goal, {}), _click(BUY_NOW)] if way else []
    leave_detail = [_click(PREVIOUS)] if place.detail else []
    return [*leave_detail, *_configure(goal, dict(place.chosen)), _click(BUY_NOW)]


def _find(place: Place, goal: Goal, catalogue: Catalogue) -> list[str]:
    """From anywhere to the product's page; empty when there is no way."""
    if place.product is None and place.results and goal.target in place.results:
        return _turn_pages(place.results, place.page_number, goal.target)
    back = [] if place.results is None else [_click(BACK_TO_SEARCH)]
    for words in (goal.wish, goal.target.title):
        query = words[:MAX_QUERY_CHARS].rstrip()
        results = catalogue.search(query)
        if goal.target in results:
            return [*back, f"search[{query}]", *_turn_pages(results, 1, goal.target)]
    return []


def _turn_pages(results: tuple[Product, ...], page_number: int, target: Product) -> list[str]:
    """Clicks from one page of results to the product on it or on another."""
    pages_ahead = results.index(target) // PAGE_SIZE + 1 - page_number
    turns = [_click(NEXT_PAGE if pages_ahead > 0 else PREVIOUS)] * abs(pages_ahead)
    return [*turns, _click(target.asin)]


def _configure(goal: Goal, chosen: dict[str, str]) -> list[str]:
    label_of = {pair: label for label, pair in option_labels(goal.target).items()}
    return [
        _click(label_of[name, value])
        for name, value in options_to_choose(goal).items()
        if chosen.get(name) != value
    ]


def _click(label: str) -> str:
    return f"click[{label}]"
