#!/bin/bash
# redis-server with twice as much data as it may use, and redis-benchmark: four GETs to one SET of keys at random.
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
need redis-server redis-cli redis-benchmark

# Half of a value are digits that do not compress, the other half repeats them: LZ4 makes one half of it.
value_of='local function value(i)
    local parts = {}
    for part = 1, 12 do parts[part] = redis.sha1hex(i .. ":" .. part) end
    local half = table.concat(parts)
    return half .. half
end
'
load="$value_of"'for i = tonumber(ARGV[1]), tonumber(ARGV[2]) do
    redis.call("SET", string.format("key:%012d", i), value(i))
end
return "OK"'
# How many keys have neither their first value nor that of the benchmark.
check="$value_of"'local wrong = 0
for i = tonumber(ARGV[1]), tonumber(ARGV[2]) do
    local found = redis.call("GET", string.format("key:%012d", i))
    if found ~= ARGV[3] and found ~= value(i) then wrong = wrong + 1 end
end
return wrong'

keys=$(sized 360000 56000)
requests=$(sized 200000 20000)
step=4000

prepare() { :; }

cli() { redis-cli -s "$socket" "$@"; }

# chunks SCRIPT [ARGUMENT]: the script for all keys, some at a time, so that the server is never taken for hanging.
chunks() {
    local sha from
    sha=$(cli script load "$1")
    for ((from = 0; from < keys; from += step)); do
        cli evalsha "$sha" 0 "$from" $((from + step < keys ? from + step - 1 : keys - 1)) "${@:2}"
    done
}

# ask CLIENTS REQUESTS COMMAND...: prints requests per second.
ask() {
    redis-benchmark -s "$socket" --csv -r "$keys" -c "$1" -n "$2" "${@:3}" | awk -F'"' 'END { print $4 }'
}

work() {
    # The name of a socket is short, and the directory of the data may be long.
    socket=$(mktemp -u /tmp/uswap-bench-redis.XXXXXX)
    redis-server --port 0 --unixsocket "$socket" --save '' --appendonly no --lua-time-limit 600000 \
        --logfile redis.log --dir . &
    server=$!
    trap 'kill -KILL "$server" 2>/dev/null; rm -f "$socket"' EXIT
    local tries=0
    until [[ $(cli ping 2>/dev/null) == PONG ]]; do
        ((++tries < 600)) && kill -0 "$server" || wrong "redis-server does not answer: $(tail -n 1 redis.log)"
        sleep 0.1
    done

    local answers
    answers=$(chunks "$load" | sort | uniq -c)
    [[ $answers =~ ^\ *[0-9]+\ OK$ ]] || wrong "loading says $answers"
    echo "$(cli dbsize) keys of $keys"
    cli info memory | awk -F: -v used="$(sized 340 52)" '/^used_memory:/ && $2 < used * 1048576 { exit 1 }' ||
        wrong "the data is smaller than it should be"

    local value begun ended
    value=$(cli eval "${value_of}return value(-1)" 0)
    # A server of one thread serves its clients in turns: four fifths of them make four fifths of the requests.
    begun=$(date +%s%N)
    ask 40 $((requests * 4 / 5)) GET key:__rand_int__ >get.rate &
    local reader=$!
    ask 10 $((requests / 5)) SET key:__rand_int__ "$value" >set.rate
    wait "$reader"
    ended=$(date +%s%N)
    figure ops/s $((requests * 1000000000 / (ended - begun)))
    figure GET/s "$(<get.rate)"
    figure SET/s "$(<set.rate)"

    echo "$(chunks "$check" "$value" | awk '{ wrong += $1 } END { print wrong + 0 }') of $(cli dbsize) wrong"
    # A GET that failed would have been quick.
    cli info stats | tr -d '\r' | grep -E '^(keyspace_misses|unexpected_error_replies|total_error_replies):'
    cli shutdown nosave >&2 || true
    wait "$server" || wrong "redis-server ends with status $?"
    trap - EXIT
}

main "$(sized 200M 32M)" "$@"
