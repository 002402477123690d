#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later
# Runs in the node image while it is built: sets up users and sshd as on a freshly installed host.
set -eu

groupadd --force --system docker
useradd --create-home --shell /bin/bash --groups docker,sudo rdm
useradd --create-home --shell /bin/bash --groups docker plain

# These accounts have no password, but are not locked: keys must work.
usermod --password '*' root
usermod --password '*' rdm
usermod --password '*' plain

echo 'rdm ALL=(ALL:ALL) NOPASSWD: ALL' >/etc/sudoers.d/rdm
chmod 0440 /etc/sudoers.d/rdm

cat >/etc/ssh/sshd_config.d/rdm-lab.conf <<'CONFIG'
HostKey /etc/rdm-lab/ssh_host_ed25519_key
AuthorizedKeysFile /etc/rdm-lab/authorized_keys
PermitRootLogin prohibit-password
PasswordAuthentication no
KbdInteractiveAuthentication no
UseDNS no
MaxStartups 100
CONFIG
# A container may not set the audit login UID.
sed -i 's/^session *required *pam_loginuid.so/session optional pam_loginuid.so/' /etc/pam.d/sshd
# Messages of the day cost time at every login.
sed -i '/pam_motd/d' /etc/pam.d/sshd
