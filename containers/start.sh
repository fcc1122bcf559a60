#!/bin/sh
# Starts perturb-mpm in a container with the kernels that were compiled into it. The program takes
# compiled code only from a folder of the user who runs it: so this user gets a copy.
set -eu
compiled=${PERTURB_MPM_KERNELS:-/opt/perturb-mpm/kernels}
cache=${TMPDIR:-/tmp}/perturb-mpm-kernels-$(id -u)
umask 077
if ! mkdir "$cache" 2>/dev/null && ! [ -O "$cache" ]; then
    cache=$(mktemp -d)
fi
cp -R "$compiled/." "$cache/"
export PERTURB_MPM_CACHE="$cache"
exec perturb-mpm "$@"
