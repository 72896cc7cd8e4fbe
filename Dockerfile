# The GPU profile as an image, for Pyxis/Enroot among others. Not built by us: see docs/slurm.md.
#
#   docker build -t megatron_agent .
#   enroot import -o megatron_agent.sqsh dockerd://megatron_agent
FROM nvidia/cuda:13.0.1-cudnn-devel-ubuntu24.04

RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends build-essential ca-certificates git \
        iproute2 make ninja-build python3 python3-venv \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /opt/megatron_agent
COPY . .
RUN rm -rf .venv .uv && make setup PROFILE=gpu

ENV PATH=/opt/megatron_agent/.venv/bin:$PATH
