#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later
# Installs torch and the pinned packages of a requirements file into a Python environment. The images, the lab and the
# set-up of a checkout all use this script, so that they run the same versions.
#
#   python.sh PYTHON REQUIREMENTS [TORCH]
#
# EXTRAS in the environment names further files beside runtime.txt: `finetune`.
# TORCH is `cpu` (the default: the CPU build of the version in runtime.txt), `present` (the environment has one, as ROCm's
# base image does), or what pip is to install, options included, such as `--index-url URL torch==2.11.0`.
#
# Indexes, proxies and certificates are pip's own configuration: PIP_CONFIG_FILE, PIP_CERT, PIP_INDEX_URL, ...
set -eu

python=$1
requirements=$2
torch=${3:-cpu}
lists=$(cd "$(dirname "$0")/../requirements" && pwd)
pins=$lists/runtime.txt

for extra in ${EXTRAS:-}; do
  if [ "$extra" != finetune ]; then
    echo "There is no extra '$extra'; there is finetune." >&2
    exit 2
  fi
done

# Whoever imports a module compiles it; compiling all of torch would take longer than installing it.
install() {
  "$python" -m pip --quiet --disable-pip-version-check install --no-compile "$@"
}

version=$(sed -n 's/^torch==//p' "$pins")
case $torch in
  present)
    "$python" -c 'import torch'
    ;;
  cpu)
    # The local version names the CPU build, and nothing else. pip finds it where its configuration says, or at PyTorch.
    if ! install --no-deps "torch==$version+cpu" 2>/dev/null; then
      install --no-deps --index-url https://download.pytorch.org/whl/cpu "torch==$version+cpu"
    fi
    ;;
  *)
    # shellcheck disable=SC2086  # options and requirement, a word each
    install $torch
    ;;
esac

# DeepSpeed is published as source only. It is built with what is pinned here, not with what an index has today.
install --no-deps "$(grep '^setuptools==' "$pins")"

# The torch is there; a base image may have another one.
rest=$(mktemp)
trap 'rm -f "$rest"' EXIT
{
  sed '/^torch==/d' "$pins"
  [ "$requirements" -ef "$pins" ] || sed '/^-r /d' "$requirements"
  for extra in ${EXTRAS:-}; do cat "$lists/$extra.txt"; done
} >"$rest"
install --no-deps --no-build-isolation --use-pep517 -r "$rest"
