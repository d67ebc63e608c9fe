# What the scripts with a redis-server share: the server on a socket of its own, and keys whose values are known.
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
step=4000

cli() { redis-cli -s "$socket" "$@"; }

# chunks SCRIPT [ARGUMENT]: the script for all $keys keys, some at a time, so that the server is never taken for hanging.
chunks() {
    local sha from
    sha=$(cli script load "$1")
    for ((from = 0; from < keys; from += step)); do
        cli evalsha "$sha" 0 "$from" $((from + step < keys ? from + step - 1 : keys - 1)) "${@:2}"
    done
}

# start_redis [OPTION...]
start_redis() {
    # The name of a socket is short, and the directory of the data may be long.
    socket=$(mktemp -u /tmp/uswap-bench-redis.XXXXXX)
    redis-server --port 0 --unixsocket "$socket" --save '' --appendonly no --lua-time-limit 600000 \
        --logfile redis.log --dir . "$@" &
    server=$!
    trap 'kill -KILL "$server" 2>/dev/null; rm -f "$socket"' EXIT
    local tries=0
    until [[ $(cli ping 2>/dev/null) == PONG ]]; do
        ((++tries < 600)) && kill -0 "$server" || wrong "redis-server does not answer: $(tail -n 1 redis.log)"
        sleep 0.1
    done
}

# Loads all keys; at least so many MiB.
load_redis() {
    local answers
    answers=$(chunks "$load" | sort | uniq -c)
    [[ $answers =~ ^\ *[0-9]+\ OK$ ]] || wrong "loading says $answers"
    echo "$(cli dbsize) keys of $keys"
    cli info memory | awk -F: -v used="$1" '/^used_memory:/ && $2 < used * 1048576 { exit 1 }' ||
        wrong "the data is smaller than it should be"
}

stop_redis() {
    cli shutdown nosave >&2 || true
    wait "$server" || wrong "redis-server ends with status $?"
    trap - EXIT
}
