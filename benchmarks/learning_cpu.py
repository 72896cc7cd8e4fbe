"""Does it learn? GiGPO and GRPO from one warm-started policy, several seeds, on a CPU.

    python benchmarks/learning_cpu.py                         # 4x4 maps, 3 seeds, 40 iterations
    # Longer horizons, where half of the labels random would leave a start that never wins:
    python benchmarks/learning_cpu.py --size 8 --max-steps 30 --policy-flags="--label-noise 0.15"
    python benchmarks/learning_cpu.py --report                # table and picture of what is there

A run that is there already is not repeated, and one that was interrupted goes on, so the benchmark
may be stopped at any time. Prints success on held-out tasks before and after with 95 % Wilson
intervals, and draws the curves of evaluation and training success.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.learning_runs import Plan, add_arguments, run_and_report


def main() -> int:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    add_arguments(parser, methods=("gigpo", "grpo"))
    args = parser.parse_args()
    run_and_report(Plan.from_arguments(args), "curves", train=not args.report)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
