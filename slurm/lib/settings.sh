# shellcheck shell=bash
# shellcheck disable=SC2034 # the variables are used by the files that source this one
# Everything a site can set, with its default. `megatron-agent launch` writes these lines from the
# slurm section of configs/cluster/<name>.yaml; with a plain sbatch they come from the same file
# through megatron_agent.slurm.job_settings. A variable that is set already wins.
#
#   MA_ROOT               the checkout, readable on every node        where sbatch was called
#   MA_VENV               the virtual environment, same path on every node       $MA_ROOT/.venv
#   MA_CONTAINER          none | pyxis | apptainer                                         none
#   MA_CONTAINER_IMAGE    .sqsh or .sif file, or what `srun --container-image` takes
#   MA_CONTAINER_MOUNTS   more mounts, host:container separated by commas
#   MA_CONTAINER_OPTIONS  more options, separated by blanks (apptainer: --nv)
#   MA_MODULES            environment modules to load, separated by blanks
#   MA_INTERFACE          network interface of Ray, NCCL and gloo        that of the node's name
#   MA_SCRATCH            local disk of a node, a short path                               /tmp
#   MA_LOGS               logs of the launch                             $MA_ROOT/runs/slurm
#   MA_NUM_CPUS           CPUs that Ray offers on a node                 what Slurm allotted
#   MA_NUM_GPUS           GPUs (ranks) that Ray offers on a node         what Slurm allotted
#   MA_GPUS_NEEDED        GPUs that the experiment uses on a node,
#                         those of servers of their own included     not known: none are asked for
#   MA_OBJECT_STORE_BYTES memory of Ray's object store on a node         Ray's choice
#   MA_RAY_AUTH           token | disabled                                                token
#   MA_DASHBOARD          true | false; on the head's loopback alone                      false
#   MA_PREFORK            true | false: fork Ray's workers (CPU profile)                  false
#   MA_HEAD_DEADLINE_S    until Ray's head must answer                                      120
#   MA_NODES_DEADLINE_S   until all nodes must have joined                                  600
#   MA_JOIN_ATTEMPTS      how often a node tries to join                                     10
#   MA_MAX_FAILURES       restarts after failures before the job gives up                     3
#   MA_REQUEUE            true | false: put the job back into the queue when it asks       true

set_defaults() {
    : "${MA_ROOT:=${SLURM_SUBMIT_DIR:-$PWD}}"
    : "${MA_VENV:=$MA_ROOT/.venv}"
    : "${MA_CONTAINER:=none}" "${MA_CONTAINER_IMAGE:=}" "${MA_CONTAINER_MOUNTS:=}"
    : "${MA_CONTAINER_OPTIONS:=}" "${MA_MODULES:=}" "${MA_INTERFACE:=}"
    : "${MA_SCRATCH:=/tmp}" "${MA_LOGS:=$MA_ROOT/runs/slurm}"
    : "${MA_NUM_CPUS:=}" "${MA_NUM_GPUS:=}" "${MA_GPUS_NEEDED:=}" "${MA_OBJECT_STORE_BYTES:=}"
    : "${MA_RAY_AUTH:=token}" "${MA_DASHBOARD:=false}" "${MA_PREFORK:=false}"
    : "${MA_HEAD_DEADLINE_S:=120}" "${MA_NODES_DEADLINE_S:=600}" "${MA_JOIN_ATTEMPTS:=10}"
    : "${MA_MAX_FAILURES:=3}" "${MA_REQUEUE:=true}"
    MA_ATTEMPT=${SLURM_RESTART_COUNT:-0}
    MA_JOB_SCRATCH=$MA_SCRATCH/ma-$SLURM_JOB_ID
    MA_JOB_LOGS=$MA_LOGS/$SLURM_JOB_ID
    MA_ATTEMPT_LOGS=$MA_JOB_LOGS/attempt-$MA_ATTEMPT
    # The steps of the job read them all.
    export "${!MA_@}"
}

# Ray's sockets lie below the scratch folder, and a socket's path may have 107 characters; Ray's own
# part of it takes 64.
readonly LONGEST_SCRATCH=42

check_settings() {
    _one_of MA_CONTAINER none pyxis apptainer
    _one_of MA_RAY_AUTH token disabled
    local name
    for name in MA_DASHBOARD MA_PREFORK MA_REQUEUE; do _one_of "$name" true false; done
    for name in MA_HEAD_DEADLINE_S MA_NODES_DEADLINE_S MA_JOIN_ATTEMPTS MA_MAX_FAILURES; do
        _integer "$name"
    done
    for name in MA_NUM_GPUS MA_GPUS_NEEDED; do [[ -z ${!name} ]] || _integer "$name"; done
    if ((${#MA_JOB_SCRATCH} > LONGEST_SCRATCH)); then
        fail "$EXIT_SETUP" "MA_SCRATCH must leave Ray's sockets short paths: $MA_JOB_SCRATCH has" \
            "${#MA_JOB_SCRATCH} characters, $LONGEST_SCRATCH are allowed. Use /tmp."
    fi
    [[ -f $MA_ROOT/slurm/lib/job.sh ]] || fail "$EXIT_SETUP" \
        "MA_ROOT must be the checkout, got '$MA_ROOT'. Call sbatch there, or export MA_ROOT."
    check_runtime
}

_one_of() {
    local name=$1 choice
    for choice in "${@:2}"; do [[ ${!name} == "$choice" ]] && return; done
    local choices="${*:2}"
    fail "$EXIT_SETUP" "$name must be one of ${choices// /, }, got '${!name}'."
}

_integer() {
    [[ ${!1} =~ ^[0-9]+$ ]] || fail "$EXIT_SETUP" "$1 must be a whole number, got '${!1}'."
}
