# shellcheck shell=bash
# Back into the queue, when that is of use.

# decide_what_follows CODE: requeue after a stop on request, and after a failure that a fresh start
# may cure, as long as there were not too many of these. Comes back when the job shall end.
decide_what_follows() {
    case $1 in
        "$EXIT_REQUEUE") requeue "stopped on request" ;;
        "$EXIT_HEAD" | "$EXIT_MISSING" | "$EXIT_NODE_DIED" | "$EXIT_RESTART")
            local failures
            failures=$(count_failure)
            if ((failures > MA_MAX_FAILURES)); then
                say "failure $failures of this job: giving up (MA_MAX_FAILURES=$MA_MAX_FAILURES)"
            else
                requeue "failure $failures, of which $MA_MAX_FAILURES are borne"
            fi
            ;;
    esac
}

# count_failure: one more, for this job over all its attempts.
count_failure() {
    local file=$MA_JOB_LOGS/failures failures=0
    [[ ! -s $file ]] || failures=$(<"$file")
    failures=$((failures + 1))
    printf '%s\n' "$failures" >"$file"
    printf '%s\n' "$failures"
}

# job_is_running: whether Slurm wants the job to go on; JOB_STATE is what it says.
job_is_running() {
    JOB_STATE=$(scontrol show job --oneliner "$SLURM_JOB_ID" 2>/dev/null |
        grep -o 'JobState=[A-Z_]*') || JOB_STATE="state unknown"
    [[ $JOB_STATE == JobState=RUNNING ]]
}

# requeue REASON: does not return when Slurm agrees, because Slurm then ends this shell.
requeue() {
    local answer
    if [[ $MA_REQUEUE == false ]]; then
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
    if answer=$(scontrol requeue "$SLURM_JOB_ID" 2>&1); then
        sleep "${MA_REQUEUE_PATIENCE_S:-120}" # Slurm ends the job within this time
        return
    fi
    say "Slurm does not requeue the job: ${answer:-no reason given}. Submit the same command again."
}
