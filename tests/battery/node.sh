#!/bin/bash
# about: V8: maps of objects, strings, 24 MiB of buffers; sha256
# group: runtimes
# packages: nodejs
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

prepare() {
    need node
    cat >program.js <<'END'
const crypto = require('crypto'), n = Number(process.argv[2]);
const map = new Map();
for (let i = 0; i < n * 2; i++) {
    const x = Math.imul(i, 2654435761) >>> 0, key = 'k' + x % n, old = map.get(key);
    map.set(key, { x, name: key + ':' + i, past: old ? old.x ^ x : 0, pair: [i, x & 255] });
}
const buffers = [];
for (let i = 0; i < 24; i++) {
    const buffer = Buffer.alloc(1 << 20);
    for (let j = 0; j < buffer.length; j += 4) buffer.writeUInt32LE((Math.imul(j, 40503) + i) >>> 0, j);
    buffers.push(buffer);
}
const hash = crypto.createHash('sha256');
for (const key of [...map.keys()].sort()) { const o = map.get(key); hash.update(key + o.name + o.past + o.pair[1]); }
for (const buffer of buffers) hash.update(buffer);
hash.update(JSON.stringify([...map.values()].filter((_, i) => i % 50 == 0)));
console.log(hash.digest('hex'), map.size);
END
}

work() { node program.js "$(sized 200000 40000)"; }

main "$@"
