"""How long credit takes and what memory it needs, beside a plain implementation in the same run.

    python benchmarks/credit.py                          # 1e3 to 1e6 rows, about three minutes
    python benchmarks/credit.py --sizes 1000 10000       # only these
    python benchmarks/credit.py --no-similarity

Exact grouping: `compute_credit("gigpo", ...)` on rows in random order, against dictionaries and
lists, row by row (``credit_baselines.plain_gigpo``). Similarity grouping: `similarity_codes` on
texts of 300 characters, against ``difflib`` and brute force where that ends. The results of both
sides are compared too. Seconds are the best of a few repeats; CPU seconds leave out what other
programs on the machine take. Memory is the peak that Python and numpy allocate during the call,
divided by the size of the input: arrays, and the texts they point to.
"""

from __future__ import annotations

import argparse
import gc
import random
import sys
import time
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from credit_baselines import difflib_codes, plain_gigpo, quadratic_returns  # noqa: E402

from megatron_agent.credit import CreditConfig, CreditRows, compute_credit  # noqa: E402
from megatron_agent.credit.options import DEFAULT_MAX_COMPARISONS  # noqa: E402
from megatron_agent.credit.similarity import similarity_codes  # noqa: E402

SIZES = (1_000, 3_008, 10_000, 100_000, 1_000_000)
REFERENCE_ROWS, REFERENCE_S = 3_008, 0.49
"""Recorded once: the public reference implementation (langfengQ/verl-agent) on two cores."""
SIMILARITY_ROWS = 6_400
TEXT_LENGTH = 300
THRESHOLD = 0.9
WORST = ((200, 0.9), (SIMILARITY_ROWS, 0.95), (SIMILARITY_ROWS, 0.9), (SIMILARITY_ROWS, 0.8))
"""Rows and threshold; at 0.8 counts of letters tell nothing apart, and the bound is reached."""
CONFIG = CreditConfig(gamma=0.95, mode="mean_std_norm", use_invalid_action_penalty=False)


@dataclass(frozen=True)
class Measured:
    """One function on one input."""

    wall_s: float
    cpu_s: float
    result: Any


def main() -> int:
    """See the module's docstring."""
    args = _parse()
    exact(args)
    if not args.no_similarity:
        similarity(args)
        similarity_worst(args)
    return 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="numbers of rows")
    parser.add_argument("--repeats", type=int, default=3, help="of which the best counts")
    parser.add_argument("--num-steps", type=int, default=50, help="steps of an episode")
    parser.add_argument("--group-size", type=int, default=8, help="episodes of a task group")
    parser.add_argument(
        "--quadratic-max", type=int, default=3_008, help="largest size for quadratic returns"
    )
    parser.add_argument(
        "--difflib-max", type=int, default=1_000, help="largest size for difflib by brute force"
    )
    parser.add_argument("--no-similarity", action="store_true", help="exact grouping only")
    return parser.parse_args()


def exact(args: argparse.Namespace) -> None:
    """Table of exact grouping."""
    print("Exact grouping: the whole of GiGPO, rows in random order\n")
    print("| rows | gigpo s | CPU s | us per row | plain s | plain / gigpo | quadratic returns s |")
    print("|---|---|---|---|---|---|---|", flush=True)
    per_size = {}
    for num_rows in args.sizes:
        rows = random_rows(num_rows, args)
        # A copy per repeat, since rows keep their order once it is computed.
        ours = measure(
            lambda rows: compute_credit("gigpo", rows, CONFIG).advantage_N, rows, args.repeats
        )
        plain = measure(lambda rows: plain_gigpo(rows, CONFIG), rows, 1)
        np.testing.assert_allclose(ours.result, plain.result, atol=1e-6)
        quadratic = "-"
        if num_rows <= args.quadratic_max:
            quadratic = f"{measure(lambda r: quadratic_returns(r, 0.95), rows, 1).wall_s:.2f}"
        per_size[num_rows] = ours
        print(
            f"| {num_rows:,} | {ours.wall_s:.4f} | {ours.cpu_s:.4f} "
            f"| {1e6 * ours.wall_s / num_rows:.2f} | {plain.wall_s:.3f} "
            f"| {plain.wall_s / ours.wall_s:.1f} | {quadratic} |",
            flush=True,
        )
    if REFERENCE_ROWS in per_size:
        seconds = per_size[REFERENCE_ROWS].wall_s
        print(
            f"\nAt {REFERENCE_ROWS:,} rows the public reference was recorded with {REFERENCE_S} s: "
            f"{REFERENCE_S / seconds:.0f} times as long."
        )
    print("\n| rows | input MB | gigpo peak / input | plain peak / input |")
    print("|---|---|---|---|", flush=True)
    for num_rows in args.sizes:
        rows = random_rows(num_rows, args)
        size = input_bytes(rows)
        ours_peak = peak_bytes(lambda: compute_credit("gigpo", rows, CONFIG))  # noqa: B023
        plain_peak = peak_bytes(lambda: plain_gigpo(rows, CONFIG))  # noqa: B023
        print(
            f"| {num_rows:,} | {size / 1e6:.2f} | {ours_peak / size:.2f} "
            f"| {plain_peak / size:.2f} |",
            flush=True,
        )


