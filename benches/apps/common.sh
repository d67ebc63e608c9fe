# What the scripts beside this one share. Each of them makes its data, measures itself with `uswap bench` and
# deletes the data again. Its own work, which runs once under each back end, is the function `work`: it prints on
# standard output what must be the same everywhere, and checks its results against what they must be.
#
#   benches/apps/sort.sh [OPTION of uswap bench...]
#
# USWAP   the binary [target/release/uswap]
# SCALE   small: sizes for a try-out [full]
# BUDGET  memory that the program may use [what fits SCALE]
# DATA    an existing directory for the data; must be on a disk [/var/tmp]

set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
SCALE=${SCALE:-full}
export SCALE

# The first word at full scale, the second in small.
sized() { if [[ $SCALE == small ]]; then echo "$2"; else echo "$1"; fi; }

# Says what does not hold, and ends with a failure.
wrong() { echo "${0##*/}: $*" >&2; exit 1; }

need() {
    local program
    for program; do
        command -v "$program" >/dev/null || wrong "no command '$program'"
    done
}

# The interpreter itself: a version manager may have put a shell script under the name.
python() { python3 -c 'import sys; print(sys.executable)'; }

# A figure for the report: a name, and a number.
figure() { if [[ -n ${USWAP_BENCH_FIGURES:-} ]]; then echo "$1 $2" >>"$USWAP_BENCH_FIGURES"; fi; }

# main BUDGET ARGUMENTS...: measures `work` in that budget, or does it.
main() {
    local budget=$1
    shift
    if [[ ${1:-} == --work ]]; then
        cd "$BENCH_DATA"
        work
        return
    fi
    local uswap=${USWAP:-$here/../../target/release/uswap}
    [[ -x $uswap ]] || wrong "no '$uswap': cargo build --release -p uswap-cli, or name one in \$USWAP"
    BENCH_DATA=$(mktemp -d "${DATA:-/var/tmp}/uswap-bench-app.XXXXXX")
    export BENCH_DATA
    trap 'rm -rf "$BENCH_DATA"' EXIT
    # The bench takes down first.
    trap 'kill -TERM "$child" 2>/dev/null; wait "$child"; exit 143' INT TERM HUP
    child=
    (cd "$BENCH_DATA" && prepare)
    local status=0
    "$uswap" bench --memory "${BUDGET:-$budget}" "$@" -- "$here/${0##*/}" --work &
    child=$!
    wait "$child" || status=$?
    exit "$status"
}
