#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later
# Runs in a machine's root file system while it is built: installs the packages of a Docker Engine, from the release of
# Debian that has it. Arguments: the machine's release, the engine's, the packages.
set -eu
own=$1
release=$2
shift 2
other=/etc/apt/sources.list.d/engine.list
valid=true
if [ "$release" != "$own" ]; then
  sed -n "s/ $own / $release /p" /etc/apt/sources.list >"$other"
  # The signature of a release in development may be out of date for some days.
  valid=false
fi
apt-get update -qq -o Acquire::Check-Valid-Until="$valid"
DEBIAN_FRONTEND=noninteractive apt-get install -qq --yes --no-install-recommends --target-release="$release" "$@" >/dev/null
# The kernel and all other packages come from the machine's release.
rm -f "$other"
