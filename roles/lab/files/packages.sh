#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later
# Runs in a container of the lab's node image: downloads the packages of the trainer's environment for its Python, with
# torch's CPU build and those of the EXTRAS, into /build/out. Indexes, proxies and certificates are pip's own configuration.
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
# The local version names the CPU build. pip finds it where its configuration says, or at PyTorch.
$download "$torch" 2>/dev/null || $download --index-url https://download.pytorch.org/whl/cpu "$torch"
# What is published as source only is asked for its name and version with what is pinned here.
$pip install --no-deps "$(grep '^setuptools==' "$pins")"
{
  grep -v '^torch==' "$pins"
  for extra in ${EXTRAS:-}; do cat "$lists/$extra.txt"; done
} >/tmp/rest.txt
$download --no-build-isolation -r /tmp/rest.txt
chmod 0644 /build/out/*
