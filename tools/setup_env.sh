#!/bin/sh
# Makes .venv from a lock file, and the lock files from their inputs. Called by the Makefile.
#
#   tools/setup_env.sh install [PROFILE] [EXTRAS]   PROFILE: cpu, gpu. EXTRAS: alfworld,minigrid,... or none
#   tools/setup_env.sh lock [upgrade]               rebuild requirements/*.lock
#
# Needs a POSIX shell, coreutils and any Python 3: no sed, no git, no uv, nothing in HOME. An empty
# PROFILE or EXTRAS means what the existing .venv was made with, so that `make test` after
# `make setup PROFILE=gpu` stays on the GPU profile.
set -eu
cd "$(dirname "$0")/.."

VENV=.venv
STAMP=$VENV/.setup-stamp   # lines: place, profile, extras, digest; the place is "incomplete" while we are at work

# uv's own list of authorities does not know those that a company or a campus adds to the system's.
if [ -e /etc/ssl/certs/ca-certificates.crt ] || [ -e /etc/pki/tls/certs/ca-bundle.crt ]; then
    export UV_SYSTEM_CERTS="${UV_SYSTEM_CERTS:-1}"
fi

say() { printf 'setup: %s\n' "$*"; }
fail() { printf 'setup: error: %s\n' "$*" >&2; exit 1; }

# The stack needs more than an interpreter that starts: one built without these modules fails later.
is_python312() {
    [ -n "$1" ] && "$1" -c 'import bz2, ctypes, lzma, sqlite3, ssl, sys
sys.exit(sys.version_info[:2] != (3, 12))' >/dev/null 2>&1
}

# Sets $python312 to a Python 3.12, or to nothing (then uv fetches one).
find_python312() {
    python312=
    if [ -n "${PYTHON:-}" ]; then
        is_python312 "$PYTHON" || fail "PYTHON must be a complete Python 3.12 (ssl, sqlite3, lzma, bz2," \
            "ctypes), got '$PYTHON'. Unset it to search for one."
        python312=$PYTHON
        return
    fi
    on_path=$(command -v python3.12 || true)
    # A pyenv shim can be on PATH and refuse to run; the version it stands for lies beside its folder.
    for candidate in "$on_path" "${PYENV_ROOT:-/nonexistent}"/versions/3.12*/bin/python \
        "${HOME:-/nonexistent}"/.pyenv/versions/3.12*/bin/python \
        "${on_path%/shims/*}"/versions/3.12*/bin/python; do
        if is_python312 "$candidate"; then python312=$candidate; return; fi
    done
}

is_uv() {
    [ -n "$1" ] || return 1
    case "$("$1" pip compile --help 2>/dev/null || true)" in *--excludes*) return 0 ;; esac
    return 1
}

# Sets $uv. A uv that is missing, broken or too old is replaced by our own in .uv/.
find_uv() {
    for uv in "$(command -v uv || true)" .uv/bin/uv; do
        if is_uv "$uv"; then return; fi
    done
    base=${python312:-$(command -v python3 || true)}
    [ -n "$base" ] || fail "needs uv or any Python 3 on PATH, found neither. Install one of them."
    say "installing uv into .uv/"
    rm -rf .uv
    if ! "$base" -m venv .uv || ! .uv/bin/python -m pip install --quiet \
        --disable-pip-version-check --require-hashes -r requirements/uv.lock; then
        rm -rf .uv
        fail "could not install uv with '$base -m venv' and pip (messages above)." \
            "Install the venv module of your Python, or put uv on PATH."
    fi
    uv=.uv/bin/uv
    is_uv "$uv" || fail "$uv does not run on this machine. Put a working uv on PATH."
}

read_stamp() {
    stamp_place='' stamp_profile='' stamp_extras='' stamp_digest=''
    [ -r "$STAMP" ] || return 0
    {
        read -r stamp_place && read -r stamp_profile && read -r stamp_extras && read -r stamp_digest
    } <"$STAMP" || true
}

# The extras of setup.py that are no profiles. Read as text: there may be no Python yet.
known_extras() {
    inside=
    while IFS= read -r line; do
        case $inside$line in
        *extras_require=\{*) inside=1 ;;
        '1    },'*) return ;;
        '1        "cpu":'* | '1        "gpu":'*) ;;
        '1        "'*'":'*)
            line=${line#*\"}
            printf '%s ' "${line%%\"*}"
            ;;
        esac
    done <setup.py
}

# Ends unless $extras names extras alone: a lock file of that name may be a profile's or uv's, and pip
# takes an unknown extra for none.
check_extras() {
    [ "$extras" != none ] || return 0
    known=$(known_extras)
    checked=
    for extra in $(echo "$extras" | tr ',' ' '); do
        checked=$extra
        case " $known" in
        *" $extra "*) continue ;;
        esac
        hint=
        case $extra in
        cpu | gpu) hint=" For a profile use: make setup PROFILE=$extra" ;;
        esac
        fail "EXTRAS must be none or names of ${known% }, joined by commas, got '$extra'." \
            "Correct it, or use: make setup EXTRAS=none.$hint"
    done
    [ -n "$checked" ] || fail "EXTRAS must name an extra, got '$extras'. Use: make setup EXTRAS=none"
}

