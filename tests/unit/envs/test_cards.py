"""The card games: rules, formulas, prompts, pictures and experts."""

from __future__ import annotations

import itertools
import random
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envs.base import PastStep, PromptContext
from envs.cards.blackjack import Blackjack, hand_value
from envs.cards.env import GAMES, CardsEnv, start_key
from envs.cards.expert import expert
from envs.cards.formula import card_value, evaluate, is_solvable, next_tokens, solutions
from envs.cards.games import NumberLine, View
from envs.cards.images import HEIGHT, WIDTH, draw_image
from envs.cards.points import EZPoints, Points24
from envs.cards.prompts import build_prompt, corpus
from envs.checker import check_env
from envs.registry import load_env

pytestmark = pytest.mark.unit


def env_with(game: object, **options: object) -> CardsEnv:
    env = CardsEnv()
    env.reset(seed=0, options=options)
    env._game = game  # type: ignore[assignment]
    return env


@pytest.mark.parametrize("game", GAMES)
def test_every_game_keeps_the_contract(game: str):
    check_env(load_env("cards"), seeds=(3, 4), options={"game": game, "image": True})


@pytest.mark.parametrize("game", [game for game in GAMES if game != "blackjack"])
def test_every_hand_can_be_won_and_the_expert_wins_it(game: str):
    env = CardsEnv()
    for seed in range(20):
        env.reset(seed=seed, options={"game": game, "max_number": 9})
        outcomes = [env.step(action) for action in expert(env)]
        assert outcomes[-1].info == {"success": True, "task_type": game}
        assert outcomes[-1].observation.admissible_actions == ()
        assert expert(env) == []


def test_a_hand_depends_on_the_seed_and_nothing_else():
    random.seed(1)
    before = random.getstate()
    keys = {game: start_key(7, {"game": game}) for game in GAMES}
    assert random.getstate() == before
    random.seed(2)
    assert {game: start_key(7, {"game": game}) for game in GAMES} == keys
    # Dealt once and written down: a change here changes every task list that people have.
    assert keys["points24"] == POINTS24_SEED_7


POINTS24_SEED_7 = "2 7 9 K"


def test_step_without_a_running_hand_is_the_callers_mistake():
    env = CardsEnv()
    with pytest.raises(RuntimeError, match="no episode was started"):
        env.step("+")
    env = env_with(NumberLine(1, 2, 5))
    env.step("+")
    with pytest.raises(RuntimeError, match="the episode is over"):
        env.step("+")


def test_number_line_pays_for_the_target_and_charges_for_steps_away():
    env = env_with(NumberLine(4, 2, 5))
    assert [env.step(action).reward for action in "++---"] == [-1, -1, 0, 0, 1]
    assert env.game.success
    assert env_with(NumberLine(4, 2, 5)).step("=").reward == -1


@pytest.mark.parametrize("action", ["", "3 ", "11", "x" * 100_000, "\x00", "\ud800", "("])
def test_an_illegal_token_costs_one_and_changes_nothing(action: str):
    env = env_with(EZPoints(("3", "9")))
    outcome = env.step(action)
    assert not outcome.action_valid
    assert (outcome.reward, outcome.terminated) == (-1.0, False)
    assert env.game.anchor == "3 9|"


@pytest.mark.parametrize(
    ("tokens", "reward"),
    [("3 + 9 =", 10.0), ("9 + 3 =", 10.0), ("3 * 9 =", -1.0), ("9 =", -1.0)],
)
def test_ez_points_pays_for_a_right_formula(tokens: str, reward: float):
    env = env_with(EZPoints(("3", "9")))
    *_, last = [env.step(token) for token in tokens.split()]
    assert (last.reward, last.terminated) == (reward, True)


def test_a_right_value_without_all_cards_does_not_count():
    env = env_with(Points24(("4", "6", "A", "A")))
    *_, last = [env.step(token) for token in ["4", "*", "6", "="]]
    assert (last.reward, last.info["success"]) == (-1.0, False)


