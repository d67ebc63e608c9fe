# What the scripts beside this one share. Each is one program of `cargo xtask battery`, run in an empty directory of its own:
#
#   NAME.sh prepare   makes what `work` needs, once; says on standard error what is missing
#   NAME.sh work      the run itself, also as a tree under uswap; prints what must be the same every time
#
# The head of a script says `group:`, `about:` and `packages:` (Debian), and `refused:` with the reason, for a program that
# `uswap run` must not take; that one is `./program`. SCALE=small is the size for CI, SCALE=50
# half of the full one.
set -euo pipefail
export LC_ALL=C.UTF-8 TZ=UTC HOME=${HOME:-/root}
SCALE=${SCALE:-full}
PATH=$PATH:/usr/sbin

# The first word at full scale, the second in small; for a number that many hundredths of the first.
sized() {
    case $SCALE in
    small) echo "$2" ;;
    [0-9]*) echo "$((${1%%[A-Z]*} * SCALE / 100))${1##*[0-9]}" ;;
    *) echo "$1" ;;
    esac
}

# Says what does not hold, and ends with a failure.
wrong() { echo "${0##*/}: $*" >&2; exit 1; }

need() {
    local program
    for program; do command -v "$program" >/dev/null || wrong "no command '$program'"; done
}

# A short sum of standard input.
sum() { sha256sum | cut -c1-16; }

# So many MiB of lines that compress about 4 to 1.
lines() {
    awk -v bytes=$(($1 << 20)) 'BEGIN { for (i = 0; length_so_far < bytes; i++) {
        x = i * 2654435761 % 4294967296
        line = sprintf("%d %s %08x %s row-%d %.6f", i, substr("alphabetagammadelta", 1 + i % 13, 5), x,
            substr("the quick brown fox jumps over the lazy dog", 1 + x % 30, 12), i % 1000, x / 4294967296)
        length_so_far += length(line) + 1
        print line
    } }'
}

# A Python that has these packages of PyPI, in a place that the scripts share.
venv() {
    need python3
    [[ -x ../venv/bin/python ]] || python3 -m venv ../venv >&2
    ../venv/bin/pip install --quiet --disable-pip-version-check "$@" >&2
}
python() { ../venv/bin/python "$@"; }

# Waits until a command succeeds; a server that has ended, and a minute without success, are failures.
await() {
    local server=$1 tries=0
    shift
    until "$@" >/dev/null 2>&1; do
        kill -0 "$server" 2>/dev/null || wrong "the server has ended: $(tail -n 1 log 2>/dev/null)"
        ((++tries < 1200)) || wrong "the server does not answer"
        sleep 0.05
    done
}

main() {
    case ${1:-} in
    prepare) prepare ;;
    work) work ;;
    *) wrong "say prepare or work" ;;
    esac
}
