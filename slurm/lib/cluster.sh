# shellcheck shell=bash
# A Ray cluster over the job's nodes: up, watched, down.

# Process ids of the two sruns; empty when not running.
HEAD_STEP="" WORKER_STEP=""

# make_token: the job's secret. It travels in the environment, never on a command line; a new one for
# every attempt.
make_token() {
    export RAY_AUTH_MODE=$MA_RAY_AUTH
    if [[ $MA_RAY_AUTH == disabled ]]; then
        unset RAY_AUTH_TOKEN RAY_AUTH_TOKEN_PATH
        say "Ray takes commands from everybody who reaches $HEAD_NODE (MA_RAY_AUTH=disabled)."
        return
    fi
    RAY_AUTH_TOKEN=$(head -c 32 /dev/urandom | od -An -v -tx1 | tr -d ' \n')
    export RAY_AUTH_TOKEN
    unset RAY_AUTH_TOKEN_PATH
}

# start_cluster: Ray on all nodes, in two steps: the head's, and one for all the others, which
# wait for the head themselves.
start_cluster() {
    local script=$MA_ROOT/slurm/lib/ray_node.sh head_ip interface
    make_token
    head_ip=$(own_address)
    interface=$(interface_of "$head_ip")
    export MA_HEAD_NODE=$HEAD_NODE MA_HEAD_IP=$head_ip MA_HEAD_ADDRESS=$head_ip:$PORT_BASE
    if [[ -n $interface ]]; then
        export GLOO_SOCKET_IFNAME=${GLOO_SOCKET_IFNAME:-$interface}
        export NCCL_SOCKET_IFNAME=${NCCL_SOCKET_IFNAME:-$interface}
    fi
    # A process that starts slowly on a busy node is not a broken one.
    export RAY_worker_register_timeout_seconds=${RAY_worker_register_timeout_seconds:-180}
    # Nor is one whose cable is out for a while: with Ray's 20 s a server drops its clients, and their
    # calls fail. A lost node is noticed by Slurm and by Ray's own checks of its nodes.
    export RAY_grpc_keepalive_timeout_ms=${RAY_grpc_keepalive_timeout_ms:-60000}
    export RAY_USAGE_STATS_ENABLED=0
    say "Ray on ${#NODES[@]} node(s): head $HEAD_NODE ($MA_HEAD_ADDRESS, ${interface:-no name})," \
        "ports $PORT_BASE-$((PORT_BASE + PORTS_PER_JOB - 1)), logs $MA_ATTEMPT_LOGS"
    # One lost task ends the step, so that the batch shell notices.
    STEP_OPTIONS=(--kill-on-bad-exit=1 --output=/dev/null --error="$MA_ATTEMPT_LOGS/srun-%N.log")
    begin_step 1 "$HEAD_NODE" bash "$script" head
    HEAD_STEP=$STEP_PID
    if ((${#WORKER_NODES[@]})); then
        begin_step ${#WORKER_NODES[@]} "$(joined , "${WORKER_NODES[@]}")" bash "$script" worker
        WORKER_STEP=$STEP_PID
    fi
    # shellcheck disable=SC2034 # read by set_srun, in runtime.sh
    STEP_OPTIONS=()
}

# wait_for_nodes: until every node and GPU is registered.
wait_for_nodes() {
    local gpus=${MA_NUM_GPUS:-${SLURM_GPUS_ON_NODE:-0}} pid code=0
    on_head python -m megatron_agent.backend.ray_nodes --address "$MA_HEAD_ADDRESS" \
        --nodes "$(joined , "${NODES[@]}")" --gpus-per-node "$gpus" \
        --head-deadline-s "$MA_HEAD_DEADLINE_S" --deadline-s "$MA_NODES_DEADLINE_S" &
    pid=$!
    await "$pid" "${MA_WATCH_PAUSE_S:-0.2}" || code=$?
    if ((code)); then
        show_node_logs
        fail "$code" "the Ray cluster is not complete; nothing was trained."
    fi
    say "all ${#NODES[@]} node(s) joined"
}

# await PID [PAUSE_S]: wait for a child of this shell, and end the job when Ray ends before it.
# Returns the child's exit code.
await() {
    local pid=$1 pause_s=${2:-${MA_WATCH_PAUSE_S:-1}}
    while kill -0 "$pid" 2>/dev/null; do
        check_steps
        # Not `wait`: a trap that interrupts it inside a function confuses bash 5.2. A signal to the
        # whole job ends the sleep too.
        sleep "$pause_s" || true
    done
    wait "$pid"
}

# check_steps: end the job when one of the sruns has ended.
check_steps() {
    local name pid code
    for name in HEAD_STEP WORKER_STEP; do
        pid=${!name}
        [[ -n $pid ]] || continue
        kill -0 "$pid" 2>/dev/null && continue
        code=0
        wait "$pid" || code=$?
        printf -v "$name" ''
        # A telling code of ray_node.sh goes on as it is; 137 and the like are a killed step.
        case $code in
            "$EXIT_SETUP" | "$EXIT_HEAD" | "$EXIT_MISSING" | "$EXIT_NODE_DIED") ;;
            *) code="$EXIT_NODE_DIED" ;;
        esac
        show_node_logs
        fail "$code" "Ray's step on the $([[ $name == HEAD_STEP ]] && echo head || echo workers)" \
            "has ended."
    done
}

# show_node_logs: the ends of the logs of Ray that tell of an error, of the first few when none does;
# and of what Slurm wrote of the same steps: why a container did not start stands nowhere else.
show_node_logs() {
    local -a telling=() all=() slurms=()
    local node log
    for node in "${NODES[@]}"; do
        log=$MA_ATTEMPT_LOGS/ray-$node.log
        all+=("$log")
        grep -qs "error:" "$log" && telling+=("$log")
    done
    ((${#telling[@]})) || telling=("${all[@]}")
    for log in "$MA_ATTEMPT_LOGS"/srun-*.log; do
        # That a step was ended does not tell why.
        awk '!/CANCELLED AT/ {found = 1; exit} END {exit !found}' "$log" 2>/dev/null && slurms+=("$log")
    done
    say_tails "${telling[@]}"
    ((${#slurms[@]} == 0)) || say_tails "${slurms[@]}"
}

# say_tails FILES...: of four at most; a job may have hundreds of nodes.
say_tails() {
    local log
    for log in "${@:1:4}"; do say_tail "$log" 12; done
    if (($# > 4)); then say "and $(($# - 4)) more logs in $MA_ATTEMPT_LOGS"; fi
}

# stop_cluster: end both steps; ray_node.sh cleans its node. By USR2, which srun passes on to the
# tasks; a TERM to srun is a KILL for them.
stop_cluster() {
    local -a pids=()
    local pid tries
    for pid in $HEAD_STEP $WORKER_STEP; do
        kill -USR2 "$pid" 2>/dev/null && pids+=("$pid")
    done
    for ((tries = 0; tries < 50; tries++)); do
        kill -0 "${pids[@]}" 2>/dev/null || break
        sleep 0.2
    done
    ((${#pids[@]} == 0)) || kill -KILL "${pids[@]}" 2>/dev/null || true
    HEAD_STEP="" WORKER_STEP=""
}
