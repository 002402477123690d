#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later
# Runs in a container of the node image, which becomes the image of nodes that are a Slurm cluster.
# Usage: slurm-layer.sh PACKAGE...
set -eu
export DEBIAN_FRONTEND=noninteractive

# Nothing may be started here.
printf '#!/bin/sh\nexit 101\n' >/usr/sbin/policy-rc.d
chmod 0755 /usr/sbin/policy-rc.d
apt-get update -qq
apt-get install -qq --yes --no-install-recommends "$@" >/dev/null
rm /usr/sbin/policy-rc.d
# What a node needs of them is for the role slurm to say.
for name in munge mariadb slurmdbd slurmctld slurmd slurmrestd; do
  [ ! -e "/etc/init.d/$name" ] || update-rc.d "$name" disable
done
install --mode=0755 /build/lab/slurm-node /usr/local/sbin/rdm-slurm-node
# The users' own, too, as on an ordinary host: `env up` lets the nodes log in to each other. It stands before rdm-lab.conf.
printf 'AuthorizedKeysFile /etc/rdm-lab/authorized_keys .ssh/authorized_keys\n' >/etc/ssh/sshd_config.d/own-keys.conf
# Secrets belong to no image: the package munge has made itself a key.
rm -f /etc/munge/munge.key
