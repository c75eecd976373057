# The trainer on GPUs, and SGLang in an environment of its own: README.md beside this file says how to build and run it.
# With the compiler of CUDA, for the kernels that SGLang and Triton compile when they are first used.
ARG BASE=nvidia/cuda:13.0.2-devel-ubuntu24.04

FROM ${BASE}
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
ARG PIP_FIND_LINKS
ARG PIP_TRUSTED_HOST
ARG EXTRAS=train,lora,ray,sglang,openai,service,verifiers,mcp,data,deepspeed
ARG UID=1000
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
# wget: by it KubeRay asks whether a node of Ray is well. Ubuntu has a user 1000 of its own.
RUN apt-get update && \
    apt-get install -y --no-install-recommends gcc libc6-dev python3-dev python3-venv wget && \
    rm -rf /var/lib/apt/lists/* && \
    if id ubuntu 2>/dev/null; then userdel --remove ubuntu; fi && \
    useradd --create-home --home-dir /roll --shell /bin/bash --uid ${UID} roll
RUN python3 -m venv /roll/.venv-sglang && /roll/.venv-sglang/bin/pip install sglang==0.5.23
WORKDIR /source
# What it depends on is a layer of its own, made anew only when these files change. KubeRay submits jobs to ray[default].
COPY setup.cfg setup.py pyproject.toml constraints.txt README.md LICENSE ./
RUN python3 -m venv /roll/.venv && \
    /roll/.venv/bin/pip install -c constraints.txt ".[${EXTRAS}]" "ray[default]" && \
    /roll/.venv/bin/pip install --no-deps megatron-core==0.19.2
COPY roll_envs roll_envs
COPY envs envs
COPY sandboxes sandboxes
COPY trainer trainer
RUN /roll/.venv/bin/pip install --no-deps --force-reinstall .
COPY configs /roll/configs
ENV PATH=/roll/.venv/bin:${PATH} PYTHONUNBUFFERED=1
USER ${UID}
WORKDIR /roll
# There before a volume is, which then belongs to the user.
RUN mkdir runs .cache
CMD ["roll-train", "--help"]