def test_division_by_zero_is_a_wrong_formula():
    env = env_with(Points24(("4", "6", "A", "A")))
    *_, last = [env.step(token) for token in ["4", "*", "6", "/", "(", "1", "-", "1", ")", "="]]
    assert (last.reward, last.terminated) == (-1.0, True)


def test_pictures_count_ten_and_aces_one():
    assert [card_value(rank) for rank in ("A", "7", "10", "J", "Q", "K")] == [1, 7, 10, 10, 10, 10]


@pytest.mark.parametrize(
    ("formula", "value"),
    [
        ("1 - 2 - 3", Fraction(-4)),
        ("8 / ( 3 - 8 / 3 )", Fraction(24)),
        ("2 + 3 * 4", Fraction(14)),
        ("( 2 + 3 ) * 4", Fraction(20)),
        ("1 / ( 2 - 2 )", None),
        ("7", Fraction(7)),
    ],
)
def test_formulas_are_worth_what_they_should_be(formula: str, value: Fraction | None):
    assert evaluate(formula.split()) == value


def test_tokens_lead_only_to_formulas_that_can_be_completed():
    hand = (1, 4, 4, 6)
    assert next_tokens((), hand, "+-*/(") == ("1", "4", "6", "(")
    assert next_tokens(("(", "4"), hand, "+-*/(") == ("+", "-", "*", "/", ")")
    assert next_tokens(("(", "(", "("), hand, "+-*/(") == ("1", "4", "6")
    assert next_tokens(tuple("1+4+4+"), hand, "+-*/(") == ("6",)
    assert next_tokens(tuple("(1+4+4+6"), hand, "+-*/(") == (")",)


@settings(max_examples=100, deadline=None)
@given(st.randoms(use_true_random=False))
def test_random_legal_tokens_always_end_in_a_formula_that_can_be_read(rng: random.Random):
    game = Points24(tuple(rng.choice(("A", "3", "8", "K")) for _ in range(4)))
    for _ in range(40):
        game.play(rng.choice(game.actions()))
        if game.done:
            break
    assert game.done
    shown = "".join(game.tokens)
    try:
        assert evaluate(game.tokens) == eval(shown, {}, {}) or "/" in shown  # noqa: S307
    except ZeroDivisionError:
        assert evaluate(game.tokens) is None


def test_solutions_are_right_different_and_without_needless_brackets():
    found = solutions((3, 3, 8, 8), "+-*/(", 24)
    assert found == (tuple("8/(3-8/3)"),)
    for formula in solutions((1, 2, 3, 4), "+-*/(", 24):
        assert evaluate(formula) == 24
    assert ("4", "*", "6") not in solutions((4, 6), "+", 24)
    assert solutions((1, 1, 1, 1), "+-*/(", 24) == ()


def test_a_hand_is_solvable_when_it_has_a_solution():
    rng = random.Random(5)
    for _ in range(25):
        hand = tuple(sorted(rng.randint(1, 10) for _ in range(4)))
        assert is_solvable(hand, "+-*/(", 24) == bool(solutions(hand, "+-*/(", 24))
    for pair in itertools.combinations_with_replacement(range(1, 11), 2):
        assert is_solvable(pair, "+*", 12) == bool(solutions(pair, "+*", 12))


def test_the_expert_goes_on_from_what_was_written_or_says_nothing():
    env = env_with(Points24(("3", "3", "8", "8")))
    env.step("8")
    env.step("/")
    assert expert(env) == ["(", "3", "-", "8", "/", "3", ")", "="]
    env.step("8")
    assert expert(env) == []
    with pytest.raises(TypeError, match="needs a CardsEnv, got object"):
        expert(object())  # type: ignore[arg-type]


