"""Put the planner's tables into documents, or say which of them are out of date.

    python tools/plan_docs.py            # rewrite the tables in docs/plan.md, docs/production.md
    python tools/plan_docs.py --check    # exit code 1 when one of them is not current

A table stands between a line ``<!-- plan KIND OVERRIDES -->`` and the next ``<!-- end -->``. Kinds:
``memory`` and ``time`` of a configuration, ``search`` for layouts, ``published`` for
benchmarks/plan_vs_published.py.
"""

from __future__ import annotations

import argparse
import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from megatron_agent.plan.command import job_from
from megatron_agent.plan.markdown import markdown
from megatron_agent.plan.plan import make_plan
from megatron_agent.plan.report import fitting_table, memory_table, time_table
from megatron_agent.plan.search import search

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = (ROOT / "docs" / "plan.md", ROOT / "docs" / "production.md")
BLOCK = re.compile(r"(<!-- plan (\w+)(.*?) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
NUM_ROWS = 5
"""Of a search, shown in a document."""


def main() -> int:
    """Rewrite or check; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing")
    is_check = parser.parse_args().check
    stale = [path for path in DOCUMENTS if current(path.read_text()) != path.read_text()]
    for path in stale:
        if is_check:
            print(f"{path.relative_to(ROOT)}: run python tools/plan_docs.py")
        else:
            path.write_text(current(path.read_text()))
            print(f"{path.relative_to(ROOT)}: rewritten")
    return 1 if stale and is_check else 0


def current(text: str) -> str:
    """A document with its tables as the planner gives them now."""
    return BLOCK.sub(
        lambda block: f"{block[1]}\n{_table(block[2], block[3].split())}\n\n{block[5]}", text
    )


def _table(kind: str, overrides: list[str]) -> str:
    if kind == "published":
        return "\n\n".join(_published().tables())
    job = job_from(overrides)
    if kind == "search":
        return markdown(fitting_table(search(job).fitting[:NUM_ROWS]))
    plan = make_plan(job)
    return markdown({"memory": memory_table, "time": time_table}[kind](plan))


def _published() -> ModuleType:
    path = ROOT / "benchmarks" / "plan_vs_published.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    raise SystemExit(main())