def similarity(args: argparse.Namespace) -> None:
    """Table of similarity grouping at all sizes."""
    print(
        f"\nSimilarity grouping: texts of {TEXT_LENGTH} characters, 100 rows per task group, ten "
        f"states of four wordings each, threshold {THRESHOLD}\n"
    )
    print("| rows | character s | us per row | token s | peak / input | difflib s | ratio |")
    print("|---|---|---|---|---|---|---|", flush=True)
    for num_rows in sorted({*args.sizes, SIMILARITY_ROWS}):
        texts, group_N = similar_texts(num_rows)
        character, token = (
            measure(_grouping(measure_name, group_N), texts, args.repeats if num_rows < 1e5 else 1)
            for measure_name in ("character", "token")
        )
        size = sum(sys.getsizeof(text) for text in set(texts)) + group_N.nbytes + 8 * num_rows
        peak = peak_bytes(lambda: _grouping("character", group_N)(texts))  # noqa: B023
        difflib_s, ratio = "-", "-"
        if num_rows <= args.difflib_max:
            brute = measure(lambda t: difflib_codes(t, group_N.tolist(), THRESHOLD), texts, 1)  # noqa: B023
            difflib_s = f"{brute.wall_s:.2f}"
            ratio = f"{brute.wall_s / character.wall_s:.0f}"
        print(
            f"| {num_rows:,} | {character.wall_s:.3f} | {1e6 * character.wall_s / num_rows:.1f} "
            f"| {token.wall_s:.3f} | {peak / size:.2f} | {difflib_s} | {ratio} |",
            flush=True,
        )


def similarity_worst(args: argparse.Namespace) -> None:
    """One task group in which no text is similar to any other: every pair has to be told apart."""
    print("\nThe same at its worst: one task group, all texts different, none similar\n")
    print(
        "| rows | threshold | character s | token s | difflib s | difflib / character "
        "| character: rows by equality | without a bound s | ratio |"
    )
    print("|---|---|---|---|---|---|---|---|---|", flush=True)
    for num_rows, threshold in WORST:
        words = _vocabulary()
        rng = random.Random(0)
        texts = [_text(words, rng) for _ in range(num_rows)]
        one_group_N = np.zeros(num_rows, dtype=np.int64)
        character, token = (
            measure(_grouping(name, one_group_N, threshold), texts, args.repeats)
            for name in ("character", "token")
        )
        assert character.result.num_groups == num_rows
        share = character.result.by_equality_N.mean()
        unbounded_s, unbounded_ratio = "-", "-"
        if share > 0:
            unbounded = measure(
                _grouping("character", one_group_N, threshold, max_comparisons=10**12), texts, 1
            )
            unbounded_s = f"{unbounded.wall_s:.1f}"
            unbounded_ratio = f"{unbounded.wall_s / character.wall_s:.1f}"
        difflib_s, ratio = "-", "-"
        if num_rows <= args.difflib_max // 5:
            brute = measure(lambda t: difflib_codes(t, [0] * len(t), 0.9), texts, 1)
            assert len(set(brute.result)) == num_rows
            difflib_s = f"{brute.wall_s:.2f}"
            ratio = f"{brute.wall_s / character.wall_s:.0f}"
        print(
            f"| {num_rows:,} | {threshold} | {character.wall_s:.3f} | {token.wall_s:.3f} "
            f"| {difflib_s} | {ratio} | {share:.1%} | {unbounded_s} | {unbounded_ratio} |",
            flush=True,
        )


