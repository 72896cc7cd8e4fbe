"""WebShop: find, configure and buy the product that an instruction asks for.

A simulator of its own on the product data of WebShop (arXiv 2207.01206): search with BM25, up to 50
results on pages of 10, product pages with options and details, one purchase. Text only; no browser
and no server.

The step limit is the episode runner's (``env.max_steps``); only a purchase ends an episode here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from envs.base import Observation, StepOutcome, TaskStart, TextEnv
from envs.data import DATA_OPTION
from envs.options import Option, is_int, resolve_options
from envs.webshop.actions import MAX_QUERY_CHARS, argument_of, read_action
from envs.webshop.catalogue import Catalogue, load_catalogue
from envs.webshop.files import find_files, find_prepared
from envs.webshop.goals import Goal, listed_goals, split_of
from envs.webshop.pages import BUY_NOW, SEARCH_PAGE, Place, clickables, follow, render
from envs.webshop.reward import score_purchase

NAME = "webshop"
SPLITS = ("train", "eval")

OPTION_RULES: Mapping[str, Option] = {
    "catalogue": Option(
        default="small",
        rule="small (1,000 products) or full (1.18 million)",
        allows=lambda value: value in ("small", "full"),
    ),
    "goals": Option(
        default="synthetic",
        rule="synthetic or human (instructions that people wrote)",
        allows=lambda value: value in ("synthetic", "human"),
    ),
    "goal": Option(
        default="",
        rule="the name of a goal, such as b09kp78g37-0, or empty to draw one from the seed",
        allows=lambda value: isinstance(value, str),
    ),
    "num_products": Option(
        default=0,
        rule="an integer >= 0 (products from the start of the file, 0 for all)",
        allows=lambda value: is_int(value) and value >= 0,
    ),
    "reward": Option(
        default="score",
        rule="score (0 to 1) or success (1 for a perfect purchase, else 0)",
        allows=lambda value: value in ("score", "success"),
    ),
    "data_dir": DATA_OPTION,
}
_PERFECT = 1.0 - 1e-9


def task_list(split: str, options: Mapping[str, Any]) -> list[TaskStart]:
    """The goals of ``train`` or ``eval`` as tasks; see `envs.webshop.goals.listed_goals`. A goal
    that ``options`` name need not be one of the few of its product that are listed.

    Raises:
        ValueError: another split, or an unknown goal.
        EnvDataError: no data.
    """
    if split not in SPLITS:
        raise ValueError(f"webshop has the splits {', '.join(SPLITS)}, got {split!r}.")
    resolved = resolve_options(NAME, OPTION_RULES, options)
    shop = catalogue_of(resolved)
    names = listed_goals(shop.candidates, shop.goal_kind, split)
    if resolved["goal"]:
        goal = shop.named_goal(resolved["goal"])
        names = iter([goal.name] if split_of(goal.target) == split else [])
    return [TaskStart(name=name, options={"goal": name}) for name in names]


def check_data(options: Mapping[str, Any]) -> None:
    """Raise `envs.data.EnvDataError` unless the files are there."""
    resolved = resolve_options(NAME, OPTION_RULES, options)
    if resolved["catalogue"] == "full" and not resolved["num_products"]:
        find_prepared(resolved["data_dir"])
    else:
        find_files(resolved["catalogue"], resolved["data_dir"], human=resolved["goals"] == "human")


def start_key(seed: int, options: Mapping[str, Any]) -> str:
    """The product that the goal was made from: what training and evaluation must not share."""
    resolved = resolve_options(NAME, OPTION_RULES, options)
    return _goal(catalogue_of(resolved), seed, resolved).target.asin


def catalogue_of(options: Mapping[str, Any]) -> Catalogue:
    """The shop that resolved ``options`` name; loaded once in a process."""
    return load_catalogue(
        options["catalogue"], options["goals"], options["num_products"], options["data_dir"]
    )


def _goal(shop: Catalogue, seed: int, options: Mapping[str, Any]) -> Goal:
    return shop.named_goal(options["goal"]) if options["goal"] else shop.draw_goal(seed)


class WebShopEnv(TextEnv):
    """Buy what the instruction (`Observation.task`) asks for; the purchase is paid by its score.

    Example of an episode::

        env = WebShopEnv()
        print(env.reset(seed=0).task)
        env.step("search[long sleeve shirt]")
        env.step("click[b09kp78g37]")
        env.step("click[large]")
        print(env.step("click[buy now]").reward)
    """

    def __init__(self) -> None:
        self._catalogue: Catalogue | None = None
        self._goal: Goal | None = None
        self._place = SEARCH_PAGE
        self._pays_score = True
        self._receipt = ""

    @property
    def goal(self) -> Goal:
        """What is wanted."""
        return self._running()[1]

    @property
    def place(self) -> Place:
        """Where the customer is."""
        return self._place

    @property
    def catalogue(self) -> Catalogue:
        """The shop."""
        return self._running()[0]

    @property
    def done(self) -> bool:
        """Whether the episode is over (something was bought), or none was started."""
        return self._goal is None or bool(self._receipt)

    def reset(self, *, seed: int, options: Mapping[str, Any] | None = None) -> Observation:
        """Start on the search page with the goal of ``seed``, or the one that the option names.

        Raises:
            ValueError: an option that cannot work, or data that are not there.
        """
        resolved = resolve_options(NAME, OPTION_RULES, options)
        self._catalogue = catalogue_of(resolved)
        self._goal = _goal(self._catalogue, seed, resolved)
        self._place, self._receipt = SEARCH_PAGE, ""
        self._pays_score = resolved["reward"] == "score"
        return self._observe()

    def step(self, action: str) -> StepOutcome:
        """Search or click; what is not possible on the page changes nothing and comes back as not
        valid.

        Raises:
            RuntimeError: no episode is running (never for what the agent said).
        """
        catalogue, goal = self._running()
        if self._receipt:
            raise RuntimeError("webshop: the episode is over; call reset() before step().")
        legal_action, reason = read_action(action, self._admissible())
        if reason:
            return self._outcome(action_valid=False)
        argument = argument_of(legal_action)
        if legal_action.startswith("search["):
            self._place = Place(results=catalogue.search(argument))
        elif argument == BUY_NOW:
            return self._buy(goal)
        else:
            self._place = follow(self._place, argument)
        return self._outcome()

    def close(self) -> None:
        """End the episode; harmless when called twice. The catalogue stays for the next one."""
        self._catalogue = self._goal = None
        self._place, self._receipt = SEARCH_PAGE, ""

    def _buy(self, goal: Goal) -> StepOutcome:
        product, chosen = self._place.product, self._place.chosen
        assert product is not None  # "buy now" stands on product pages only
        score = score_purchase(product, chosen, goal)
        options = "".join(f", {name}: {chosen[name]}" for name in product.options if name in chosen)
        self._receipt = f"Bought {product.asin}{options} for ${product.price:.2f}."
        success = score.total >= _PERFECT
        return replace(
            self._outcome(),
            reward=float(score.total if self._pays_score else success),
            terminated=True,
            info={
                "success": success,
                "score": score.total,
                "type_factor": score.type_factor,
                "num_attributes": score.num_attributes,
                "num_options": score.num_options,
                "price_fits": score.price_fits,
            },
        )

    def _outcome(self, *, action_valid: bool = True) -> StepOutcome:
        return StepOutcome(
            observation=self._observe(),
            reward=0.0,
            terminated=False,
            truncated=False,
            action_valid=action_valid,
            info={"success": False},
        )

    def _observe(self) -> Observation:
        text = self._receipt or render(self._place)
        return Observation(
            text=text,
            anchor=text,
            admissible_actions=self._admissible(),
            task=self.goal.instruction,
        )

    def _admissible(self) -> tuple[str, ...]:
        if self._receipt:
            return ()
        if self._place.results is None:
            # Any words may be searched. These stand for all; the customer has said them already.
            return (f"search[{self.goal.wish[:MAX_QUERY_CHARS].rstrip()}]",)
        return tuple(f"click[{label}]" for label in clickables(self._place))

    def _running(self) -> tuple[Catalogue, Goal]:
        if self._catalogue is None or self._goal is None:
            raise RuntimeError("webshop: no episode was started; call reset() first.")
        return self._catalogue, self._goal
