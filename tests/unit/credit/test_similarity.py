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


# The texts above are short: three pairs that are compared, or forty that are told apart by their
# letters, take one comparison of texts of 300 letters.
bounded_options = st.builds(
    lambda options, bound: options | {"max_comparisons": bound},
    options,
    st.sampled_from([1, 2, 4, 1_000_000]),
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
@given(rows=rows, options=bounded_options, seed=st.integers(0, 999))
def test_row_order_changes_nothing(
    rows: list[tuple[int, str]], options: dict[str, Any], seed: int
) -> None:
    order = random.Random(seed).sample(range(len(rows)), len(rows))
    straight = codes([text for _, text in rows], [group for group, _ in rows], **options)
    mixed_rows = [rows[row] for row in order]
    mixed = codes([text for _, text in mixed_rows], [group for group, _ in mixed_rows], **options)
    assert mixed == [straight[row] for row in order]


@quick
@given(rows=rows, options=bounded_options)
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
@given(texts=st.lists(texts, min_size=1, max_size=10), options=bounded_options)
def test_how_often_a_text_occurs_changes_nothing(texts: list[str], options: dict[str, Any]) -> None:
    once = codes(texts, **options)
    assert codes([*texts, *texts, texts[0]], **options) == [*once, *once, once[0]]


@quick
@given(rows=rows, options=bounded_options, names=st.permutations([0, 1, 2]))
def test_names_of_task_groups_change_nothing(
    rows: list[tuple[int, str]], options: dict[str, Any], names: list[int]
) -> None:
    texts = [text for _, text in rows]
    plain = similarity_codes(texts, np.array([group for group, _ in rows]), **options)
    renamed = similarity_codes(texts, np.array([names[group] for group, _ in rows]), **options)
    assert partition(renamed.code_N.tolist()) == partition(plain.code_N.tolist())
    assert renamed.by_equality_N.tolist() == plain.by_equality_N.tolist()


@quick
@given(
    texts=st.lists(texts, min_size=1, max_size=25),
    options=options,
    bound=st.sampled_from([1, 2, 4, 1_000_000]),
)
def test_a_bound_only_takes_texts_out_of_their_groups(
    texts: list[str], options: dict[str, Any], bound: int
) -> None:
    task_N = np.zeros(len(texts), int)
    free = similarity_codes(texts, task_N, **options, max_comparisons=10**9).code_N.tolist()
    bounded = similarity_codes(texts, task_N, **options, max_comparisons=bound)
    group_of = [
        f"only {text}" if by_equality else code
        for text, code, by_equality in zip(texts, free, bounded.by_equality_N, strict=True)
    ]
    assert partition(bounded.code_N.tolist()) == partition(group_of)


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
        ("\u20135 degrees", "5 degrees"),
        ("the zeroth floor", "the floor"),
        ("a billionth part", "a trillionth part"),
        ("hundreds of eggs", "dozens of eggs"),
        ("two thirds", "two fourths"),
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


A, A2 = "a" * 200, "a" * 199 + "c"
B, B2 = "b" * 200, "b" * 199 + "c"


@pytest.mark.parametrize(
    ("bound", "code_N", "by_equality_N"),
    [
        # A is told from B and B2 by its letters, and compared with A2: 3 * 2,500 + 20,000 + 10,000
        # + 200 * 200 = 77,500 of 100,000. For B and B2 it takes one look at letters: 72,500.
        (1, [0, 0, 1, 2], [False, False, True, True]),
        (2, [0, 0, 1, 1], [False, False, False, False]),
    ],
)
def test_beyond_the_bound_texts_are_grouped_by_equality(
    bound: int, code_N: list[int], by_equality_N: list[bool]
) -> None:
    # A second task group has comparisons of its own; rows with equal text stay together.
    texts = [A, A2, B, B2, B2, A, A2, B, B2]
    found = similarity_codes(texts, np.repeat([0, 1], [5, 4]), threshold=0.9, max_comparisons=bound)
    again = [code + max(code_N) + 1 for code in code_N]
    assert found.code_N.tolist() == [*code_N, code_N[3], *again]
    assert found.by_equality_N.tolist() == [*by_equality_N, by_equality_N[3], *by_equality_N]


def test_a_large_set_cannot_take_the_comparisons_of_a_small_one() -> None:
    large = [f"{number} {text}" for number in (1, 2) for text in (A, A2, "a" * 201)]
    texts = [*large, f"9 {A}", f"9 {A2}"]
    found = similarity_codes(texts, np.zeros(8, int), threshold=0.9, max_comparisons=1)
    assert found.code_N.tolist() == [1, 2, 3, 4, 6, 5, 0, 0]
    assert found.by_equality_N.tolist() == [True] * 6 + [False] * 2
    assert codes(texts[::-1], threshold=0.9, max_comparisons=1) == found.code_N.tolist()[::-1]


def test_by_tokens_the_bound_does_not_depend_on_the_order_of_rows() -> None:
    # So many words that made-up letters share a count, which decides what is compared.
    rng = random.Random(0)
    texts = [" ".join(f"w{rng.randrange(500)}x" for _ in range(6)) for _ in range(60)]
    options: dict[str, Any] = {"threshold": 0.3, "measure": "token", "keep_numbers": False}
    for bound in range(1, 12):
        options["max_comparisons"] = bound
        assert codes(texts[::-1], **options) == codes(texts, **options)[::-1]


def test_no_rows_make_no_groups() -> None:
    found = similarity_codes([], np.zeros(0, int), threshold=0.9)
    assert (found.num_groups, len(found.code_N), len(found.by_equality_N)) == (0, 0, 0)


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


@pytest.mark.parametrize("bound", [0, -1, 1e6, True, None])
def test_a_bound_that_is_no_positive_integer_is_refused(bound: object) -> None:
    with pytest.raises(
        CreditError, match=r"max_comparisons must be an integer >= 1, got .*1000000"
    ):
        codes(["a"], threshold=0.9, max_comparisons=bound)


def test_a_state_that_is_no_text_is_named() -> None:
    with pytest.raises(CreditError, match="states as text, got int at row 1"):
        codes(["a", 3], threshold=0.9)


def test_columns_of_two_lengths_are_refused() -> None:
    with pytest.raises(CreditError, match="got 1 group codes for 2 texts"):
        codes(["a", "b"], [0], threshold=0.9)


def test_a_sign_counts_directly_before_a_number_only() -> None:
    assert numbers_and_ids("-5 \u22125 \u20135 +5") == ("-5", "\u22125", "\u20135", "+5")
    assert numbers_and_ids("- 5 <5 >5") == ("5", "5", "5")
    assert numbers_and_ids("this is it, open or shut") == ()
