#!/bin/bash
# about: npm install of a tree of 400 packages from tarballs in a folder, offline; the files and what they compute
# group: build
# packages: nodejs npm
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

packages=$(sized 400 150)

prepare() {
    need node npm tar
    mkdir packs
    local number child dependencies
    for ((number = 0; number < packages; number++)); do
        mkdir package
        dependencies=
        for child in $((2 * number + 1)) $((2 * number + 2)); do
            ((child >= packages)) || dependencies+="${dependencies:+,}\"p$child\":\"file:$PWD/packs/p$child.tgz\""
        done
        echo "{\"name\":\"p$number\",\"version\":\"1.0.$number\",\"main\":\"main.js\",\"dependencies\":{$dependencies}}" >package/package.json
        {
            echo "const own = $number;"
            for child in $((2 * number + 1)) $((2 * number + 2)); do
                ((child >= packages)) || echo "const c$child = require('p$child');"
            done
            awk -v n="$number" 'BEGIN { printf "const table = ["; for (i = 0; i < 4000; i++) printf "%d,", (i * 2654435761 + n) % 1000003; print "0];" }'
            echo 'let sum = own; for (const x of table) sum = (sum * 31 + x) % 1000003;'
            for child in $((2 * number + 1)) $((2 * number + 2)); do
                ((child >= packages)) || echo "sum = (sum * 7 + c$child) % 1000003;"
            done
            echo 'module.exports = sum;'
        } >package/main.js
        tar czf "packs/p$number.tgz" package
        rm -r package
    done
}

work() {
    made=$PWD/made.$$
    trap 'rm -rf "$made"' EXIT
    mkdir "$made"
    echo "{\"name\":\"root\",\"version\":\"1.0.0\",\"dependencies\":{\"p0\":\"file:$PWD/packs/p0.tgz\"}}" >"$made/package.json"
    npm install --offline --no-audit --no-fund --no-update-notifier --loglevel=error --cache="$made/cache" --prefix "$made" >&2
    node -e "console.log(require('$made/node_modules/p0'))"
    find "$made/node_modules" -name '*.js*' -path '*/p[0-9]*' | wc -l
    (cd "$made/node_modules" && find . -name '*.js*' -path '*/p[0-9]*' -print0 | sort -z | xargs -0 cat) | sum
}

main "$@"
