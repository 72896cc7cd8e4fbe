#!/usr/bin/env bash
# The driver of a standing cluster: says how to attach, and waits to be stopped.
set -euo pipefail

lib=$(dirname -- "${BASH_SOURCE[0]}")
# shellcheck source=slurm/lib/messages.sh
source "$lib/messages.sh"

attach=$MA_JOB_LOGS/attach.sh
# It holds the secret: for its owner alone.
rm -f -- "$attach"
(
    umask 077
    for name in RAY_ADDRESS RAY_AUTH_MODE RAY_AUTH_TOKEN GLOO_SOCKET_IFNAME NCCL_SOCKET_IFNAME \
        MEGATRON_AGENT_PREFORK_SOCKET MEGATRON_AGENT_PREFORK_PYTHON PATH PYTHONPATH; do
        [[ -z ${!name:-} ]] || printf 'export %s=%q\n' "$name" "${!name}"
    done >"$attach"
)
trap 'rm -f -- "$attach"; exit 0' USR1 TERM

say "the cluster stands. To attach, on $MA_HEAD_NODE:"
say "    srun --jobid $SLURM_JOB_ID --overlap --nodes 1 --nodelist $MA_HEAD_NODE --pty bash"
say "    source $attach"
say "To end it: scancel $SLURM_JOB_ID"
while :; do sleep 1; done
