# shellcheck shell=bash
# Back into the queue, when that is of use.

STOPPED="stopped on request"

# decide_what_follows CODE: requeue after a stop on request, and after a failure that a fresh start
# may cure, as long as there were not too many of these. Comes back when the job shall end.
decide_what_follows() {
    case $1 in
        "$EXIT_REQUEUE") requeue "$STOPPED" ;;
        "$EXIT_RESTART") requeue_after_failure ;;
        # These are of the scripts; a driver that ends with them means something else.
        "$EXIT_HEAD" | "$EXIT_MISSING" | "$EXIT_NODE_DIED")
            [[ ${DRIVER_ENDED:-false} == true ]] || requeue_after_failure
            ;;
    esac
}

requeue_after_failure() {
    local failures
    if ! failures=$(count_failure); then
        say "not requeued: failures cannot be counted in $MA_JOB_LOGS/failures (is the disk full?), and" \
            "the job might come back for ever. Make room, and submit the same command again."
    elif ((failures > MA_MAX_FAILURES)); then
        say "failure $failures of this job: giving up (MA_MAX_FAILURES=$MA_MAX_FAILURES)"
    else
        requeue "failure $failures, of which $MA_MAX_FAILURES are borne"
    fi
}

# count_failure: one more, for this job over all its attempts. Fails when it cannot be read or kept.
count_failure() {
    local file=$MA_JOB_LOGS/failures failures=0
    [[ ! -e $file ]] || failures=$(cat -- "$file" 2>/dev/null) || return 1
    [[ $failures =~ ^[0-9]+$ ]] || return 1
    failures=$((failures + 1))
    # Beside the old one, which a full disk must not empty; and read again, because a file server may
    # say only then that it has no room.
    { printf '%s\n' "$failures" >"$file.new"; } 2>/dev/null || return 1
    [[ $(cat -- "$file.new" 2>/dev/null) == "$failures" ]] || return 1
    mv -T -- "$file.new" "$file" 2>/dev/null || return 1
    printf '%s\n' "$failures"
}

# ask_slurm ARGUMENTS...: scontrol, up to three times: a busy controller may be silent for a while.
# ANSWER is what it said last.
ask_slurm() {
    local tries
    for ((tries = 1; ; tries++)); do
        ANSWER=$(timeout 15 scontrol "$@" 2>&1) && return 0
        ((tries < 3)) || return 1
        sleep "${MA_SCONTROL_PAUSE_S:-2}" || true
    done
}

# job_is_running: whether Slurm wants the job to go on; JOB_STATE is what it says. A job of which
# Slurm says nothing goes on: it would be lost for a controller that restarts at the wrong moment.
job_is_running() {
    if ask_slurm show job --oneliner "$SLURM_JOB_ID" && [[ $ANSWER =~ JobState=[A-Z_]+ ]]; then
        JOB_STATE=${BASH_REMATCH[0]}
    else
        say "scontrol does not say how the job stands, it is taken for running: ${ANSWER:-no answer}"
        JOB_STATE=JobState=RUNNING
    fi
    # No bare `return` after it: in a trap that gives the code of what the trap interrupted.
    [[ $JOB_STATE == JobState=RUNNING ]]
}

# requeue REASON: does not return when Slurm agrees, because Slurm then ends this shell.
requeue() {
    # A signal may come before the settings are read.
    if [[ ${MA_REQUEUE:-true} == false ]]; then
        say "$1; not requeued (MA_REQUEUE=false). The same command goes on from the last checkpoint."
        return
    fi
    # A job that somebody cancels, or that is out of time, must not come back.
    if ! job_is_running; then
        say "$1; not requeued, because Slurm is ending the job ($JOB_STATE)"
        return
    fi
    say "$1: back into the queue"
    trap - TERM # with which Slurm ends this shell; ignored, it would cost the site's KillWait
    if ask_slurm requeue "$SLURM_JOB_ID"; then
        sleep "${MA_REQUEUE_PATIENCE_S:-120}" # Slurm ends the job within this time
        return
    fi
    say "Slurm does not requeue the job: ${ANSWER:-no reason given}. Submit the same command again."
}
