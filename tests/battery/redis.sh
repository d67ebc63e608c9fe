#!/bin/bash
# about: redis: strings and hashes by pipe, random writes, BGSAVE (fork), DEBUG RELOAD; DEBUG DIGEST
# group: databases
# packages: redis-server redis-tools
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

ask() { redis-cli -s socket "$@"; }

prepare() {
    need redis-server redis-cli redis-benchmark
    awk -v n="$(sized 250000 80000)" 'BEGIN {
        for (i = 0; i < n; i++) {
            key = "key:" i; value = ""; x = i * 2654435761 % 4294967296
            for (j = 0; j < 12; j++) { x = (x * 1103515245 + 12345) % 2147483648; value = value sprintf("%08x", x) }
            printf "*3\r\n$3\r\nSET\r\n$%d\r\n%s\r\n$%d\r\n%s\r\n", length(key), key, length(value), value
        }
        for (i = 0; i < n / 10; i++) {
            key = "h:" i % 5000; field = "f" i
            printf "*4\r\n$4\r\nHSET\r\n$%d\r\n%s\r\n$%d\r\n%s\r\n$%d\r\n%d\r\n", length(key), key, length(field), field, length(i ""), i
        }
    }' >commands
}

work() {
    rm -f socket dump.rdb
    redis-server --port 0 --unixsocket "$PWD/socket" --save "" --appendonly no --dir "$PWD" --enable-debug-command yes \
        --rdbcompression no >log 2>&1 &
    server=$!
    trap 'kill -9 $server 2>/dev/null || true' EXIT
    await $server ask ping
    ask --pipe <commands >&2
    local before after
    before=$(ask debug digest)
    echo "$before"
    ask bgsave >&2
    redis-benchmark -s socket -n "$(sized 60000 15000)" -r 100000 -c 10 -P 16 -t get,set -q >&2
    while ask info persistence | grep -q 'rdb_bgsave_in_progress:1'; do sleep 0.1; done
    ask info persistence | tr -d '\r' | grep rdb_last_bgsave_status
    before=$(ask debug digest)
    ask debug reload
    after=$(ask debug digest)
    [[ $before == "$after" ]] || wrong "digest $before, after a reload $after"
    ask shutdown nosave >&2 || true
    wait $server || true
    trap - EXIT
    rm -f dump.rdb
}

main "$@"
