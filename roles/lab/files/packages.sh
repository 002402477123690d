#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later
# Runs in a container of the lab's node image: downloads the packages of the trainer's environment for its Python, with
# torch's CPU build and the EXTRAS, into /build/out. pip's configuration sets indexes, proxies and certificates.
set -eu
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -qq --yes --no-install-recommends python3-venv >/dev/null
python3 -m venv /tmp/pip
pip="/tmp/pip/bin/python -m pip --quiet --disable-pip-version-check"
lists=/build/trainer/requirements
pins=$lists/runtime.txt
torch=$(grep '^torch==' "$pins")+cpu

download="$pip download --no-deps --dest /build/out"
# The local version selects the CPU build, from the configured index or else from PyTorch's.
$download "$torch" 2>/dev/null || $download --index-url https://download.pytorch.org/whl/cpu "$torch"
# pip runs the build of source packages to learn their metadata, so the pinned build tool must be installed.
$pip install --no-deps "$(grep '^setuptools==' "$pins")"
{
  grep -v '^torch==' "$pins"
  for extra in ${EXTRAS:-}; do cat "$lists/$extra.txt"; done
} >/tmp/rest.txt
$download --no-build-isolation -r /tmp/rest.txt
chmod 0644 /build/out/*
