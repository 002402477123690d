#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later
# Runs in an image that was made from packages: removes what only the installation needed.
set -eu

# A new system does not need usrmerge, which depends on all of perl.
if apt-cache show usr-is-merged >/dev/null 2>&1; then
  export DEBIAN_FRONTEND=noninteractive
  apt-get install -qq --yes --no-install-recommends usr-is-merged >/dev/null
  if dpkg --status usrmerge >/dev/null 2>&1; then
    apt-get purge -qq --yes usrmerge >/dev/null
  fi
  # Remove its dependencies, unless other packages need them.
  for pattern in perl 'perl-modules-*' 'libperl5*' 'lib*-perl' 'libgdbm*'; do
    dpkg-query --show --showformat '${Package}\n' "$pattern" 2>/dev/null || true
  done | xargs --no-run-if-empty apt-mark auto >/dev/null
  apt-get autoremove -qq --yes --purge \
    -o APT::AutoRemove::RecommendsImportant=0 -o APT::AutoRemove::SuggestsImportant=0 >/dev/null
fi
