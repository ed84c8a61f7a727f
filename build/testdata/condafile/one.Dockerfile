# syntax=docker/dockerfile:1
# The environment of explicit.txt, as hpcc installs it: docker build -t NAME - <Dockerfile
# It is for linux/amd64 alone: on other machines with --platform linux/amd64.

FROM --platform=$BUILDPLATFORM mambaorg/micromamba:2.3.0 AS conda-amd64
COPY <<'EOF' /tmp/conda.txt
@EXPLICIT
https://conda.anaconda.org/conda-forge/noarch/tzdata-2025b-h78e105d_0.conda#sha256:5aaa366385d716557e365f0a4e9c3fca43ba196872abbbe3d56bb610d131e192
https://conda.example.org/private/linux-64/zlib-1.3.1-hb9d3cd8_2.conda#c9f075ab2f33b3bbee9e62d4ad0a6cd8
EOF
RUN micromamba create --yes --no-pyc --root-prefix /tmp/micromamba --platform linux-64 --prefix /tmp/environment --relocate-prefix /opt/conda --file /tmp/conda.txt

FROM conda-${TARGETARCH} AS conda

FROM debian:12-slim
COPY --from=conda /tmp/environment /opt/conda
ENV PATH=/opt/conda/bin:$PATH \
    CONDA_DEFAULT_ENV="/opt/conda" \
    CONDA_PREFIX="/opt/conda" \
    CONDA_SHLVL="1"
COPY --chmod=755 <<'EOF' /usr/local/bin/conda-activated
#!/bin/sh
for script in /opt/conda/etc/conda/activate.d/*.sh; do
    if [ -r "$script" ]; then . "$script"; fi
done
exec "$@"
EOF
ENTRYPOINT ["/usr/local/bin/conda-activated"]
CMD ["bash"]
