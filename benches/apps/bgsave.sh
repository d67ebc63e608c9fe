#!/bin/bash
# redis-server with twice as much data as it may use, whose keys are overwritten at random while a forked child writes all of them to a file
# (BGSAVE).
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
. "$here/redis_common.sh"

keys=$(sized 180000 56000)
requests=$(sized 100000 20000)

prepare() { :; }

# timed NAME COMMAND...
timed() {
    local begun ended
    begun=$(date +%s%N)
    "${@:2}"
    ended=$(date +%s%N)
    figure "$1" "$(((ended - begun) / 1000000))"
}

overwrite() {
    redis-benchmark -s "$socket" -q -n "$requests" -r "$keys" -d 960 -c 20 -P 16 -t set,get >&2
}

until_saved() {
    while [[ $(cli info persistence) == *rdb_bgsave_in_progress:1* ]]; do
        sleep 0.1
    done
    [[ $(cli info persistence) == *rdb_last_bgsave_status:ok* ]] || wrong "BGSAVE has failed: $(tail -n 1 redis.log)"
}

work() {
    start_redis --dbfilename dump.rdb --rdbcompression no --enable-debug-command yes
    load_redis "$(sized 170 52)"
    local saved
    saved=$(cli debug digest)
    echo "data $saved"
    cli bgsave >&2
    timed overwrite-ms overwrite
    timed until-saved-ms until_saved
    [[ $(cli debug digest) != "$saved" ]] || wrong "nothing was overwritten"
    # What the child has written is what was there when it was forked.
    [[ $(cli debug reload nosave) == OK && $(cli debug digest) == "$saved" ]] || wrong "the file has other data"
    stop_redis
}

main "$(sized 100M 32M)" "$@"
