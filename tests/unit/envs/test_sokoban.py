"""Sokoban: levels, rules, prompt, picture and solver."""

from __future__ import annotations

import random

import numpy as np
import pytest

from envs.base import PastStep, PromptContext
from envs.checker import check_env
from envs.registry import load_env
from envs.sokoban.env import ACTIONS, SokobanEnv, board_text, start_key
from envs.sokoban.expert import expert, solve
from envs.sokoban.images import CELL_PIXELS, draw_image
from envs.sokoban.levels import MOVES, Level, draw_level, walk_distances
from envs.sokoban.prompts import build_prompt, corpus

pytestmark = pytest.mark.unit

CORRIDOR = "######\n#@$..#\n######"
"""Player, box, two cells; letters as people write Sokoban levels: @ player, $ box, . target."""


def level_of(drawing: str) -> Level:
    places = {
        (row, column): letter
        for row, line in enumerate(drawing.split("\n"))
        for column, letter in enumerate(line)
    }

    def where(letters: str) -> frozenset[tuple[int, int]]:
        return frozenset(place for place, letter in places.items() if letter in letters)

    return Level(
        size=max(map(max, places)) + 1,
        floor=where(" @$."),
        targets=where("."),
        boxes=where("$"),
        player=min(where("@")),
    )


def env_on(drawing: str, **options: object) -> SokobanEnv:
    env = SokobanEnv()
    env.reset(seed=0, options=options)
    level = level_of(drawing)
    env._level, env._boxes, env._player = level, level.boxes, level.player
    return env


ROOM = "######\n#@   #\n# $  #\n#  . #\n#    #\n######"


def test_the_board_has_a_letter_for_everything():
    env = env_on(ROOM)
    assert board_text(env.level, env.boxes, env.player) == (
        "# # # # # #\n# P _ _ _ #\n# _ X _ _ #\n# _ _ O _ #\n# _ _ _ _ #\n# # # # # #"
    )
    on_targets = board_text(env.level, env.level.targets, (2, 2))
    assert "*" in on_targets
    assert "S" in board_text(env.level, env.boxes, (3, 3))


def test_a_solved_board_pays_steps_boxes_and_the_end():
    env = env_on(ROOM)
    outcomes = [env.step(action) for action in ("right", "down", "left", "down", "right")]
    assert [outcome.reward for outcome in outcomes] == pytest.approx([-0.1, -0.1, -0.1, -0.1, 10.9])
    assert [outcome.terminated for outcome in outcomes] == [False] * 4 + [True]
    assert outcomes[-1].info == {"success": True, "num_boxes_on_target": 1}
    assert outcomes[3].info == {"success": False, "num_boxes_on_target": 0}


def test_a_sparse_reward_pays_only_the_end():
    env = env_on(ROOM, reward="sparse")
    rewards = [env.step(action).reward for action in ("right", "down", "left", "down", "right")]
    assert rewards == [0, 0, 0, 0, 1]


def test_a_box_that_leaves_its_target_costs_what_it_paid():
    env = env_on("######\n#@$. #\n#   .#\n######")
    assert env.step("right").reward == pytest.approx(0.9)
    assert env.step("right").reward == pytest.approx(-1.1)


@pytest.mark.parametrize(
    ("drawing", "action"),
    [
        ("#####\n#@. #\n#####", "left"),
        ("#####\n#@$##\n#.  #\n#####", "right"),
        ("######\n#@$$.#\n#.   #\n######", "right"),
    ],
)
def test_a_move_that_cannot_be_made_is_legal_and_changes_nothing(drawing: str, action: str):
    env = env_on(drawing)
    before = env.boxes, env.player
    outcome = env.step(action)
    assert outcome.action_valid
    assert (env.boxes, env.player) == before


@pytest.mark.parametrize("action", ["", "UP", "push", "x" * 100_000, "\x00", "\ud800"])
def test_an_illegal_action_costs_a_step_and_changes_nothing(action: str):
    env = SokobanEnv()
    start = env.reset(seed=1)
    outcome = env.step(action)
    assert not outcome.action_valid
    assert (outcome.observation, outcome.reward) == (start, -0.1)


def test_step_without_a_running_episode_is_the_callers_mistake():
    env = SokobanEnv()
    with pytest.raises(RuntimeError, match="no episode was started"):
        env.step("left")
    env.reset(seed=0)
    for action in expert(env):
        env.step(action)
    with pytest.raises(RuntimeError, match="the episode is over"):
        env.step("left")


@pytest.mark.parametrize(("size", "num_boxes"), [(6, 1), (6, 4), (7, 2), (8, 3), (10, 3)])
def test_every_level_is_solvable_and_starts_with_work_to_do(size: int, num_boxes: int):
    env = SokobanEnv()
    for seed in range(8):
        env.reset(seed=seed, options={"size": size, "num_boxes": num_boxes, "num_pulls": 30})
        level = env.level
        assert len(level.boxes) == len(level.targets) == num_boxes
        assert not level.boxes & level.targets
        assert set(walk_distances(level.floor, (), level.player)) == level.floor
        outcomes = [env.step(action) for action in expert(env)]
        assert outcomes[-1].info["success"]
        assert expert(env) == []


