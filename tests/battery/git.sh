#!/bin/bash
# about: git: clone, gc and repack -adf --window-memory of 40 commits of large files; the same objects, fsck
# group: build
# packages: git
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

prepare() {
    need git
    local commits
    commits=$(sized 40 20)
    git init -q origin
    {
        local i j
        for ((i = 1; i <= commits; i++)); do
            printf 'commit refs/heads/main\nmark :%d\ncommitter a <a@b> %d +0000\ndata 4\ntest\n' "$i" $((1700000000 + i))
            ((i == 1)) || printf 'from :%d\n' $((i - 1))
            for j in 1 2 3; do
                local name=file$((i * 7919 * j % 23))
                printf 'M 100644 inline %s\ndata <<END-OF-FILE\n' "$name"
                awk -v i="$i" -v j="$j" 'BEGIN { for (k = 0; k < 20000; k++) { x = (k * 2654435761 + int(i / (k % 40 + 1)) * 40503 + j) % 4294967296; printf "%08x line %d of %d\n", x, k, j } }'
                printf 'END-OF-FILE\n'
            done
        done
    } | git -C origin fast-import --quiet
    git -C origin repack -qad
}

work() {
    made=made.$$
    trap 'rm -rf "$made"' EXIT
    git clone -q --bare --no-local origin "$made"
    cd "$made"
    git -c gc.auto=0 -c pack.threads=2 gc -q --prune=now
    git -c pack.threads=2 repack -qadf --window=20 --depth=20
    git fsck --full --strict >&2
    git rev-list --objects --all | sort | sum
    git cat-file --batch-all-objects --batch-check | sum
    git archive main | sum
    cd ..
}

main "$@"
