#!/usr/bin/env bash
# Runs the tests of some tiers. First `unit`, side by side on all cores. Then the others in an order that
# is always the same (verl keeps much per process), in two processes side by side: whole training runs
# (marker `runs`), which keep one core busy, and the rest. On a machine without the room for two, one after
# the other. All parts are run, whatever fails.
#
# Usage: tools/test.sh PYTHON 'unit or contract or stack' [pytest options]
set -uo pipefail
cd "$(dirname "$0")/.." || exit

python=$1 tiers=$2
shift 2
NO_TESTS=5 # pytest's exit code where nothing was selected
GIB_FOR_TWO=14

# Two parts at once: is there room?
has_room() {
    local free_gib
    free_gib=$(awk '/^MemAvailable:/ { print int($2 / 1048576) }' /proc/meminfo 2>/dev/null)
    (($(getconf _NPROCESSORS_ONLN) > 1 && ${free_gib:-0} >= GIB_FOR_TWO))
}

"$python" -m pytest -m "($tiers) and unit" -n logical --maxprocesses 8 --dist loadfile "$@"
unit=$?

report=$(mktemp)
trap 'rm -f "$report"' EXIT
trap 'kill $(jobs -p) 2>/dev/null; wait; exit 130' INT TERM
"$python" -m pytest -m "($tiers) and runs" "$@" >"$report" 2>&1 &
has_room || wait $!
"$python" -m pytest -m "($tiers) and not unit and not runs" "$@"
others=$?
wait $!
runs=$?
printf '\nWhole training runs, beside the tests above:\n'
cat "$report"

if ((unit == NO_TESTS && others == NO_TESTS && runs == NO_TESTS)); then
    printf "test: TIERS must name one or more of unit, contract and stack, joined by 'or'; got '%s'.\n" "$tiers" >&2
    exit 2
fi
for code in $unit $others $runs; do
    ((code == NO_TESTS)) || ((code == 0)) || exit "$code"
done
