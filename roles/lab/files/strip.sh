#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later
# Runs in an image at the end of its build: removes host keys, package lists and logs.
set -eu
rm -f /etc/ssh/ssh_host_*
rm -rf /var/lib/apt/lists/* /var/cache/apt/*.bin /var/cache/apt/archives/*.deb /var/log/*.log /var/log/apt
