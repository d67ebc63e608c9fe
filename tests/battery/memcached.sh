#!/bin/bash
# about: memcached with 100 MiB in four threads; every value read back
# group: servers
# packages: memcached python3
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

prepare() {
    need memcached python3
    cat >client.py <<'END'
import hashlib, random, socket, sys, threading
path, n = sys.argv[1], int(sys.argv[2])

def value(i):
    block = hashlib.sha256(b"%d" % i).digest()
    return (block * 64)[: 200 + i * 7919 % 1800]

def connect():
    s = socket.socket(socket.AF_UNIX); s.connect(path)
    return s, s.makefile("rb")

def store(turn):
    s, f = connect()
    for first in range(turn, n, 4 * 64):
        keys = range(first, min(n, first + 4 * 64), 4)
        s.sendall(b"".join(b"set k%d 0 0 %d noreply\r\n%s\r\n" % (i, len(value(i)), value(i)) for i in keys))
    s.sendall(b"version\r\n"); f.readline()

bad = []
def check(turn):
    s, f = connect()
    r = random.Random(turn); order = list(range(turn, n, 4)); r.shuffle(order)
    for i in order:
        s.sendall(b"get k%d\r\n" % i)
        head = f.readline().split()
        got = f.read(int(head[3])) if head[0] == b"VALUE" else b""
        if head[0] == b"VALUE": f.readline(); f.readline()
        if got != value(i): bad.append((i, head[:1], len(got)))

for job in store, check, check:
    threads = [threading.Thread(target=job, args=(t,)) for t in range(4)]
    [t.start() for t in threads]; [t.join() for t in threads]
print(n, len(bad), bad[:5])
END
}

work() {
    rm -f socket
    memcached -m 200 -t 4 -s "$PWD/socket" -M $( ((EUID)) || echo -u root) 2>log &
    server=$!
    trap 'kill -9 $server 2>/dev/null || true' EXIT
    await $server test -S socket
    python3 client.py socket "$(sized 60000 30000)"
    kill $server
    wait $server || true
    trap - EXIT
}

main "$@"
