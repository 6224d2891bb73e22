#!/bin/sh
# mk_datadir.sh BUILD_DIR OUT_DIR: a data directory of the format that this build writes, and the digests of what is in it.
# The first half goes through a clean stop into RocksDB's tables, the second is left in its log by a kill. The ballast is
# left out, which holds nothing, and so are the texts in which RocksDB tells its story.
set -eu
build=$1 out=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$out"
: >"$out/digests"
for part in 1 2; do
    rm -f "$work/ports"
    "$build/cache-server/vericache-server" --data-dir "$work/data" --capacity 64MiB --ballast 16MiB \
        --listen 127.0.0.1:0 --port-file "$work/ports" 2>"$work/log" &
    server=$!
    while [ ! -s "$work/ports" ]; do sleep 0.05; done
    "$build/tests/mk_datadir" "$(sed -n 's/^listen=//p' "$work/ports")" $part >>"$out/digests"
    [ $part = 1 ] && signal=TERM || signal=KILL
    kill -$signal $server
    wait $server || true
done
rm -f "$work/data/ballast" "$work"/data/catalog/LOG*
tar --sort=name --owner=0 --group=0 --numeric-owner --mtime=@0 --sparse -C "$work" -cf - data | gzip -9n >"$out/data.tar.gz"
