#!/bin/bash
# about: V8 in three worker threads, each with a heap of its own, and an array of all of them; sha256
# group: runtimes
# packages: nodejs
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

prepare() {
    need node
    cat >program.js <<'END'
const crypto = require('crypto'), { Worker, isMainThread, parentPort, workerData } = require('worker_threads');
function part({ turn, n, shared }) {
    const map = new Map(), words = new Uint32Array(shared);
    for (let i = 0; i < n * 2; i++) {
        const x = Math.imul(i + turn * 7, 2654435761) >>> 0, key = 'k' + x % n, old = map.get(key);
        map.set(key, { x, name: key + ':' + i, past: old ? old.x ^ x : 0 });
    }
    for (let i = turn; i < words.length; i += 3) words[i] = Math.imul(i, 40503);
    const hash = crypto.createHash('sha256');
    for (const key of [...map.keys()].sort()) { const o = map.get(key); hash.update(key + o.name + o.past); }
    return hash.digest('hex');
}
if (isMainThread) {
    const n = Number(process.argv[2]), shared = new SharedArrayBuffer(32 << 20);
    Promise.all([0, 1, 2].map(turn => new Promise((done, failed) => {
        const worker = new Worker(__filename, { workerData: { turn, n, shared } });
        worker.on('message', done); worker.on('error', failed);
    }))).then(sums => console.log(crypto.createHash('sha256').update(sums.join() + Buffer.from(shared).toString('base64')).digest('hex')));
} else parentPort.postMessage(part(workerData));
END
}

work() { node program.js "$(sized 60000 15000)"; }

main "$@"
