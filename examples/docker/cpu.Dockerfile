# The trainer on the CPU: README.md beside this file says how to build and run it.
ARG BASE=python:3.11-slim

FROM ${BASE} AS build
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
ARG PIP_FIND_LINKS
ARG PIP_TRUSTED_HOST
ARG EXTRAS=train,lora,ray,openai,service,verifiers,mcp,data
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
# Sokoban's search in C; without a compiler it would be Python's.
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
RUN python3 -m venv /roll/.venv
WORKDIR /source
# What it depends on is a layer of its own, made anew only when these files change. KubeRay submits jobs to ray[default].
COPY setup.cfg setup.py pyproject.toml constraints.txt README.md LICENSE ./
RUN /roll/.venv/bin/pip install -c constraints.txt ".[${EXTRAS}]" "ray[default]"
COPY roll_envs roll_envs
COPY envs envs
COPY sandboxes sandboxes
COPY trainer trainer
RUN /roll/.venv/bin/pip install --no-deps --force-reinstall .

FROM ${BASE}
ARG UID=1000
# wget: by it KubeRay asks whether a node of Ray is well.
RUN apt-get update && apt-get install -y --no-install-recommends wget && rm -rf /var/lib/apt/lists/*
RUN useradd --create-home --home-dir /roll --shell /bin/bash --uid ${UID} roll
COPY --from=build /roll/.venv /roll/.venv
COPY configs /roll/configs
ENV PATH=/roll/.venv/bin:${PATH} PYTHONUNBUFFERED=1
USER ${UID}
WORKDIR /roll
# There before a volume is, which then belongs to the user.
RUN mkdir runs .cache
CMD ["roll-train", "--help"]
