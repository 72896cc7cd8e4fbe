# shellcheck shell=bash
# shellcheck disable=SC2034 # the codes are used by the files that source this one
# What the scripts say, and the exit codes with which they end. docs/slurm.md has a page on each.

readonly EXIT_SETUP=64        # arguments or settings cannot work; nothing was started
readonly EXIT_HEAD=70         # Ray's head did not come up
readonly EXIT_MISSING=71      # not every node had joined by the deadline
readonly EXIT_NODE_DIED=72    # Ray ended on a node while the driver ran
readonly EXIT_REQUEUE=85      # the driver has stopped on request and asks to be started again
readonly EXIT_RESTART=86      # the driver met a failure that a fresh start may cure
readonly EXIT_BY_USR1=138     # 128 + SIGUSR1: of a process that does not listen for it

# say TEXT...: one line with the time and the seconds since this shell began.
say() {
    printf '[%(%H:%M:%S)T +%ss] %s\n' -1 "$SECONDS" "$*" >&2
}

# fail CODE TEXT...: say it and end.
fail() {
    local code=$1
    shift
    say "error: $*"
    exit "$code"
}

# say_tail FILE [LINES]: the end of a log, indented, with a name that a person can open.
say_tail() {
    local file=$1 lines=${2:-20}
    if [[ -s $file ]]; then
        say "last lines of $file:"
        tail -n "$lines" -- "$file" | sed 's/^/    | /' >&2
    else
        say "$file is empty."
    fi
}
