#!/usr/bin/env bash
# Runs the tests of some tiers: the quick ones side by side on all cores, then those of the stack one
# after another, each with the whole machine. Both parts are run, whatever fails.
#
# Usage: tools/test.sh PYTHON 'unit or contract or stack' [pytest options]
set -uo pipefail
cd "$(dirname "$0")/.." || exit

python=$1 tiers=$2
shift 2
NO_TESTS=5 # pytest's exit code where nothing was selected

"$python" -m pytest -m "($tiers) and not stack" -n logical --maxprocesses 8 --dist loadfile "$@"
quick=$?
"$python" -m pytest -m "($tiers) and stack" "$@"
stack=$?

if ((quick == NO_TESTS && stack == NO_TESTS)); then
    printf "test: TIERS must name one or more of unit, contract and stack, joined by 'or'; got '%s'.\n" "$tiers" >&2
    exit 2
fi
((quick == NO_TESTS)) && quick=0
((stack == NO_TESTS)) && stack=0
exit $((quick > stack ? quick : stack))
