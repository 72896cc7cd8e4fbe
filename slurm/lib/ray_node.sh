#!/usr/bin/env bash
# Ray on one node of a job, for as long as the step lives: ray_node.sh head|worker
#
# Every node runs this by srun, in the container where there is one. Settings come by environment
# (settings.sh); what it says goes to ray-<node>.log of the attempt.
set -euo pipefail

lib=$(dirname -- "${BASH_SOURCE[0]}")
# shellcheck source=slurm/lib/messages.sh
source "$lib/messages.sh"
# shellcheck source=slurm/lib/settings.sh
source "$lib/settings.sh"
# shellcheck source=slurm/lib/nodes.sh
source "$lib/nodes.sh"
# shellcheck source=slurm/lib/scratch.sh
source "$lib/scratch.sh"

readonly STARTED="Ray runtime started"

main() {
    local role=$1
    NODE=${SLURMD_NODENAME:-$(hostname)}
    LOG=$MA_ATTEMPT_LOGS/ray-$NODE.log
    exec >>"$LOG" 2>&1 </dev/null
    trap 'exit 0' TERM USR2 # USR2: stop_cluster, in cluster.sh
    trap leave EXIT
    raise_limits
    name_devices_once
    check_gpus
    [[ $role == head ]] || make_scratch
    ADDRESS=$(own_address)
    case $role in
        head) run_head ;;
        worker) run_worker ;;
        *) fail "$EXIT_SETUP" "ray_node.sh takes head or worker, got '$role'." ;;
    esac
}

# leave: the one way out. Ends what this step began, at once: the driver has ended, or Ray has.
# shellcheck disable=SC2317 # called by a trap
leave() {
    local code=$?
    trap '' TERM USR2
    trap - EXIT
    set +e
    kill_processes_of_job step
    ((code == 0)) || keep_ray_logs
    [[ $NODE == "$MA_HEAD_NODE" ]] || remove_scratch
    exit "$code"
}

# keep_ray_logs: why Ray's own daemons ended is in their logs, and the scratch folder goes.
# shellcheck disable=SC2317 # called by leave
keep_ray_logs() {
    local folder=$MA_JOB_SCRATCH/session_latest/logs kept=$MA_ATTEMPT_LOGS/ray-$NODE file
    for file in "$folder"/{raylet,gcs_server,monitor,dashboard_agent,runtime_env_agent}*.{out,err,log}; do
        [[ -s $file ]] || continue
        mkdir -p -- "$kept" && tail -c 1000000 -- "$file" >"$kept/${file##*/}"
    done
}

# raise_limits: Ray opens a few files for every worker, and the soft limit is 1024 on many systems.
raise_limits() {
    ulimit -n "$(ulimit -Hn)" 2>/dev/null || true
    ulimit -c 0 2>/dev/null || true
}

# check_ports CODE FIRST LAST: end with CODE when somebody else listens on ports that Ray has on this
# node. They were chosen on the head's; a job that shares only this one may have the same, and Ray tells
# of an address in use at best. What an earlier try left is gone within seconds. Ray looks for itself
# which of its workers' ports are free.
check_ports() {
    local first=$2 last=$3 used deadline=$((SECONDS + ${MA_PORTS_PATIENCE_S:-15})) told=false
    while used=$(used_port "$first" "$last") && [[ -n $used ]]; do
        ((SECONDS < deadline)) || fail "$1" \
            "ports $first to $last must be free on $NODE, got a listener on port $used: another job or" \
            "program has it. The next attempt, or the same command again, takes other ports; to keep away" \
            "from the node set cluster.slurm.extra_options to [\"--exclude=$NODE\"]."
        if [[ $told == false ]]; then say "port $used is in use on $NODE: waits for it to become free"; fi
        told=true
        sleep 0.5 || true
    done
}

run_head() {
    local try
    for ((try = 1; try <= MA_JOIN_ATTEMPTS; try++)); do
        check_ports "$EXIT_HEAD" "$PORT_BASE" $((PORT_BASE + 9))
        # Its imports take longer than Ray's start. Nodes of a larger job may share a machine, whose
        # cores Ray needs first: it gives its daemons 30 s. Nor when that was not enough.
        ((try > 1 || ${SLURM_JOB_NUM_NODES:-1} > 1)) || start_prefork_server
        say "head on $NODE, $ADDRESS:$PORT_BASE (try $try of $MA_JOIN_ATTEMPTS)"
        run_ray --head --node-ip-address="$ADDRESS" --port="$PORT_BASE" \
            --include-dashboard="$MA_DASHBOARD" --dashboard-host=127.0.0.1 \
            --dashboard-port=$((PORT_BASE + 8)) --ray-client-server-port=$((PORT_BASE + 9))
    done
    fail "$EXIT_HEAD" "Ray's head did not start on $NODE in $MA_JOIN_ATTEMPTS tries."
}

