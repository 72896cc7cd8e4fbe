"""Step groups by text similarity: what joins, what never does, and on what it may not depend."""

from __future__ import annotations

import difflib
import math
import random
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from megatron_agent.credit.similarity import similarity_codes
from megatron_agent.credit.text_tokens import numbers_and_ids, tokens
from megatron_agent.errors import CreditError

pytestmark = pytest.mark.unit

quick = settings(max_examples=150, deadline=None)
thresholds = st.sampled_from([0.05, 0.3, 0.5, 0.6, 2 / 3, 0.75, 0.8, 0.9, 0.95, 1.0])
words = st.sampled_from(
    ["go", "goes", "to", "the", "door", "doors", "1", "2", "12", "b7", ",", "A"]
)
sentences = st.lists(words, max_size=8).map(" ".join)
letters = st.text("ab c1", max_size=12)
texts = st.one_of(sentences, letters, st.text(max_size=6))
rows = st.lists(st.tuples(st.integers(0, 2), texts), min_size=1, max_size=25)
options = st.fixed_dictionaries(
    {
        "threshold": thresholds,
        "measure": st.sampled_from(["character", "token"]),
        "keep_numbers": st.booleans(),
    }
)


def codes(texts: Sequence[str], groups: Sequence[int] | None = None, **options: Any) -> list[int]:
    group_code_N = np.zeros(len(texts), int) if groups is None else np.array(groups)
    found = similarity_codes(texts, group_code_N, **options)
    assert set(found.code_N.tolist()) == set(range(found.num_groups))
    return found.code_N.tolist()


def score(first: Sequence[str], second: Sequence[str]) -> Fraction:
    """``2c / (a + b)`` by the textbook's table for the longest common subsequence."""
    if not first and not second:
        return Fraction(1)
    table = [[0] * (len(second) + 1) for _ in range(len(first) + 1)]
    for i, x in enumerate(first):
        for j, y in enumerate(second):
            same = table[i][j] + 1
            table[i + 1][j + 1] = same if x == y else max(table[i][j + 1], table[i + 1][j])
    return Fraction(2 * table[-1][-1], len(first) + len(second))


def plain_groups(texts: Sequence[str], options: dict[str, Any]) -> dict[str, str]:
    """Leader of every text, by the definition and without any short cut."""
    split = list if options["measure"] == "character" else tokens
    leader_of: dict[str, str] = {}
    for text in sorted(set(texts), key=lambda text: (len(split(text)), text)):
        leader_of[text] = next(
            (
                leader
                for leader in dict.fromkeys(leader_of.values())
                if score(split(leader), split(text)) >= Fraction(options["threshold"]) - 10**-9
                and (
                    not options["keep_numbers"] or numbers_and_ids(leader) == numbers_and_ids(text)
                )
            ),
            text,
        )
    return leader_of


def partition(labels: Sequence[Any]) -> list[int]:
    """The same partition, numbered by first appearance."""
    number: dict[Any, int] = {}
    return [number.setdefault(label, len(number)) for label in labels]


@quick
@given(texts=st.lists(texts, min_size=1, max_size=15), options=options)
@example(
    texts=["aaaaaaaaaa", "aaaaaaaaab"],
    options={"threshold": 0.9, "measure": "character", "keep_numbers": False},
)
def test_groups_are_those_of_the_definition(texts: list[str], options: dict[str, Any]) -> None:
    leader_of = plain_groups(texts, options)
    assert partition(codes(texts, **options)) == partition([leader_of[text] for text in texts])


@quick
@given(rows=rows, options=options, seed=st.integers(0, 999))
def test_row_order_changes_nothing(
    rows: list[tuple[int, str]], options: dict[str, Any], seed: int
) -> None:
    order = random.Random(seed).sample(range(len(rows)), len(rows))
    straight = codes([text for _, text in rows], [group for group, _ in rows], **options)
    mixed_rows = [rows[row] for row in order]
    mixed = codes([text for _, text in mixed_rows], [group for group, _ in mixed_rows], **options)
    assert mixed == [straight[row] for row in order]


@quick
@given(rows=rows, options=options)
def test_a_task_group_is_grouped_as_if_it_were_alone(
    rows: list[tuple[int, str]], options: dict[str, Any]
) -> None:
    together = codes([text for _, text in rows], [group for group, _ in rows], **options)
    owner = {code: group for (group, _), code in zip(rows, together, strict=True)}
    for group in {group for group, _ in rows}:
        members = [at for at, row in enumerate(rows) if row[0] == group]
        alone = codes([rows[at][1] for at in members], **options)
        assert partition(alone) == partition([together[at] for at in members])
        assert {owner[together[at]] for at in members} == {group}


@quick
@given(texts=st.lists(texts, min_size=1, max_size=10), options=options)
def test_how_often_a_text_occurs_changes_nothing(texts: list[str], options: dict[str, Any]) -> None:
    once = codes(texts, **options)
    assert codes([*texts, *texts, texts[0]], **options) == [*once, *once, once[0]]


@quick
@given(
    before=sentences,
    after=sentences,
    numbers=st.lists(st.integers(-50, 2000).map(str), min_size=2, max_size=2, unique=True),
    measure=st.sampled_from(["character", "token"]),
)
def test_texts_that_differ_only_in_a_number_stay_apart(
    before: str, after: str, numbers: list[str], measure: str
) -> None:
    pair = [f"{before} {number} {after}" for number in numbers]
    assert len(set(codes(pair, threshold=0.01, measure=measure, keep_numbers=True))) == 2