def measure(function: Callable[[Any], Any], data: Any, repeats: int) -> Measured:
    """Best time of some repeats, each on a fresh copy of rows."""
    best: Measured | None = None
    for _ in range(repeats):
        fresh = data.take(np.arange(data.num_rows)) if isinstance(data, CreditRows) else data
        gc.collect()
        wall, cpu = time.perf_counter(), time.process_time()
        result = function(fresh)
        measured = Measured(time.perf_counter() - wall, time.process_time() - cpu, result)
        if best is None or measured.wall_s < best.wall_s:
            best = measured
    assert best is not None
    return best


def peak_bytes(function: Callable[[], Any]) -> int:
    """What a call allocates at its peak, beyond what was there before."""
    gc.collect()
    tracemalloc.start()
    try:
        function()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def input_bytes(rows: CreditRows) -> int:
    """Arrays, and the distinct texts that they point to."""
    columns = [getattr(rows, field.name) for field in fields(rows)]
    arrays = [column for column in columns if isinstance(column, np.ndarray)]
    texts = {id(x): x for column in arrays if column.dtype == object for x in column.tolist()}
    return sum(column.nbytes for column in arrays) + sum(map(sys.getsizeof, texts.values()))


def random_rows(num_rows: int, args: argparse.Namespace) -> CreditRows:
    """Episodes of up to 60 states, half of which end with a reward of 10; in random order."""
    rng = np.random.default_rng(0)
    row_N = np.arange(num_rows)
    step_N, episode_N = row_N % args.num_steps, row_N // args.num_steps
    group_N, session_N = episode_N // args.group_size, episode_N % args.group_size
    wins = rng.random(int(episode_N[-1]) + 1) < 0.5
    last_N = (step_N == args.num_steps - 1) | (row_N == num_rows - 1)
    keys = zip(group_N.tolist(), session_N.tolist(), step_N.tolist(), strict=True)
    rows = CreditRows.from_keys(
        [f"task{group}_{session}_{step}" for group, session, step in keys],
        anchor_N=[f"{state:032x}" for state in rng.integers(0, 60, num_rows).tolist()],
        step_reward_N=np.where(last_N & wins[episode_N], 10.0, 0.0),
        episode_return_N=np.where(wins[episode_N], 10.0, 0.0),
        action_valid_N=np.ones(num_rows, dtype=bool),
    )
    return rows.take(rng.permutation(num_rows))


def similar_texts(num_rows: int) -> tuple[list[str], np.ndarray]:
    """Per task group of 100 rows ten states, each in four wordings that differ by two words."""
    words, rng = _vocabulary(), random.Random(1)
    texts: list[str] = []
    while len(texts) < num_rows:
        wordings = []
        for _ in range(10):
            state = _text(words, rng).split(" ")
            for _ in range(4):
                wording = list(state)
                for _ in range(2):
                    wording[rng.randrange(len(wording))] = rng.choice(words)
                wordings.append(" ".join(wording))
        texts += rng.choices(wordings, k=100)
    return texts[:num_rows], np.arange(num_rows) // 100


def _grouping(
    name: str,
    group_N: np.ndarray,
    threshold: float = THRESHOLD,
    max_comparisons: int = DEFAULT_MAX_COMPARISONS,
) -> Callable[[Sequence[str]], Any]:
    return lambda texts: similarity_codes(
        texts,
        group_N,
        threshold=threshold,
        measure=name,  # type: ignore[arg-type]
        max_comparisons=max_comparisons,
    )


def _vocabulary() -> list[str]:
    """Words with about the letter frequencies of English."""
    rng = random.Random(0)
    letters = "etaoinshrdlucmfwygpbvk"
    weights = range(len(letters), 0, -1)
    return ["".join(rng.choices(letters, weights, k=rng.randint(2, 9))) for _ in range(3_000)]


def _text(words: Sequence[str], rng: random.Random) -> str:
    text = ""
    while len(text) < TEXT_LENGTH:
        text += rng.choice(words) + " "
    return text[:TEXT_LENGTH]


if __name__ == "__main__":
    raise SystemExit(main())
