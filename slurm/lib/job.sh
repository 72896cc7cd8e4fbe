# shellcheck shell=bash
# The batch shell of a job: Ray around a command, and the job's way through signals and failures.
#
#   source "$MA_ROOT/slurm/lib/job.sh"
#   run_with_ray python -m megatron_agent.train experiment=... key=value
#
# The command (the driver) finds Ray by RAY_ADDRESS. It is told to stop by a signal: SIGUSR1 means
# "write a checkpoint and exit with 85, you will be started again"; SIGTERM means "stop"; a second
# signal means "now". It exits with 86 when a fresh start may cure what happened. Everything else
# is the job's own exit code.

# First of all: a signal that nobody listens for ends this shell, with no word and no requeue. It is
# kept until the functions that know what to do are there.
EARLY_SIGNAL=""
trap 'EARLY_SIGNAL=USR1' USR1
trap 'EARLY_SIGNAL=TERM' TERM

lib=$(dirname -- "${BASH_SOURCE[0]}")
# shellcheck source=slurm/lib/messages.sh
source "$lib/messages.sh"
# shellcheck source=slurm/lib/settings.sh
source "$lib/settings.sh"
# shellcheck source=slurm/lib/runtime.sh
source "$lib/runtime.sh"
# shellcheck source=slurm/lib/nodes.sh
source "$lib/nodes.sh"
# shellcheck source=slurm/lib/scratch.sh
source "$lib/scratch.sh"
# shellcheck source=slurm/lib/cluster.sh
source "$lib/cluster.sh"
# shellcheck source=slurm/lib/requeue.sh
source "$lib/requeue.sh"

DRIVER="" DRIVER_ENDED=false SIGNALS=0 LAST_SIGNAL="" USES_NODES=false STEP_OPTIONS=()

# run_with_ray COMMAND...: does not return.
run_with_ray() {
    begin_job
    check_gpus
    USES_NODES=true
    make_scratch
    choose_ports
    start_cluster
    wait_for_nodes
    start_driver "$@"
    local code=0
    await "$DRIVER" || code=$?
    trap '' USR1 TERM # it has ended: its code stands, whatever comes now
    DRIVER="" DRIVER_ENDED=true
    say "the driver has ended with exit code $code"
    # A driver that just begins does not listen yet. After two signals it was told to leave at once.
    if ((code == EXIT_BY_USR1 && SIGNALS == 1)) && [[ $LAST_SIGNAL == USR1 ]]; then
        say "SIGUSR1 came before the driver listened: it had nothing to write"
        code=$EXIT_REQUEUE
    fi
    exit "$code"
}

