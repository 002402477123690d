# SPDX-License-Identifier: GPL-3.0-or-later
# Training on AMD GPUs. The base is AMD's own, with ROCm, RCCL and the torch that was built for them.
#
#   docker build -f trainer/images/rocm.Dockerfile -t rdm-trainer:rocm trainer
#
# For fine-tuning: --build-arg EXTRAS=finetune
# Behind a TLS proxy, or with an index of your own:
#   --build-arg CA_CERTIFICATES="$(cat proxy-ca.pem)" --build-arg PIP_CONFIG="$(cat pip.conf)"
# PIP_CONFIG, with its passwords, stays in a stage that is thrown away; the certificates stay in the image.
#
# The base is pinned by its tag. Add the digest that you have verified: --build-arg BASE=...@sha256:...
ARG BASE=docker.io/rocm/pytorch:rocm7.14_ubuntu24.04_py3.12_pytorch_release_2.11.0

FROM ${BASE} AS system
ARG CA_CERTIFICATES=""
COPY images /build/images
RUN sh /build/images/install.sh system

FROM system AS python
ARG EXTRAS=""
ARG CA_CERTIFICATES=""
ARG PIP_CONFIG=""
COPY requirements /build/requirements
RUN sh /build/images/install.sh python present

FROM system
COPY --from=python /opt/rdm /opt/rdm
COPY configs /opt/rdm/trainer/configs
COPY rdm_core /opt/rdm/trainer/rdm_core
COPY rdm_job /opt/rdm/trainer/rdm_job
COPY rdm_log /opt/rdm/trainer/rdm_log
COPY rdm_planner /opt/rdm/trainer/rdm_planner
COPY rdm_trainer /opt/rdm/trainer/rdm_trainer
ENV PATH=/opt/rdm/bin:${PATH}
# Root, because sshd and the launchers need it (images/install.sh says why). Without them: docker run --user trainer
USER root
CMD ["/bin/bash"]
