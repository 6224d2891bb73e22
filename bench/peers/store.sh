#!/bin/sh
# Installs redis-server, a peer of bench_store, from the distribution. The bench starts its own instance; the service
# that the package would start is not wanted.
set -eu
command -v redis-server >/dev/null && exit 0
sudo=
[ "$(id -u)" -eq 0 ] || sudo=sudo
policy=/usr/sbin/policy-rc.d
made=
if [ ! -e "$policy" ] && [ -z "$sudo" ]; then
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod +x "$policy"
    made=1
fi
DEBIAN_FRONTEND=noninteractive $sudo apt-get install -y --no-install-recommends redis-server >/dev/null ||
    echo "store.sh: cannot install redis-server, its figures are left out" >&2
[ -z "$made" ] || rm -f "$policy"
