# syntax=docker/dockerfile:1
# The environment of env.yml, as hpcc installs it: docker build -t NAME - <Dockerfile
# It is for linux/amd64 alone: on other machines with --platform linux/amd64.

FROM --platform=$BUILDPLATFORM mambaorg/micromamba:2.3.0 AS conda-amd64
COPY <<'EOF' /tmp/conda.txt
@EXPLICIT
https://conda.anaconda.org/conda-forge/noarch/pip-25-0.conda
EOF
COPY <<'EOF' /tmp/pip.txt
--extra-index-url https://extra.example/simple
six==1.16.0 --hash=sha256:8abb2f1d86890a2dfb989f9a77cfcfd3e47c2a354b01111771326f8aa26e0254
EOF
RUN micromamba create --yes --no-pyc --root-prefix /tmp/micromamba --platform linux-64 --prefix /tmp/environment --relocate-prefix /opt/conda --file /tmp/conda.txt

FROM conda-${TARGETARCH} AS conda

FROM debian:12-slim
COPY --from=conda /tmp/environment /opt/conda
ENV PATH=/opt/conda/bin:$PATH \
    CONDA_DEFAULT_ENV="/opt/conda" \
    CONDA_PREFIX="/opt/conda" \
    CONDA_SHLVL="1"
RUN --mount=from=conda,source=/tmp/pip.txt,target=/tmp/pip.txt /opt/conda/bin/python -m pip install --no-deps --no-compile --no-cache-dir --only-binary=:all: --require-hashes --requirement /tmp/pip.txt
COPY --chmod=755 <<'EOF' /usr/local/bin/conda-activated
#!/bin/sh
for script in /opt/conda/etc/conda/activate.d/*.sh; do
    if [ -r "$script" ]; then . "$script"; fi
done
exec "$@"
EOF
ENTRYPOINT ["/usr/local/bin/conda-activated"]
CMD ["bash"]
