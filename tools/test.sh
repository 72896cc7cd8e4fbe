#!/usr/bin/env bash
# Runs the tests of some tiers: `unit` side by side on all cores; then the others. One process takes what
# imports verl, in an order that is always the same (verl keeps much per process), and where there is room
# a second one begins with the whole training runs, which keep one core busy each (tests/conftest.py). Both
# parts are run, whatever fails.
#
# Usage: tools/test.sh PYTHON 'unit or contract or stack' [pytest options]
set -uo pipefail
cd "$(dirname "$0")/.." || exit

python=$1 tiers=$2
shift 2
NO_TESTS=5 # pytest's exit code where nothing was selected
GIB_FOR_TWO=14

# Is there room for two runs of the stack at once?
has_room() {
    local free_gib
    free_gib=$(awk '/^MemAvailable:/ { print int($2 / 1048576) }' /proc/meminfo 2>/dev/null)
    (($(getconf _NPROCESSORS_ONLN) > 1 && ${free_gib:-0} >= GIB_FOR_TWO))
}

"$python" -m pytest -m "($tiers) and unit" -n logical --maxprocesses 8 --dist loadfile "$@"
unit=$?
two=()
if has_room; then two=(-n 2 --dist loadscope); fi
"$python" -m pytest -m "($tiers) and not unit" "${two[@]}" "$@"
others=$?

if ((unit == NO_TESTS && others == NO_TESTS)); then
    printf "test: TIERS must name one or more of unit, contract and stack, joined by 'or'; got '%s'.\n" "$tiers" >&2
    exit 2
fi
((unit == NO_TESTS)) && unit=0
((others == NO_TESTS)) && others=0
exit $((unit > others ? unit : others))