# Says that we are at work, and on what: after an interruption the next call takes that up.
mark_incomplete() {
    mkdir -p $VENV
    [ -e $VENV/pyvenv.cfg ] || : >$VENV/pyvenv.cfg   # or uv would refuse to clear the folder
    printf '%s\n' incomplete "$profile" "$extras" >"$STAMP"
}

# Sets $extra_locks to the lock files of those $extras that have one, $loose_extras to the others, for
# which setup.py names bounds.
sort_extras() {
    extra_locks='' loose_extras=''
    [ "$extras" != none ] || return 0
    for extra in $(echo "$extras" | tr ',' ' '); do
        if [ -f "requirements/$extra.lock" ]; then
            extra_locks="$extra_locks requirements/$extra.lock"
        else
            loose_extras="${loose_extras:+$loose_extras,}$extra"
        fi
    done
}

install() {
    read_stamp
    profile=${1:-${stamp_profile:-cpu}}
    extras=${2:-${stamp_extras:-none}}
    lock=requirements/$profile.lock
    case $profile in
    cpu | gpu) ;;
    *) fail "PROFILE must be cpu or gpu, got '$profile'. Use: make setup PROFILE=cpu" ;;
    esac
    check_extras
    sort_extras
    # shellcheck disable=SC2086 # a list of files without blanks
    digest=$(cat "$lock" $extra_locks setup.py | sha256sum | cut -d' ' -f1)

    [ -r "$STAMP" ] || mark_incomplete
    find_python312
    find_uv
    if is_python312 $VENV/bin/python && [ "$stamp_place" = "$PWD" ]; then
        if [ "$stamp_profile $stamp_extras $stamp_digest" = "$profile $extras $digest" ] &&
            [ -x $VENV/bin/megatron-agent ]; then
            # Costs a tenth of a second when nothing is missing, and mends what somebody removed.
            for file in "$lock" $extra_locks; do
                "$uv" pip install --quiet --python $VENV/bin/python --no-deps --require-hashes -r "$file"
            done
            return
        fi
    else
        # Moved, half made, made by something else, or its Python is gone.
        mark_incomplete
        say "creating $VENV with Python ${python312:-3.12, fetched by uv}"
        "$uv" venv --quiet --clear --python "${python312:-3.12}" $VENV
    fi
    mark_incomplete
    say "installing $lock (several GB, downloaded once)"
    # Byte-compiled here, once, or every process of the first run would compile on its own.
    "$uv" pip sync --quiet --python $VENV/bin/python --require-hashes --compile-bytecode "$lock"
    # Should one of the short steps below fail, the long one above need not be done again.
    printf '%s\n' "$PWD" "$profile" "$extras" synced >"$STAMP"
    "$uv" pip install --quiet --python $VENV/bin/python --no-deps --no-build-isolation -e .
    for file in $extra_locks; do
        say "installing $file"
        "$uv" pip install --quiet --python $VENV/bin/python --no-deps --require-hashes -r "$file"
    done
    if [ -n "$loose_extras" ]; then
        say "installing extras: $loose_extras"
        "$uv" pip install --quiet --python $VENV/bin/python -c "$lock" -e ".[$loose_extras]"
    fi
    printf '%s\n' "$PWD" "$profile" "$extras" "$digest" >"$STAMP"
    say "$VENV is ready (profile $profile, extras $extras)"
}

# compile_lock OUTPUT ARGS...: replaces OUTPUT when the whole compilation has succeeded.
# sglang's wheel asks for glibc 2.34; without a fixed platform the result would depend on this machine.
compile_lock() {
    output=$1
    shift
    if [ -f "$output" ]; then cp "$output" "$output.new"; fi   # uv keeps the versions it finds there
    "$uv" pip compile --quiet ${python312:+--python "$python312"} ${upgrade:+--upgrade} \
        --python-version 3.12 --python-platform x86_64-manylinux_2_34 --generate-hashes \
        --custom-compile-command 'make lock' -o "$output.new" "$@" >/dev/null
    case $output in
    */cpu.lock | */gpu.lock)
        "$uv" pip compile --quiet ${python312:+--python "$python312"} --no-deps --no-header \
            --python-version 3.12 --generate-hashes requirements/bridge.in >>"$output.new"
        ;;
    esac
    mv "$output.new" "$output"
    say "wrote $output"
}

lock() {
    upgrade=${1:-}
    find_python312
    find_uv
    trap 'rm -f requirements/*.new' EXIT
    compile_lock requirements/uv.lock requirements/uv.in
    compile_lock requirements/cpu.lock requirements/cpu.in \
        --overrides requirements/overrides.txt --excludes requirements/excludes-cpu.txt
    # Constrained by cpu.lock: what both profiles hold, they hold in the same version.
    compile_lock requirements/gpu.lock requirements/gpu.in \
        --overrides requirements/overrides.txt -c requirements/cpu.lock
    # An extra must not move anything that the profiles hold, nor what another extra holds.
    compile_lock requirements/alfworld.lock requirements/alfworld.in -c requirements/cpu.lock
    for extra in scienceworld textworld textworld-express; do
        compile_lock requirements/$extra.lock requirements/$extra.in \
            -c requirements/cpu.lock -c requirements/alfworld.lock
    done
}

command=${1:-}
[ $# -eq 0 ] || shift
case $command in
install) install "$@" ;;
lock) lock "$@" ;;
*) fail "the command must be install or lock, got '$command'." ;;
esac
