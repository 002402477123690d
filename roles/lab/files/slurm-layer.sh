#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later
# Runs in a container of the node image: makes it the image of nodes with Slurm.
# Usage: slurm-layer.sh PACKAGE...
set -eu
export DEBIAN_FRONTEND=noninteractive

# Packages must not start services here.
printf '#!/bin/sh\nexit 101\n' >/usr/sbin/policy-rc.d
chmod 0755 /usr/sbin/policy-rc.d
apt-get update -qq
apt-get install -qq --yes --no-install-recommends "$@" >/dev/null
rm /usr/sbin/policy-rc.d
# The role slurm enables the services that a node needs.
for name in munge mariadb slurmdbd slurmctld slurmd slurmrestd; do
  [ ! -e "/etc/init.d/$name" ] || update-rc.d "$name" disable
done
install --mode=0755 /build/lab/slurm-node /usr/local/sbin/rdm-slurm-node
# Accept the users' own keys, too, for `env up`. sshd reads this file before rdm-lab.conf.
printf 'AuthorizedKeysFile /etc/rdm-lab/authorized_keys .ssh/authorized_keys\n' >/etc/ssh/sshd_config.d/own-keys.conf
# An image must not contain secrets: the package munge has created a key.
rm -f /etc/munge/munge.key