PREFIX = "You are in the middle of a room. Looking quickly around you, you see a bed, a desk and "


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("a drawer 1.", "a drawer 2."),
        ("a drawer 1.", "a drawer 11."),
        ("a drawer.", "a drawer 1."),
        ("drawer1", "drawer2"),
        ("$ 3.50", "$ 3.05"),
        ("-5 degrees", "5 degrees"),
        (".5 degrees", "5 degrees"),
        ("id b07xk", "id b07xl"),
        ("id 3f2a-11", "id 3f2b-11"),
        ("box A", "box B"),
        ("option b", "option a"),
        ("item_red", "item_rad"),
        ("gate XY", "gate XZ"),
        ("two steps", "ten steps"),
        ("eleventh floor", "twelfth floor"),
        ("twentieth floor", "thirtieth floor"),
        ("one billion coins", "one million coins"),
        ("a dozen eggs", "eggs"),
        ("chapter ii", "chapter iii"),
        ("\u22121 degrees", "1 degrees"),
        ('{"x":1,"y":2}', '{"x":2,"y":1}'),
        ("\u2461", "\u2462"),
    ],
)
def test_numbers_and_ids_tell_states_apart(first: str, second: str) -> None:
    pair = [PREFIX + first, PREFIX + second]
    assert len(set(codes(pair, threshold=0.5, measure="character", keep_numbers=True))) == 2
    assert len(set(codes(pair, threshold=0.5, measure="character", keep_numbers=False))) == 1


def test_by_default_numbers_are_kept_and_characters_compared() -> None:
    assert codes(["drawer 1", "drawer 2"], threshold=0.8) == [0, 1]
    assert codes(["drawers", "drawer"], threshold=0.8) == [0, 0]


def test_a_word_weighs_as_much_as_any_other_by_tokens() -> None:
    pair = ["open the door", "open the refrigerator"]
    assert len(set(codes(pair, threshold=0.66, measure="token"))) == 1
    assert len(set(codes(pair, threshold=0.66, measure="character"))) == 2


def test_white_space_does_not_count_by_tokens() -> None:
    assert codes(["a  door\n", "a door"], threshold=1.0, measure="token") == [0, 0]
    assert len(set(codes(["a  door\n", "a door"], threshold=1.0, measure="character"))) == 2


def test_likeness_does_not_wander_along_a_chain() -> None:
    chain = ["abcdefghij", "abcdefghixx", "abcdefghxxyy"]
    assert codes(chain, threshold=0.8) == [0, 0, 1]


def test_the_score_is_never_below_difflib() -> None:
    rng = random.Random(0)
    for _ in range(300):
        first, second = ("".join(rng.choices("abcd ", k=rng.randint(1, 30))) for _ in range(2))
        matcher = difflib.SequenceMatcher(None, first, second, autojunk=False)
        threshold = min(matcher.ratio() - 1e-6, 1.0)
        if threshold > 0:
            pair = [first, second]
            assert set(codes(pair, threshold=threshold, keep_numbers=False)) == {0}


def test_long_texts_and_every_kind_of_character_are_compared() -> None:
    long = "\u72b6\u614b \U0001f600 door " * 9000  # more letters than 16 bits can count
    assert codes([long, long + "!", "door"], threshold=0.9) == [1, 1, 0]
    assert codes(["lone \ud800", "lone \ud800.", ""], threshold=0.9) == [1, 1, 0]


def test_no_rows_make_no_groups() -> None:
    found = similarity_codes([], np.zeros(0, int), threshold=0.9)
    assert (found.num_groups, len(found.code_N)) == (0, 0)


def test_the_time_is_told() -> None:
    assert similarity_codes(["a"], np.zeros(1, int), threshold=0.9).seconds > 0


def test_arrays_are_taken_as_lists_are() -> None:
    texts = np.array(["door 1", "door 2", "door 1"], dtype=object)
    assert similarity_codes(texts, np.zeros(3, int), threshold=0.5).code_N.tolist() == [0, 1, 0]


@pytest.mark.parametrize("threshold", [0, -0.5, 1.01, math.nan, True, "0.9", None])
def test_a_threshold_outside_its_range_is_refused(threshold: object) -> None:
    with pytest.raises(CreditError, match=r"must be a number above 0 and at most 1, got .*Use 0.9"):
        codes(["a"], threshold=threshold)


def test_an_unknown_measure_is_refused() -> None:
    with pytest.raises(CreditError, match="must be one of character, token, got 'words'"):
        codes(["a"], threshold=0.9, measure="words")


def test_keep_numbers_must_be_a_flag() -> None:
    with pytest.raises(CreditError, match="keep_numbers must be true or false, got 'false'"):
        codes(["a"], threshold=0.9, keep_numbers="false")


def test_a_state_that_is_no_text_is_named() -> None:
    with pytest.raises(CreditError, match="states as text, got int at row 1"):
        codes(["a", 3], threshold=0.9)


def test_columns_of_two_lengths_are_refused() -> None:
    with pytest.raises(CreditError, match="got 1 group codes for 2 texts"):
        codes(["a", "b"], [0], threshold=0.9)
