#!/usr/bin/env bash
# The slurm tier, on a real Slurm: the cluster that SLURM_CONF names, or one of virtual nodes on this
# machine. Installs Slurm's packages where they are missing (they stay); nothing else is left behind.
#
# Usage: tools/test_slurm.sh PYTHON [pytest options]
set -euo pipefail
cd "$(dirname "$0")/.."

python=$1
shift
packages=(slurm-wlm munge slurm-wlm-basic-plugins slurm-client)

stop() {
    printf 'test-slurm: %s\n' "$*" >&2
    exit 1
}

missing() {
    local program
    for program in sbatch scontrol slurmctld slurmd munged; do
        PATH=$PATH:/usr/sbin command -v "$program" >/dev/null || printf '%s ' "$program"
    done
}

if [[ -z ${SLURM_CONF:-} ]]; then
    local_slurm=${LOCAL_SLURM:-../shared/tools/local_slurm.sh}
    [[ -f $local_slurm ]] || stop "no cluster to test on. Name one with SLURM_CONF=/path/to/slurm.conf, or a" \
        "script that starts a local one with LOCAL_SLURM (now $local_slurm)."
    [[ $(id -u) == 0 ]] || stop "virtual nodes need root. Run as root, or name a cluster with SLURM_CONF."
    if [[ -n $(missing) ]]; then
        command -v apt-get >/dev/null || stop "missing: $(missing). Install Slurm (slurmctld, slurmd) and" \
            "munge with this system's package manager."
        apt-get update
        DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "${packages[@]}"
    fi
fi
options=()
# Compute nodes must see what the tests write. pytest empties the folder before.
if [[ -n ${SLURM_CONF:-} && -z ${SLURM_LAB:-} ]]; then options=(--basetemp="$PWD/runs/test-slurm"); fi
exec "$python" -m pytest -m slurm tests/slurm "${options[@]}" "$@"