run_worker() {
    local try
    for ((try = 1; try <= MA_JOIN_ATTEMPTS; try++)); do
        check_ports "$EXIT_MISSING" $((PORT_BASE + 1)) $((PORT_BASE + 6))
        say "worker on $NODE, $ADDRESS, joins $MA_HEAD_ADDRESS (try $try of $MA_JOIN_ATTEMPTS)"
        if wait_for_port "$MA_HEAD_IP" "$PORT_BASE" "$MA_HEAD_DEADLINE_S"; then
            run_ray --address="$MA_HEAD_ADDRESS" --node-ip-address="$ADDRESS"
        fi
    done
    fail "$EXIT_MISSING" "$NODE could not join $MA_HEAD_ADDRESS in $MA_JOIN_ATTEMPTS tries."
}

log_size() { stat -c %s "$LOG"; }

# is_refused BEFORE: whether `ray start` found its own options wrong, as it would again.
is_refused() { tail -c +$(($1 + 1)) "$LOG" | grep -q '^ValueError: '; }

# has_started BEFORE: whether `ray start` reported success after the log had BEFORE bytes.
has_started() { tail -c +$(($1 + 1)) "$LOG" | grep -q "$STARTED"; }

wait_for_port() {
    local host=$1 port=$2 deadline=$((SECONDS + $3))
    until (exec 3<>"/dev/tcp/$host/$port") 2>/dev/null; do
        if ((SECONDS >= deadline)); then
            say "nobody answers at $host:$port after $3 s"
            return 1
        fi
        sleep 0.2
    done
}

# run_ray OPTIONS...: Ray in the foreground. Comes back when it did not start, which on a busy node
# may be for want of time (Ray waits 30 s for its own daemons); ends the step when it had started.
run_ray() {
    local before pid
    local -a options=(
        --node-name="$NODE" --temp-dir="$MA_JOB_SCRATCH" --disable-usage-stats
        --node-manager-port=$((PORT_BASE + 1)) --object-manager-port=$((PORT_BASE + 2))
        --runtime-env-agent-port=$((PORT_BASE + 3)) --metrics-export-port=$((PORT_BASE + 4))
        --dashboard-agent-listen-port=$((PORT_BASE + 5))
        --dashboard-agent-grpc-port=$((PORT_BASE + 6))
        --min-worker-port=$((PORT_BASE + FIXED_PORTS))
        --max-worker-port=$((PORT_BASE + PORTS_PER_JOB - 1))
        # What Ray finds by itself is the machine, not the part of it that this job has.
        --num-cpus="${MA_NUM_CPUS:-${SLURM_CPUS_ON_NODE:-1}}"
        --num-gpus="${MA_NUM_GPUS:-${SLURM_GPUS_ON_NODE:-0}}"
    )
    [[ -z $MA_OBJECT_STORE_BYTES ]] || options+=(--object-store-memory="$MA_OBJECT_STORE_BYTES")
    before=$(log_size)
    (
        [[ -z $PREFORK_INPUT ]] || exec {PREFORK_INPUT}>&-
        exec ray start "${options[@]}" "$@" --block
    ) &
    pid=$!
    # Not `wait`: a trap would have to wait for it.
    while kill -0 "$pid" 2>/dev/null; do
        if [[ $MA_PREFORK == true && -z $PREFORK_PID ]] && has_started "$before"; then
            start_prefork_server
        fi
        sleep 0.3 || true
    done
    if has_started "$before"; then fail "$EXIT_NODE_DIED" "Ray ended on $NODE."; fi
    if is_refused "$before"; then
        fail "$EXIT_SETUP" "Ray does not start with these settings on $NODE, see the line above."
    fi
    kill_processes_of_job step
    PREFORK_PID=""
    sleep "${MA_JOIN_PAUSE_S:-2}"
}

PREFORK_INPUT="" PREFORK_PID=""

# start_prefork_server: the CPU profile's server, from which Ray's workers are forked, unless it has been
# started. It ends when its standard input closes, which is when this script ends, however it ends; so
# nobody else may hold the other end.
start_prefork_server() {
    [[ $MA_PREFORK == true && -z $PREFORK_PID ]] || return 0
    rm -rf -- "$MA_JOB_SCRATCH/prefork" # the socket of one that was killed tells that it is ready
    exec {PREFORK_INPUT}> >(exec python -m megatron_agent.backend.cpu.prefork.serve \
        "$MA_JOB_SCRATCH/prefork" >>"$MA_ATTEMPT_LOGS/prefork-$NODE.log" 2>&1)
    PREFORK_PID=$!
}

main "$@"
