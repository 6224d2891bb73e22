#!/bin/sh
# Installs redis-server, a peer of bench_store, from the distribution. The bench starts an instance of its own; the
# service that the package would start is not wanted.
set -eu
command -v redis-server >/dev/null && exit 0
sudo=
[ "$(id -u)" -eq 0 ] || sudo=sudo
policy=/usr/sbin/policy-rc.d
if [ -z "$sudo" ] && [ ! -e "$policy" ]; then
    trap 'rm -f "$policy"' EXIT
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod +x "$policy"
fi
install_it() { DEBIAN_FRONTEND=noninteractive $sudo apt-get install -y --no-install-recommends redis-server >/dev/null 2>&1; }
install_it || { $sudo apt-get update >/dev/null 2>&1 && install_it; } ||
    echo "store.sh: cannot install redis-server, its figures are left out" >&2
