# shellcheck shell=bash
# Names, addresses and ports of the job's nodes.

# read_nodes: NODES (array), HEAD_NODE (where this shell runs) and WORKER_NODES (array).
read_nodes() {
    local name expanded
    # Not `mapfile < <(...)`: that would hide a failure.
    expanded=$(scontrol show hostnames "$SLURM_JOB_NODELIST") || fail "$EXIT_SETUP" \
        "scontrol cannot expand the node list '$SLURM_JOB_NODELIST'."
    mapfile -t NODES <<<"$expanded"
    HEAD_NODE=${NODES[0]}
    for name in "${NODES[@]}"; do [[ $name == "${SLURMD_NODENAME:-}" ]] && HEAD_NODE=$name; done
    WORKER_NODES=()
    for name in "${NODES[@]}"; do [[ $name == "$HEAD_NODE" ]] || WORKER_NODES+=("$name"); done
}

# joined SEPARATOR WORDS...
joined() {
    local separator=$1 IFS=,
    local words="${*:2}"
    printf '%s' "${words//,/$separator}"
}

# own_address: this node's IPv4 address on MA_INTERFACE, or the one its name stands for.
own_address() {
    local address=""
    if [[ -n $MA_INTERFACE ]]; then
        address=$(ip -4 -o addr show dev "$MA_INTERFACE" 2>/dev/null |
            awk '{split($4, part, "/"); print part[1]; exit}') || true
        [[ -n $address ]] || fail "$EXIT_SETUP" \
            "interface '$MA_INTERFACE' has no IPv4 address on $(hostname). There are:" \
            "$(ip -4 -o addr show 2>/dev/null | awk '{print $2}' | sort -u | tr '\n' ' ')"
        printf '%s\n' "$address"
        return
    fi
    # /etc/hosts of many images gives a node's own name a loopback address, which no other reaches.
    address=$(getent ahostsv4 "$(hostname)" | awk '$1 !~ /^127\./ {print $1; exit}') || true
    [[ -n $address ]] || address=$(hostname -I 2>/dev/null |
        tr ' ' '\n' | awk '/^[0-9]+\./ && !/^127\./ {print; exit}') || true
    [[ -n $address ]] || fail "$EXIT_SETUP" \
        "$(hostname) has no IPv4 address but loopback. Set cluster.slurm.interface."
    printf '%s\n' "$address"
}

# interface_of ADDRESS: the name of the interface that has it; nothing where `ip` is missing.
interface_of() {
    ip -4 -o addr show 2>/dev/null |
        awk -v own="$1" '{split($4, part, "/"); if (part[1] == own) {print $2; exit}}' || true
}

# name_devices_once: Slurm names a node's GPUs to every vendor's library at once, and verl refuses a
# worker that is told of CUDA and of ROCm devices.
name_devices_once() {
    if [[ -n ${CUDA_VISIBLE_DEVICES:-} ]]; then
        unset ROCR_VISIBLE_DEVICES HIP_VISIBLE_DEVICES GPU_DEVICE_ORDINAL ZE_AFFINITY_MASK
    fi
}

# check_gpus: end when this node has fewer GPUs than the experiment uses: verl would wait for the rest
# for ever. The CPU profile makes its own up, and says nothing of a need.
check_gpus() {
    local given=${MA_NUM_GPUS:-${SLURM_GPUS_ON_NODE:-0}}
    [[ -n $MA_GPUS_NEEDED ]] || return 0
    ((given >= MA_GPUS_NEEDED)) || fail "$EXIT_SETUP" \
        "the job must have $MA_GPUS_NEEDED GPUs on each node (trainer.n_gpus_per_node; in mode" \
        "separate_async actor_rollout_ref.rollout.n_gpus_per_node too), got $given on $(hostname)." \
        "Submit with --gpus-per-node $MA_GPUS_NEEDED, or choose a cluster=... that uses fewer." \
        "Servers have nodes of their own with 'megatron-agent launch' alone." \
        "Where Slurm does not count GPUs, export MA_NUM_GPUS=$MA_GPUS_NEEDED."
}

readonly FIRST_PORT=10000
readonly PORTS_PER_JOB=512
readonly FIXED_PORTS=16
# So far apart are the blocks of two attempts of a job: the next ones belong to jobs submitted with it.
readonly BLOCKS_PER_ATTEMPT=13

# choose_ports: PORT_BASE, the first of this job's ports. Jobs that share a node get different
# blocks as far as blocks go round; all lie below the range from which the kernel hands out ports,
# so nothing else can have taken one by chance. Where a port was taken on another node (check_ports),
# the next attempt has other ones.
choose_ports() {
    local lowest_ephemeral blocks block tried first
    lowest_ephemeral=$(awk '{print $1}' "${MA_PORT_RANGE_FILE:-/proc/sys/net/ipv4/ip_local_port_range}")
    blocks=$(((lowest_ephemeral - FIRST_PORT) / PORTS_PER_JOB))
    ((blocks > 0)) || fail "$EXIT_SETUP" \
        "no room for $PORTS_PER_JOB ports between $FIRST_PORT and $lowest_ephemeral, where the" \
        "kernel's own begin (net.ipv4.ip_local_port_range)."
    first=$((SLURM_JOB_ID + ${MA_ATTEMPT:-0} * BLOCKS_PER_ATTEMPT))
    for ((tried = 0; tried < blocks; tried++)); do
        block=$(((first + tried) % blocks))
        PORT_BASE=$((FIRST_PORT + block * PORTS_PER_JOB))
        if [[ -z $(used_port "$PORT_BASE" $((PORT_BASE + FIXED_PORTS - 1))) ]]; then
            export PORT_BASE
            return
        fi
    done
    fail "$EXIT_SETUP" "every block of ports on $(hostname) is in use."
}

# used_port FIRST LAST: a port from FIRST to LAST on which somebody listens on this node; nothing where
# nobody does.
used_port() {
    local used
    used=$(cat "${MA_TCP_TABLE:-/proc/net/tcp}" /proc/net/tcp6 2>/dev/null |
        awk '$4 == "0A" {n = split($2, part, ":"); print part[n]}') || true
    local hex
    for hex in $used; do
        if ((16#$hex >= $1 && 16#$hex <= $2)); then
            printf '%s\n' "$((16#$hex))"
            return
        fi
    done
}
