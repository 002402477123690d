#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later
# Runs in a container of the lab's CPU image: installs what makes a training image of it, as the Dockerfiles do, and
# writes all that is new or changed to /build/out/layer.tar.
#
#   trainer-layer.sh MOUNT...   the mounts of the container, which are no part of the layer
#
# EXTRAS in the environment is that of install.sh.
set -eu

# Before the stamp: it is taken away again.
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -qq --yes --no-install-recommends binutils >/dev/null
stamp=/run/rdm-trainer-stamp
touch "$stamp"

sh /build/trainer/images/install.sh system
sh /build/trainer/images/install.sh python cpu

# What nobody needs to train on CPUs: what torch brings for building extensions, tests of packages, symbols, documents.
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
# By the time of change, which a package cannot set: its files have the times of their making.
# shellcheck disable=SC2086  # a word each
find . -xdev -cnewer "$stamp" $(echo "$excludes" | sed 's| /| ./|g') -print0 | LC_ALL=C sort -z \
  | tar --create --file=/build/out/layer.tar --null --no-recursion --numeric-owner --files-from=-
chmod 0644 /build/out/layer.tar
