# shellcheck shell=bash
# A job's own leftovers on a node: processes, shared memory, the scratch folder. Only what carries
# this job's number is touched; neighbours on the node may be other jobs of the same user.

# processes_of_job [other|step]: processes of this job that our scripts began, without this shell
# and its parents; with "other" only those of attempts before this one, with "step" only those of
# this shell's own job step.
#
# Ray's helpers write their title over their environment; they are known by the files that they
# have open in the job's scratch folder.
processes_of_job() {
    local which=${1:-all} environ pid
    local -A family=()
    pid=$$
    while [[ -n $pid && $pid != 0 ]]; do
        family[$pid]=1
        pid=$(awk '/^PPid:/ {print $2}' "/proc/$pid/status" 2>/dev/null) || pid=""
    done
    while IFS= read -r environ; do
        pid=${environ#/proc/}
        pid=${pid%/environ}
        [[ -z ${family[$pid]:-} ]] || continue
        grep -qz '^MA_ATTEMPT=' "$environ" 2>/dev/null || continue
        if [[ $which == other ]] && grep -qzx "MA_ATTEMPT=$MA_ATTEMPT" "$environ" 2>/dev/null; then
            continue
        fi
        if [[ $which == step ]] && ! grep -qzx "SLURM_STEP_ID=$SLURM_STEP_ID" "$environ" 2>/dev/null; then
            continue
        fi
        printf '%s\n' "$pid"
    done < <(grep -lzx "SLURM_JOB_ID=$SLURM_JOB_ID" /proc/[0-9]*/environ 2>/dev/null)
    find /proc/[0-9]*/fd -lname "$MA_JOB_SCRATCH/*" 2>/dev/null | cut -d/ -f3 | sort -un |
        while IFS= read -r pid; do
            [[ -n ${family[$pid]:-} ]] || printf '%s\n' "$pid"
        done
}

# kill_processes_of_job [other|step]
kill_processes_of_job() {
    local -a pids
    mapfile -t pids < <(processes_of_job "$@")
    ((${#pids[@]} == 0)) || kill -KILL "${pids[@]}" 2>/dev/null || true
}

# make_scratch: a fresh folder for this attempt; what an earlier one left goes.
make_scratch() {
    kill_processes_of_job other
    remove_shared_memory
    rm -rf -- "$MA_JOB_SCRATCH"
    (umask 077 && mkdir -p -- "$MA_JOB_SCRATCH") || fail "$EXIT_SETUP" \
        "the scratch folder $MA_JOB_SCRATCH cannot be made on $(hostname)." \
        "Set cluster.slurm.scratch to a local folder that you may write to."
    touch -- "$MA_JOB_SCRATCH/began"
}

# remove_scratch: after the job's processes have been ended.
remove_scratch() {
    remove_shared_memory
    rm -rf -- "$MA_JOB_SCRATCH"
}

# remove_shared_memory: files in /dev/shm that this user made since the job began on this node and
# that no living process has open.
remove_shared_memory() {
    [[ -e $MA_JOB_SCRATCH/began ]] || return 0
    local shm=${MA_SHM:-/dev/shm} file in_use
    in_use=$({ grep -h -o "$shm/.*" /proc/[0-9]*/maps || true
        find /proc/[0-9]*/fd -lname "$shm/*" -printf '%l\n' || true; } 2>/dev/null | sort -u)
    while IFS= read -r file; do
        grep -qxF -- "$file" <<<"$in_use" || rm -rf -- "$file"
    done < <(find "$shm" -mindepth 1 -maxdepth 1 -user "$(id -u)" -newer "$MA_JOB_SCRATCH/began" 2>/dev/null)
}