# run_alone COMMAND...: on one node, without Ray. Does not return.
run_alone() {
    begin_job
    say "runs: $*"
    if ((${#SRUN_CONTAINER[@]})); then
        set_srun 1 "$HEAD_NODE"
        exec "${SRUN[@]}" "$@"
    fi
    exec "${CONTAINER_EXEC[@]}" "$@"
}

# begin_job: settings, logs, environment, nodes. Nothing is running yet, so it may simply fail.
begin_job() {
    [[ -n ${SLURM_JOB_ID:-} ]] || fail "$EXIT_SETUP" \
        "this is no Slurm job. Hand the script to sbatch, or use 'megatron-agent launch'."
    set_defaults
    say "job $SLURM_JOB_ID (${SLURM_JOB_NAME:-}), attempt $MA_ATTEMPT, on $SLURM_JOB_NODELIST"
    check_settings
    make_logs
    use_runtime
    read_nodes
    name_devices_once
    cd -- "$MA_ROOT" || exit "$EXIT_SETUP"
    # What Slurm set for this shell would bind the steps in the same way.
    unset SLURM_CPU_BIND SLURM_CPU_BIND_TYPE SLURM_CPU_BIND_LIST SLURM_CPU_BIND_VERBOSE
    unset SLURM_MEM_PER_NODE SLURM_MEM_PER_CPU SLURM_MEM_PER_GPU
    # After `sbatch --export=NONE` the steps would get nothing of what is exported here.
    export SLURM_EXPORT_ENV=ALL
}

make_logs() {
    local probe=$MA_ATTEMPT_LOGS/.writable
    if ! { mkdir -p -- "$MA_ATTEMPT_LOGS" && touch -- "$probe" && rm -- "$probe"; } 2>/dev/null; then
        fail "$EXIT_SETUP" "logs cannot be written to $MA_ATTEMPT_LOGS on $(hostname)." \
            "Set cluster.slurm.logs to a folder that every node can write to."
    fi
}

start_driver() {
    export RAY_ADDRESS=$MA_HEAD_ADDRESS
    if [[ $MA_PREFORK == true ]]; then
        export MEGATRON_AGENT_PREFORK_SOCKET=$MA_JOB_SCRATCH/prefork/socket
        export MEGATRON_AGENT_PREFORK_PYTHON=$MA_JOB_SCRATCH/prefork/python
    fi
    say "driver: $*"
    # Signals go to the driver alone, by its own number: a signal to a job step would reach every
    # process in it.
    # shellcheck disable=SC2016 # expanded by the inner shell
    local -a command=(bash -c 'echo $$ >"$0"; exec "$@"' "$MA_JOB_SCRATCH/driver.pid" "$@")
    if ((${#SRUN_CONTAINER[@]})); then
        begin_step 1 "$HEAD_NODE" "${command[@]}"
        DRIVER=$STEP_PID
    else
        "${CONTAINER_EXEC[@]}" "${command[@]}" & # no function: $! is the driver itself
        DRIVER=$!
    fi
}

# driver_has_begun: DRIVER_PID is its number. DRIVER may be an srun that still fetches an image.
driver_has_begun() {
    [[ -n $DRIVER ]] && DRIVER_PID=$(cat -- "$MA_JOB_SCRATCH/driver.pid" 2>/dev/null) &&
        [[ -n $DRIVER_PID ]]
}

# signal_driver NAME: to the driver, or to what is still to become it.
signal_driver() {
    driver_has_begun || DRIVER_PID=$DRIVER
    kill -s "$1" "$DRIVER_PID" 2>/dev/null || true
}

# on_signal NAME: pass it on. Before the driver has begun there is nothing to save.
on_signal() {
    SIGNALS=$((SIGNALS + 1)) LAST_SIGNAL=$1
    if driver_has_begun; then
        # Slurm's own end of a job reaches every process of it; the driver would take it for two.
        if [[ $1 == TERM ]] && ! job_is_running; then
            say "SIGTERM: Slurm ends the job ($JOB_STATE) and has told the driver itself"
            return
        fi
        say "SIG$1: passed on to the driver$( ((SIGNALS > 1)) && echo ' again: it leaves at once')"
        signal_driver "$1"
        return
    fi
    say "SIG$1 before the driver began"
    # shellcheck disable=SC2034 # read by decide_what_follows, in requeue.sh
    STOPPED="stopped before the driver began"
    [[ $1 != USR1 ]] || exit "$EXIT_REQUEUE"
    exit 143
}

# on_exit: the one way out. Ends everything this job began on its nodes, then decides what follows.
on_exit() {
    local code=$?
    trap '' USR1 TERM
    trap - EXIT
    set +e
    if [[ $USES_NODES == true ]]; then
        stop_driver
        stop_cluster
        kill_processes_of_job
        remove_scratch
    fi
    decide_what_follows "$code"
    say "ends with exit code $code"
    exit "$code"
}

# stop_driver: it may still run when Ray is gone, and will then never end by itself.
stop_driver() {
    local tries
    [[ -n $DRIVER ]] || return 0
    signal_driver TERM
    for ((tries = 0; tries < 25; tries++)); do
        kill -0 "$DRIVER" 2>/dev/null || return 0
        sleep 0.2
    done
    signal_driver KILL
    kill -KILL "$DRIVER" 2>/dev/null
}

trap 'on_signal USR1' USR1
trap 'on_signal TERM' TERM
trap on_exit EXIT
[[ -z $EARLY_SIGNAL ]] || on_signal "$EARLY_SIGNAL"
