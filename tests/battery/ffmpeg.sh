#!/bin/bash
# about: ffmpeg: x264 of 60 generated frames of 1280x720 in two threads, decoded again; MD5 of the frames
# group: media
# packages: ffmpeg
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

prepare() { need ffmpeg; }

work() {
    made=made.$$.h264
    trap 'rm -f "$made"' EXIT
    ffmpeg -v error -nostdin -f lavfi -i "testsrc2=size=1280x720:rate=30:duration=$(sized 2 0.7)" -c:v libx264 -preset medium \
        -threads 2 "$made"
    sum <"$made"
    ffmpeg -v error -nostdin -threads 2 -i "$made" -f md5 -
}

main "$@"
