"""ALFWorld's engine with and without our replacements, on the same games and commands.

    python benchmarks/alfworld_engine.py [--data DIR] [--games 6] [--steps 40]

``DIR`` holds ``json_2.1.1`` as ``alfworld-download`` lays it out; without it, the usual places are
looked at. Each variant runs in a process of
its own; medians of wall time, and the ratio.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from envs.alfworld import engine
from envs.alfworld.games import GAME_FILE, ROOT, SPLIT_FOLDERS, data_folder, list_games


def main() -> None:
    """Parse the command line and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--data", default="", help="folder that holds json_2.1.1")
    parser.add_argument("--games", type=int, default=6)
    parser.add_argument("--steps", type=int, default=40, help="random commands in each game")
    parser.add_argument("--variant", choices=("stock", "patched"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.variant:
        print(json.dumps(measure(arguments)))
        return
    medians = {
        variant: json.loads(
            subprocess.run(
                [sys.executable, __file__, *sys.argv[1:], "--variant", variant],
                check=True,
                stdout=subprocess.PIPE,
                text=True,
            ).stdout
        )
        for variant in ("stock", "patched")
    }
    print(f"{'':24}{'stock':>10}{'patched':>10}{'ratio':>8}")
    for what, stock_s in medians["stock"].items():
        patched_s = medians["patched"][what]
        ratio = stock_s / patched_s
        print(f"{what:24}{stock_s * 1e3:7.1f} ms{patched_s * 1e3:7.1f} ms{ratio:7.1f}x")


def measure(arguments: argparse.Namespace) -> dict[str, float]:
    """Median seconds of each operation in this process."""
    if arguments.variant == "stock":
        engine.apply_patches = tuple
    folder = data_folder({"data_dir": arguments.data}, SPLIT_FOLDERS["eval"])
    names = list_games(folder, "eval")
    chosen = names[:: max(1, len(names) // arguments.games)][: arguments.games]
    times_s: dict[str, list[float]] = {}

    def timed[T](what: str, do: Callable[[], T]) -> T:
        started_s = time.perf_counter()
        result = do()
        times_s.setdefault(what, []).append(time.perf_counter() - started_s)
        return result

    def load(path: Path) -> engine.Game:
        game = engine.Game(path)
        game.restart()
        return game

    for name in chosen:
        path = folder / ROOT / name / GAME_FILE
        game = timed("first reset on a game", lambda path=path: load(path))
        timed("reset in another env", lambda path=path: load(path)).close()
        scene = timed("reset on the same game", game.restart)
        rng = random.Random(0)
        for _ in range(arguments.steps):
            command = rng.choice(scene.commands)
            scene = timed("step", lambda game=game, command=command: game.act(command))
            if scene.won:
                break
        game.close()
    return {what: statistics.median(values) for what, values in times_s.items()}


if __name__ == "__main__":
    main()
