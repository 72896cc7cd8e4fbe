# shellcheck shell=bash
# A job's own leftovers on a node: processes, shared memory, the scratch folder. Only what carries
# this job's number is touched, and shared memory as remove_shared_memory says; neighbours on the node
# may be other jobs of the same user.

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

# Names in /dev/shm that the job's programs give: Ray's object store, torch's tensors between
# processes, Python's shared memory (SGLang's too) and semaphores, SGLang's tokenizers, NCCL. All are
# plain files.
readonly SHARED_MEMORY_NAMES=('plasma*' 'torch_[0-9]*_*' 'psm_*' 'sem.mp-*' 'multi_tokenizer_args_*' 'nccl-*')

# remove_shared_memory: files in /dev/shm of those names that this user made since the job began on
# this node and that no living process has open. Nothing in them tells which job made them, so what
# has another name, or is a folder, stays: it may be a neighbour's.
remove_shared_memory() {
    [[ -e $MA_JOB_SCRATCH/began ]] || return 0
    local shm=${MA_SHM:-/dev/shm} file name in_use
    local -a names=() files
    for name in "${SHARED_MEMORY_NAMES[@]}"; do names+=(-o -name "$name"); done
    mapfile -t files < <(find "$shm" -mindepth 1 -maxdepth 1 -type f -user "$(id -u)" \
        -newer "$MA_JOB_SCRATCH/began" \( "${names[@]:1}" \) 2>/dev/null)
    ((${#files[@]})) || return 0
    # After the files are listed: one that a neighbour makes in between is not among them.
    in_use=$({ grep -h -o "$shm/.*" /proc/[0-9]*/maps || true
        find /proc/[0-9]*/fd -lname "$shm/*" -printf '%l\n' || true; } 2>/dev/null | sort -u)
    for file in "${files[@]}"; do
        # torch's names have the process in them, which may open the file again.
        [[ ! ${file##*/} =~ ^torch_([0-9]+)_ || ! -e /proc/${BASH_REMATCH[1]} ]] || continue
        grep -qxF -- "$file" <<<"$in_use" || rm -f -- "$file"
    done
}
