#!/bin/bash
# about: Chromium without a window draws a page with a canvas and a long table; the pixels of its screenshot
# group: browsers
# packages: chromium python3
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

prepare() {
    need chromium
    cat >page.html <<'END'
<!doctype html><meta charset=utf-8><title>page</title>
<style>body { margin: 0; font: 12px monospace } td { border: 1px solid #888; padding: 0 2px }</style>
<canvas id=c width=780 height=200></canvas><table id=t></table>
<script>
const g = c.getContext('2d');
for (let i = 0; i < 4000; i++) { const x = Math.imul(i, 2654435761) >>> 0; g.fillStyle = `rgb(${x & 255},${x >> 8 & 255},${x >> 16 & 255})`; g.fillRect(x % 780, (x >>> 12) % 200, 9, 7); }
const m = new Map(); for (let i = 0; i < 200000; i++) m.set('k' + (Math.imul(i, 40503) >>> 0) % 100003, { i, s: 'v' + i });
let sum = 0; for (const [k, v] of m) sum = (sum * 31 + v.i + k.length) % 1000003;
let rows = ''; for (let i = 0; i < 400; i++) rows += '<tr>' + [i, sum, i * sum % 9973, 'row ' + i].map(v => `<td>${v}</td>`).join('') + '</tr>';
t.innerHTML = rows;
</script>
END
}

work() {
    made=made.$$
    trap 'rm -rf "$made"' EXIT
    mkdir "$made"
    chromium --headless --no-sandbox --disable-gpu --hide-scrollbars --window-size=800,600 --force-device-scale-factor=1 \
        --user-data-dir="$PWD/$made/profile" --screenshot="$PWD/$made/shot.png" "file://$PWD/page.html" >&2
    [[ -s $made/shot.png ]] || wrong "no screenshot"
    python3 - "$made/shot.png" <<'END'
import hashlib, struct, sys, zlib
data = open(sys.argv[1], "rb").read()
at, pixels, size = 8, b"", None
while at < len(data):
    length, kind = struct.unpack(">I4s", data[at : at + 8])
    if kind == b"IHDR": size = struct.unpack(">II", data[at + 8 : at + 16])
    if kind == b"IDAT": pixels += data[at + 8 : at + 8 + length]
    at += 12 + length
print(size, hashlib.sha256(zlib.decompress(pixels)).hexdigest())
END
}

main "$@"
