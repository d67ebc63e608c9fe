#!/bin/bash
# about: php-fpm with three workers, 60 requests by FastCGI, each building a table; sha256 of the answers
# group: servers
# packages: php-fpm libfcgi-bin
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

fpm() { compgen -c php-fpm | sort -r | head -n 1; }

prepare() {
    need cgi-fcgi
    [[ -n $(fpm) ]] || wrong "no command 'php-fpm'"
    cat >program.php <<'END'
<?php
ini_set('memory_limit', '-1');
// Its limit counts the processor time of all threads of the process, and there are more of them under uswap.
set_time_limit(0);
parse_str($_SERVER['QUERY_STRING'], $query);
$n = (int) $query['n'];
$table = [];
for ($i = 0; $i < $n * 2; $i++) {
    $x = ($i * 2654435761 + (int) $query['turn']) & 0xffffffff;
    $table['k' . $x % $n] = [$x, "entry $i of $x"];
}
ksort($table, SORT_STRING);
$hash = hash_init('sha256');
foreach ($table as $key => $entry) hash_update($hash, $key . $entry[1]);
echo hash_final($hash), ' ', count($table), "\n";
END
}

work() {
    rm -f socket
    cat >fpm.conf <<END
[global]
error_log = $PWD/log
daemonize = no
[pool]
listen = $PWD/socket
user = $(id -un)
group = $(id -gn)
pm = static
pm.max_children = 3
END
    "$(fpm)" -R -F -y fpm.conf >&2 &
    server=$!
    trap 'kill -9 $server 2>/dev/null || true' EXIT
    await $server test -S socket
    local turn
    for ((turn = 0; turn < 3; turn++)); do
        for ((request = turn; request < 60; request += 3)); do
            SCRIPT_FILENAME=$PWD/program.php REQUEST_METHOD=GET QUERY_STRING="n=$(sized 60000 30000)&turn=$request" \
                cgi-fcgi -bind -connect socket >"answer.$request"
        done &
        clients[turn]=$!
    done
    wait "${clients[@]}"
    for ((request = 0; request < 60; request++)); do tail -n 1 "answer.$request"; done | sum
    kill -QUIT $server
    wait $server
    trap - EXIT
}

main "$@"
