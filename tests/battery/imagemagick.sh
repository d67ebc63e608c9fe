#!/bin/bash
# about: ImageMagick: an image of 2400x1800 made, blurred, turned, resized; sum of its pixels
# group: media
# packages: imagemagick
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

tool() { if command -v convert-im6.q16 >/dev/null; then convert-im6.q16 "$@"; else /usr/bin/convert "$@"; fi; }

prepare() { tool -version >&2; }

work() {
    tool -limit memory 1GiB -limit map 1GiB -limit area 100MP -limit thread 2 -seed 7 -size "$(sized 2400x1800 1600x1200)" \
        plasma:fractal -blur 0x2 -rotate 30 -resize 60% -depth 8 rgb:- | sum
}

main "$@"
