#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later
# Makes a training image out of a Debian or Ubuntu with or without a torch. The three Dockerfiles and the lab run it, as
# root, with the directory `trainer` of the project around it.
#
#   install.sh system          sshd, pdsh, Open MPI, the RDMA user space, and the user `trainer`
#   install.sh python [TORCH]  the environment /opt/rdm; TORCH as in python.sh
#
# Environment, all optional; the last two are for networks where TLS ends at a proxy:
#   EXTRAS           what else the environment gets: finetune
#   CA_CERTIFICATES  certificates in PEM that shall be trusted, too
#   PIP_CONFIG       the text of a pip.conf; it does not stay in the image
set -eu

here=$(cd "$(dirname "$0")" && pwd)
home=/opt/rdm

# The packages of this release with their versions. A release without a list gets what its mirrors have.
wanted_packages() {
  . /etc/os-release
  if [ -e "$here/packages/$ID-$VERSION_ID.txt" ]; then
    sed 's/#.*//' "$here/packages/$ID-$VERSION_ID.txt"
  else
    sed 's/#.*//;s/=.*//' "$here/packages/debian-12.txt"
  fi
}

system() {
  export DEBIAN_FRONTEND=noninteractive
  if [ -n "${CA_CERTIFICATES:-}" ]; then
    # Before the distribution's own tool for it is there.
    { cat /etc/ssl/certs/ca-certificates.crt 2>/dev/null || :; printf '%s\n' "$CA_CERTIFICATES"; } >/tmp/build-ca.pem
    echo 'Acquire::https::CAInfo "/tmp/build-ca.pem";' >/etc/apt/apt.conf.d/build-ca
  fi
  apt-get update -qq
  # shellcheck disable=SC2046  # a word each
  apt-get install -qq --yes --no-install-recommends $(wanted_packages) >/dev/null
  rm -rf /var/lib/apt/lists/* /var/cache/apt/*.bin
  apt-get clean
  if [ -n "${CA_CERTIFICATES:-}" ]; then
    printf '%s\n' "$CA_CERTIFICATES" | awk '/BEGIN CERTIFICATE/ { count++ }
      count { print >("/usr/local/share/ca-certificates/build-" count ".crt") }'
    update-ca-certificates >/dev/null
    rm -f /tmp/build-ca.pem /etc/apt/apt.conf.d/build-ca
  fi
  # Every image with the same host keys would be no host at all; the collection brings the containers theirs.
  rm -f /etc/ssh/ssh_host_*
  # sshd listens on port 22 and logs in whom it is asked to, and launchers start ranks over it as the user who runs the
  # job: that is root, who owns the job's directory and the devices. All else works as this user: --user trainer.
  id trainer >/dev/null 2>&1 || useradd --create-home --shell /bin/bash trainer
  ln -sf "$home/bin/rdm-trainer" /usr/local/bin/rdm-trainer
}

# deepspeed.init_distributed builds an operation for sums within one host of CPUs and ends where no compiler is. Its own
# answer to a system that cannot have the operation is gloo, which here is that of an image without a compiler, too.
without_compiler() {
  sed -i -e 's/^import sys$/import shutil\nimport sys/' \
    -e "s/if sys.platform != 'linux':/if sys.platform != 'linux' or shutil.which('c++') is None:/" "$1"
  grep -q "or shutil.which('c++') is None:" "$1" || {
    echo "DeepSpeed has changed: see without_compiler in $0, and $1" >&2
    return 1
  }
}

python() {
  torch=${1:-cpu}
  base=$(command -v python3)
  "$base" -m venv "$home"
  site=$("$home/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  if [ "$torch" = present ]; then
    # The base image's own packages come after ours.
    "$base" -c 'import os, torch; print(os.path.dirname(os.path.dirname(torch.__file__)))' >"$site/base-image.pth"
  fi
  if [ -n "${CA_CERTIFICATES:-}" ]; then
    export PIP_CERT=/etc/ssl/certs/ca-certificates.crt
  fi
  if [ -n "${PIP_CONFIG:-}" ]; then
    PIP_CONFIG_FILE=$(mktemp)
    export PIP_CONFIG_FILE
    trap 'rm -f "$PIP_CONFIG_FILE"' EXIT
    printf '%s\n' "$PIP_CONFIG" >"$PIP_CONFIG_FILE"
  fi
  # The cache would stay in the image, unless it is somewhere else.
  [ -n "${PIP_CACHE_DIR:-}" ] || export PIP_NO_CACHE_DIR=1
  sh "$here/python.sh" "$home/bin/python" "$here/../requirements/runtime.txt" "$torch"
  without_compiler "$site/deepspeed/ops/op_builder/cpu/comm.py"
  # The sources are a layer of their own, so that a change of them makes nothing else anew.
  echo "$home/trainer" >"$site/rdm-trainer.pth"
  cat >"$home/bin/rdm-trainer" <<SCRIPT
#!$home/bin/python
import sys

from rdm_trainer.cli import main

sys.exit(main())
SCRIPT
  chmod 0755 "$home/bin/rdm-trainer"
  # Compiles what a training imports, once instead of in every container. An optimiser loads torch's compiler, an engine
  # of DeepSpeed all its optimisers: half of the modules.
  "$home/bin/python" -c '
import deepspeed.launcher.launch, deepspeed.runtime.zero.muon.muon_optimizer, tokenizers, torch.utils.tensorboard, yaml
torch.optim.AdamW([torch.zeros(1)])' >/dev/null 2>&1
  case " ${EXTRAS:-} " in
    *" finetune "*) "$home/bin/python" -c 'from trl import DPOTrainer, SFTTrainer' >/dev/null 2>&1 ;;
  esac
}

"$@"
