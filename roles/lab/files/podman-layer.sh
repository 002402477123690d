#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later
# Runs in a container of the node image: makes it the image of nodes with Podman.
# Usage: podman-layer.sh PACKAGE...
set -eu
export DEBIAN_FRONTEND=noninteractive

# Packages must not start services here.
printf '#!/bin/sh\nexit 101\n' >/usr/sbin/policy-rc.d
chmod 0755 /usr/sbin/policy-rc.d
apt-get update -qq
apt-get install -qq --yes --no-install-recommends "$@" >/dev/null
rm /usr/sbin/policy-rc.d
install --mode=0755 /build/lab/podman-node /usr/local/sbin/rdm-podman-node
install --mode=0755 /build/lab/podman-runtime /usr/local/sbin/rdm-podman-runtime
cat >/etc/containers/containers.conf <<'CONFIG'
[engine]
cgroup_manager = "cgroupfs"
runtime = "runc"
[engine.runtimes]
runc = ["/usr/local/sbin/rdm-podman-runtime"]
CONFIG
