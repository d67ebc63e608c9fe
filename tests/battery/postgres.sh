#!/bin/bash
# about: PostgreSQL: 48 MiB of shared buffers, pgbench by two clients, a sort and an aggregate; TPC-B sums, md5
# group: databases
# packages: postgresql
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

programs=$(ls -d /usr/lib/postgresql/*/bin 2>/dev/null | sort -V | tail -n 1)
rows=$(sized 150000 50000)

# PostgreSQL refuses to run as root.
as_user() {
    if ((EUID == 0)); then setpriv --reuid=postgres --regid=postgres --init-groups env HOME=/tmp "$@"; else "$@"; fi
}
ask() { as_user "$programs/psql" -h "$PWD/$made" -d postgres -qAtX -v ON_ERROR_STOP=1 -c "$1"; }
stop() { as_user "$programs/pg_ctl" -D "$PWD/$made/data" stop -s -m "$1" >&2; }

prepare() { need "$programs/postgres"; }

work() {
    made=made.$$
    mkdir "$made"
    ((EUID)) || chown postgres: "$made"
    as_user "$programs/initdb" -D "$made/data" -A trust -E UTF8 --locale=C -N -k >&2
    as_user "$programs/postgres" -D "$PWD/$made/data" -c listen_addresses= -c unix_socket_directories="$PWD/$made" \
        -c shared_buffers=48MB -c work_mem=64MB -c fsync=off -c huge_pages=off -c jit=off -c max_parallel_workers_per_gather=0 2>log &
    server=$!
    trap 'stop immediate || true; rm -rf "$made"' EXIT
    await $server ask 'select 1'
    as_user "$programs/pgbench" -h "$PWD/$made" -i -s "$(sized 3 1)" -q postgres >&2
    as_user "$programs/pgbench" -h "$PWD/$made" -c 2 -j 2 -t "$(sized 600 200)" -n --random-seed=5 postgres >&2
    ask 'select (select sum(abalance) from pgbench_accounts) = (select sum(bbalance) from pgbench_branches)
        and (select sum(bbalance) from pgbench_branches) = (select sum(tbalance) from pgbench_tellers)
        and (select sum(tbalance) from pgbench_tellers) = (select sum(delta) from pgbench_history), count(*) from pgbench_history'
    ask "select md5(string_agg(x, '' order by rn)) from (select rn, x from (select row_number() over (order by md5(i::text)) rn,
        md5(i::text) x from generate_series(1, $rows) i) s where rn % 100 = 0) z"
    ask "select sum(c), count(*), sum(hashtext(k)::bigint) from (select md5((i::bigint * 7919 % $rows)::text) k, count(*) c
        from generate_series(1, $rows * 2) i group by 1) g"
    stop fast
    wait $server
    as_user "$programs/pg_checksums" --check -D "$made/data" >&2
    rm -rf "$made"
    trap - EXIT
}

main "$@"
