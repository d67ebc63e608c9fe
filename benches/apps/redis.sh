#!/bin/bash
# redis-server with twice as much data as it may use, and redis-benchmark: four GETs to one SET of keys at random.
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
. "$here/redis_common.sh"

# How many keys have neither their first value nor that of the benchmark.
check="$value_of"'local wrong = 0
for i = tonumber(ARGV[1]), tonumber(ARGV[2]) do
    local found = redis.call("GET", string.format("key:%012d", i))
    if found ~= ARGV[3] and found ~= value(i) then wrong = wrong + 1 end
end
return wrong'

keys=$(sized 360000 56000)
requests=$(sized 200000 20000)

prepare() { :; }

# ask CLIENTS REQUESTS COMMAND...: prints requests per second.
ask() {
    redis-benchmark -s "$socket" --csv -r "$keys" -c "$1" -n "$2" "${@:3}" | awk -F'"' 'END { print $4 }'
}

work() {
    start_redis
    load_redis "$(sized 340 52)"

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
    stop_redis
}

main "$(sized 200M 32M)" "$@"
