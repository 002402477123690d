#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later
# Runs in a container of the lab's CPU image: installs the trainer as the Dockerfiles do, and writes all new and changed
# files to /build/out/layer.tar.
#
#   trainer-layer.sh MOUNT...   the container's mounts, which are not part of the layer
#
# The environment variable EXTRAS is install.sh's.
set -eu

# Before the stamp, since it is removed again.
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -qq --yes --no-install-recommends binutils >/dev/null
stamp=/run/rdm-trainer-stamp
touch "$stamp"

sh /build/trainer/images/install.sh system
sh /build/trainer/images/install.sh python cpu

# Not needed to train on CPUs: torch's files for building extensions, tests of packages, symbols, documents.
cd "$(/opt/rdm/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"
rm -rf torch/test torch/include torch/share pandas/tests pyarrow/include pyarrow/tests
find torch/bin -type f ! -name torch_shm_manager -delete
find sympy numpy -type d -name tests -prune -exec rm -rf {} +
find . -type f \( -name '*.a' -o -name '*.pyi' \) -delete
find torch/lib zstandard -type f -name '*.so*' -exec strip --strip-unneeded {} +
rm -rf /usr/lib/*/perl/*/CORE
apt-get purge -qq --yes --auto-remove binutils >/dev/null
/opt/rdm/bin/python -c 'import deepspeed, torch' >/dev/null 2>&1

cd /
set -f
unwanted="/build /dev /proc /run /sys /tmp /usr/share/doc /usr/share/man /usr/share/info /usr/share/locale
/var/cache/apt /var/cache/debconf /var/lib/apt/lists /var/log /root/.cache"
excludes=
for path in $unwanted "$@"; do
  excludes="$excludes ! -path $path ! -path $path/*"
done
# By ctime, since packages set their files' mtime.
# shellcheck disable=SC2086  # words
find . -xdev -cnewer "$stamp" $(echo "$excludes" | sed 's| /| ./|g') -print0 | LC_ALL=C sort -z \
  | tar --create --file=/build/out/layer.tar --null --no-recursion --numeric-owner --files-from=-
chmod 0644 /build/out/layer.tar
