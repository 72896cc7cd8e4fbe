# shellcheck shell=bash
# shellcheck disable=SC2034 # OVERRIDES is used by the files that source this one
# From `configs/experiment/NAME key=value ...` to Hydra overrides and the site's settings.

# read_experiment EXPERIMENT [key=value ...]: OVERRIDES (array), with the job's number of nodes, and
# MA_... from the cluster file.
read_experiment() {
    (($#)) || fail "$EXIT_SETUP" "name an experiment: sbatch SCRIPT configs/experiment/NAME [key=value ...]"
    local first=$1
    shift
    case $first in
        *=*) ;;
        *)
            first=${first##*configs/experiment/}
            first="experiment=${first%.yaml}"
            ;;
    esac
    # Ranks for each node follow from the number of nodes, which is Slurm's to say.
    OVERRIDES=("$first" "$@" "trainer.nnodes=${SLURM_JOB_NUM_NODES:-1}")
    read_cluster_file
}

# read_cluster_file: that takes the virtual environment's Python. With a container there is none at
# hand, and the settings come from the environment alone.
read_cluster_file() {
    local python=${MA_VENV:-$MA_ROOT/.venv}/bin/python lines
    if [[ ${MA_CONTAINER:-none} != none || ! -x $python ]]; then
        say "the cluster file is not read (no virtual environment, or a container): settings are those of" \
            "the environment. 'megatron-agent launch' writes them into the script."
        return
    fi
    lines=$(cd -- "$MA_ROOT" && PYTHONPATH=$MA_ROOT "$python" -m megatron_agent.slurm.job_settings \
        "${OVERRIDES[@]}") || fail "$EXIT_SETUP" "the configuration cannot be read, see above."
    eval "$lines"
}
