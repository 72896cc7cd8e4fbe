#!/usr/bin/env bash
# Runs the tests of some tiers: `unit` side by side on all cores; then the others one after another, in
# an order that is always the same (verl keeps much per process) and each with the whole machine. Both
# parts are run, whatever fails.
#
# Usage: tools/test.sh PYTHON 'unit or contract or stack' [pytest options]
set -uo pipefail
cd "$(dirname "$0")/.." || exit

python=$1 tiers=$2
shift 2
NO_TESTS=5 # pytest's exit code where nothing was selected

"$python" -m pytest -m "($tiers) and unit" -n logical --maxprocesses 8 --dist loadfile "$@"
unit=$?
"$python" -m pytest -m "($tiers) and not unit" "$@"
others=$?

if ((unit == NO_TESTS && others == NO_TESTS)); then
    printf "test: TIERS must name one or more of unit, contract and stack, joined by 'or'; got '%s'.\n" "$tiers" >&2
    exit 2
fi
((unit == NO_TESTS)) && unit=0
((others == NO_TESTS)) && others=0
exit $((unit > others ? unit : others))
