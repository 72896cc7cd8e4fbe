"""Learning curves of the credit methods: same start, same budget, several seeds, on a CPU.

    python benchmarks/credit_learning.py --methods gigpo,hgpo,grpo,rloo,gae --seeds 3
    python benchmarks/credit_learning.py --size 8 --max-steps 30   # where horizons are long
    python benchmarks/credit_learning.py --report                  # of the runs that are there

Runs are shared with ``learning_cpu.py`` and may be stopped and gone on with at any time.
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
    add_arguments(parser, methods=("gigpo", "hgpo", "grpo", "rloo", "gae"))
    args = parser.parse_args()
    run_and_report(Plan.from_arguments(args), "credit_curves", train=not args.report)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