def test_a_level_depends_on_the_seed_and_nothing_else():
    random.seed(1)
    before = random.getstate()
    first = draw_level(5, size=8, num_boxes=2, num_pulls=20)
    assert random.getstate() == before
    random.seed(2)
    assert draw_level(5, size=8, num_boxes=2, num_pulls=20) == first
    assert len({start_key(seed, {}) for seed in range(50)}) > 45
    # Drawn once and written down: a change here changes every task list that people have.
    assert start_key(0, {}).replace(" ", "") == SEED_0


SEED_0 = "######\n#__###\n#_X_##\n#_O_##\n#__P##\n######"


def test_too_many_boxes_are_an_error_with_a_remedy():
    with pytest.raises(RuntimeError, match=r"size 4 and 3 boxes was found; use fewer boxes"):
        draw_level(0, size=4, num_boxes=3, num_pulls=10)


def test_the_solver_finds_the_shortest_way():
    level = level_of(ROOM)
    plan = solve(level.floor, level.targets, level.boxes, level.player)
    assert plan is not None
    assert len(plan) == 5
    assert solve(level.floor, level.targets, level.targets, (1, 1)) == []


def test_the_solver_tells_no_way_from_no_time():
    in_the_corner = level_of("#####\n#$  #\n#@ .#\n#####")
    where = (in_the_corner.floor, in_the_corner.targets, in_the_corner.boxes, in_the_corner.player)
    assert solve(*where) == []
    level = level_of(ROOM)
    assert solve(level.floor, level.targets, level.boxes, level.player, max_nodes=1) is None


def test_the_expert_has_no_advice_where_nothing_helps():
    assert expert(env_on("#####\n#$  #\n#@ .#\n#####")) == []
    with pytest.raises(TypeError, match="needs a SokobanEnv, got object"):
        expert(object())  # type: ignore[arg-type]


PROMPT = """\
Sokoban: push every box X onto a target O. You can push one box at a time and never pull.
# wall, _ floor, P you, S you on a target, * box on a target.
Answer with <think>...</think><action>...</action>.
Actions: up, down, left, right.
Past moves: left, no legal action
Now:
# # # # # #
# P X O O #
# # # # # #
# # # # # #
# # # # # #
# # # # # #
Around: up wall, down wall, left wall, right box"""


def test_the_prompt_ends_with_the_present():
    observation = env_on(CORRIDOR)._observe()
    history = [
        PastStep(step_idx=0, observation="...", action="left"),
        PastStep(step_idx=1, observation="...", action=""),
    ]
    context = PromptContext(observation=observation, step_idx=2, max_steps=20, history=history)
    assert build_prompt(context) == PROMPT


def test_the_prompt_names_a_box_that_cannot_give_way():
    context = PromptContext(
        observation=env_on("#####\n#.@$#\n#####")._observe(), step_idx=0, max_steps=9, history=[]
    )
    prompt = build_prompt(context)
    assert prompt.endswith("left target, right box (stuck)")
    assert "Past" not in prompt


def test_the_picture_is_an_rgb_array_that_shows_every_change():
    env = SokobanEnv()
    observation = env.reset(seed=0, options={"image": True})
    assert observation.image.shape == (6 * CELL_PIXELS, 6 * CELL_PIXELS, 3)
    assert observation.image.dtype == np.uint8
    moved = next(
        outcome.observation
        for outcome in map(env.step, ACTIONS)
        if outcome.observation.text != observation.text
    )
    assert not np.array_equal(moved.image, observation.image)
    tiles = {draw_image(letter).tobytes() for letter in "#_OX*PS"}
    assert len(tiles) == 7
    assert SokobanEnv().reset(seed=0).image is None


def test_the_corpus_holds_prompts_and_responses():
    texts = list(corpus())
    assert len(texts) > 200
    assert "<think></think><action>up</action>" in texts


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": 5}, r"'size' .* must be an integer from 6 to 10 .* got 5\."),
        ({"num_boxes": 5}, r"'num_boxes' .* must be an integer from 1 to 4, got 5\."),
        ({"num_pulls": 0}, r"'num_pulls' .* must be an integer from 4 to 200 .* got 0\."),
        ({"reward": "dense"}, r"'reward' .* 'classic' .* or 'sparse' .* got 'dense'\."),
        ({"image": 1}, r"'image' .* must be true or false, got 1\."),
    ],
)
def test_a_bad_option_names_option_rule_and_value(options: dict[str, object], message: str):
    with pytest.raises(ValueError, match=message):
        load_env("sokoban").validate_options(options)


def test_crowded_sokoban_with_pictures_keeps_the_contract():
    check_env(load_env("sokoban"), seeds=(3,), options={"num_boxes": 3, "image": True})


def test_moves_are_opposites():
    assert len(MOVES) == 4
    assert {(-row, -column) for row, column in MOVES.values()} == set(MOVES.values())