def test_hands_in_another_order_are_one_task():
    assert EZPoints(("3", "9")).start_key == EZPoints(("9", "3")).start_key
    assert NumberLine(1, 2, 5).start_key != NumberLine(2, 1, 5).start_key


def test_an_ace_counts_eleven_where_it_can():
    assert hand_value(("A", "K")) == (21, True)
    assert hand_value(("A", "A", "9")) == (21, True)
    assert hand_value(("A", "K", "5")) == (16, False)


def test_blackjack_is_won_drawn_and_lost():
    def stand(player: str, dealer: str) -> tuple[float, bool]:
        game = Blackjack(random.Random(0), tuple(player.split()), tuple(dealer.split()))
        return game.play("stand"), game.success

    assert stand("K Q", "K 9") == (1.0, True)
    assert stand("K Q", "J K") == (0.0, False)
    assert stand("K 9", "J K") == (-1.0, False)
    over = Blackjack(random.Random(0), ("K", "Q", "2"), ("5", "5"))
    assert (over.play("hit"), over.done) == (-1.0, True)


def test_the_dealer_hides_a_card_until_the_end():
    env = env_with(Blackjack(random.Random(0), ("A", "7"), ("K", "9")))
    assert env._observe().text == "Dealer: K, ?\nYou: A, 7 (soft 18)"
    assert env._observe().anchor == "18 soft against K"
    last = env.step("stand")
    assert last.observation.text.startswith("Dealer: K, 9\n")


def test_basic_strategy_loses_little():
    env, total = CardsEnv(), 0.0
    for seed in range(600):
        env.reset(seed=seed, options={"game": "blackjack"})
        while plan := expert(env):
            total += env.step(plan[0]).reward
    assert total / 600 > -0.2


PROMPT = """\
EZPoints: write a formula worth 12 that uses each card once, one token at a time, and end it with =.
A counts 1, and J, Q and K count 10. You may use + and *.
Answer with <think>...</think><action>...</action>.
Past actions: no legal action, 2
Cards: 2, K
Formula: 2
Actions: + * ="""


def test_the_prompt_tells_rules_past_table_and_actions():
    env = env_with(EZPoints(("2", "K")))
    observation = env.step("2").observation
    history = [
        PastStep(step_idx=0, observation="...", action=""),
        PastStep(step_idx=1, observation="...", action="2"),
    ]
    context = PromptContext(observation=observation, step_idx=2, max_steps=9, history=history)
    assert build_prompt(context) == PROMPT


def test_pictures_show_cards_and_formula():
    empty = draw_image(View(lines=(), rows=(("A", "10"),)))
    assert (empty.shape, empty.dtype) == ((HEIGHT, WIDTH, 3), np.uint8)
    for other in (
        View(lines=(), rows=(("A", "J"),)),
        View(lines=(), rows=(("A", "?"),)),
        View(lines=(), rows=(("A", "10"),), caption="1+10"),
    ):
        assert not np.array_equal(draw_image(other), empty)
    crowded = View(lines=(), rows=(("K",) * 30,) * 9, caption="(1+2)*3/4" * 9)
    assert draw_image(crowded).shape == (HEIGHT, WIDTH, 3)
    assert CardsEnv().reset(seed=0).image is None


def test_the_corpus_holds_every_game():
    texts = "\n".join(corpus())
    for word in ("Number line", "EZPoints", "Points24", "Blackjack", "<action>stand</action>"):
        assert word in texts


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"game": "poker"}, r"'game' .* must be one of number_line, ez_points, .* got 'poker'\."),
        ({"game": ["points24"]}, r"got \['points24'\]\."),
        ({"max_number": 1}, r"'max_number' .* an integer from 2 to 99 .* got 1\."),
        ({"image": "yes"}, r"'image' .* must be true or false, got 'yes'\."),
    ],
)
def test_a_bad_option_names_option_rule_and_value(options: dict[str, object], message: str):
    with pytest.raises(ValueError, match=message):
        load_env("cards").validate_options(options)
