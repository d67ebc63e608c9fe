#!/bin/bash
# about: nginx: two workers, gzip for 600 slow readers at a time, a cache in shared memory; sums of what came
# group: servers
# packages: nginx-light curl apache2-utils
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

prepare() {
    need nginx curl ab
    mkdir -p www
    awk 'BEGIN { for (i = 0; i < 12000; i++) { x = i * 2654435761 % 4294967296; printf "%08x line %d of a page\n", x, i } }' >www/page.txt
    head -c 3000000 <(while :; do cat www/page.txt; done) >www/large.txt
}

work() {
    rm -rf run
    mkdir -p run/cache run/logs
    cat >run/nginx.conf <<END
daemon off;
master_process on;
worker_processes 2; worker_rlimit_nofile 4096;
user $(id -un);
pid $PWD/run/pid;
error_log $PWD/log;
events { worker_connections 2048; }
http {
    access_log off;
    client_body_temp_path $PWD/run/body; fastcgi_temp_path $PWD/run/f; uwsgi_temp_path $PWD/run/u; scgi_temp_path $PWD/run/s;
    proxy_cache_path $PWD/run/cache keys_zone=pages:32m;
    proxy_temp_path $PWD/run/proxy;
    gzip on; gzip_types text/plain; gzip_http_version 1.0; gzip_comp_level 4; gzip_buffers 4 8k;
    proxy_cache pages; proxy_cache_valid 200 1m; proxy_buffers 512 64k;
    server { listen unix:$PWD/run/back; root $PWD/www; }
    server {
        listen 127.0.0.1:${PORT:-18473};
        location / { proxy_pass http://unix:$PWD/run/back; }
        # Answers that take their time, so that many are under way at once, each with a compressor of its own.
        location /slow/ { proxy_pass http://unix:$PWD/run/back:/; limit_rate 40k; }
    }
}
END
    : >log
    nginx -p "$PWD/run" -c "$PWD/run/nginx.conf" >&2 &
    server=$!
    local at=http://127.0.0.1:${PORT:-18473}
    trap 'kill -QUIT $server 2>/dev/null || true' EXIT
    await $server curl -sf "$at/page.txt"
    curl -sf "$at/page.txt" | sum
    curl -sf --compressed "$at/large.txt" | sum
    local turn
    for ((turn = 0; turn < $(sized 8 2); turn++)); do
        curl -sf --compressed "$at/large.txt?$turn" | sum
        curl -sf "$at/large.txt?$turn" | sum
    done
    ab -q -n "$(sized 1200 600)" -s 120 -c 600 -H 'Accept-Encoding: gzip' "$at/slow/page.txt" | grep -E '^(Complete|Failed|Document Length|Non-2xx)' 
    kill -QUIT $server
    wait $server
    trap - EXIT
}

main "$@"
