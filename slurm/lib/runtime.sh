# shellcheck shell=bash
# Where the program's Python is: a virtual environment, or a container by Pyxis or Apptainer.

# check_runtime: end with the reason when the environment or the image is not there.
check_runtime() {
    if [[ $MA_CONTAINER == none ]]; then
        [[ -x $MA_VENV/bin/python ]] || fail "$EXIT_SETUP" \
            "MA_VENV must be a virtual environment, got '$MA_VENV' without bin/python." \
            "Run 'make setup' in the checkout, or set cluster.slurm.venv. For a container submit with" \
            "'megatron-agent launch', or export MA_CONTAINER and MA_CONTAINER_IMAGE where sbatch is called:" \
            "a plain sbatch reads the cluster file with that environment's Python."
        return
    fi
    [[ -n $MA_CONTAINER_IMAGE ]] || fail "$EXIT_SETUP" \
        "MA_CONTAINER=$MA_CONTAINER needs an image. Set cluster.slurm.container_image."
    # A name such as docker://... is for the container's own tool to find.
    if [[ $MA_CONTAINER_IMAGE == /* || $MA_CONTAINER_IMAGE == .* ]] && [[ ! -e $MA_CONTAINER_IMAGE ]]; then
        fail "$EXIT_SETUP" "The container image '$MA_CONTAINER_IMAGE' does not exist on $(hostname)." \
            "Correct cluster.slurm.container_image, or build it (slurm/container.def)."
    fi
    if [[ $MA_CONTAINER == apptainer ]] && ! command -v apptainer >/dev/null; then
        fail "$EXIT_SETUP" "apptainer is not on the PATH of $(hostname)." \
            "Name its module in cluster.slurm.modules, or use another container."
    fi
    if [[ $MA_CONTAINER == pyxis ]] && ! srun --help 2>&1 | grep -q -- --container-image; then
        fail "$EXIT_SETUP" "srun on $(hostname) has no --container-image: Pyxis is not installed." \
            "Use cluster.slurm.container=apptainer or none."
    fi
}

# use_runtime: modules and PATH of this shell; sets the arrays SRUN_CONTAINER (options of srun) and
# CONTAINER_EXEC (what a command is prefixed with), either of them empty.
use_runtime() {
    SRUN_CONTAINER=() CONTAINER_EXEC=()
    if [[ -n $MA_MODULES ]]; then
        command -v module >/dev/null || fail "$EXIT_SETUP" \
            "cluster.slurm.modules names '$MA_MODULES', and $(hostname) has no 'module' command."
        set +u # the module command of many sites reads unset variables
        # shellcheck disable=SC2086 # one argument a module
        module load $MA_MODULES
        set -u
    fi
    local -a options
    read -r -a options <<<"$MA_CONTAINER_OPTIONS"
    local mounts="$MA_ROOT:$MA_ROOT,$MA_LOGS:$MA_LOGS,$MA_SCRATCH:$MA_SCRATCH"
    [[ -z $MA_CONTAINER_MOUNTS ]] || mounts+=",$MA_CONTAINER_MOUNTS"
    case $MA_CONTAINER in
        none)
            export PATH=$MA_VENV/bin:$PATH
            ;;
        pyxis)
            SRUN_CONTAINER=(--container-image="$MA_CONTAINER_IMAGE" --container-mounts="$mounts"
                --container-workdir="$MA_ROOT" "${options[@]}")
            ;;
        apptainer)
            CONTAINER_EXEC=(apptainer exec --bind "$mounts" --pwd "$MA_ROOT" "${options[@]}"
                "$MA_CONTAINER_IMAGE")
            ;;
    esac
    export PYTHONPATH=$MA_ROOT${PYTHONPATH:+:$PYTHONPATH}
}

# on_head COMMAND...: run it in the environment on this node. The batch shell is on the head's node.
on_head() {
    if ((${#SRUN_CONTAINER[@]})); then
        step 1 "$HEAD_NODE" "$@"
    else
        "${CONTAINER_EXEC[@]}" "$@"
    fi
}

# step COUNT NODES COMMAND...: a job step with one task on each of COUNT nodes, which gets all of
# the job's CPUs, GPUs and memory there, beside other steps. Options for srun: array STEP_OPTIONS.
step() {
    set_srun "$1" "$2"
    "${SRUN[@]}" "${@:3}"
}

# begin_step COUNT NODES COMMAND...: the same in the background. STEP_PID is srun itself and not a
# shell around it: so signals reach srun.
begin_step() {
    set_srun "$1" "$2"
    "${SRUN[@]}" "${@:3}" &
    # shellcheck disable=SC2034 # read by the callers, in cluster.sh and job.sh
    STEP_PID=$!
}

# set_srun COUNT NODES: the array SRUN, all that stands before a step's command.
set_srun() {
    local -a cpus=()
    # srun has not inherited --cpus-per-task since 22.05, and one CPU is its default.
    [[ -z ${SLURM_CPUS_PER_TASK:-} ]] || cpus=(--cpus-per-task="$SLURM_CPUS_PER_TASK")
    SRUN=(srun --overlap --nodes="$1" --ntasks="$1" --ntasks-per-node=1 --nodelist="$2"
        --mem=0 "${cpus[@]}" "${STEP_OPTIONS[@]}" "${SRUN_CONTAINER[@]}" "${CONTAINER_EXEC[@]}")
}
