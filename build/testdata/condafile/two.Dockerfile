# syntax=docker/dockerfile:1
# The environment of conda-lock.yml, as hpcc installs it: docker build -t NAME - <Dockerfile
# It is for linux/amd64, linux/ppc64le, of which --platform chooses.

FROM --platform=$BUILDPLATFORM mambaorg/micromamba:2.3.0 AS conda-amd64
COPY <<'EOF' /tmp/conda.txt
@EXPLICIT
https://conda.anaconda.org/conda-forge/noarch/tzdata-2025b-h78e105d_0.conda#sha256:5aaa366385d716557e365f0a4e9c3fca43ba196872abbbe3d56bb610d131e192
https://conda.anaconda.org/conda-forge/linux-64/zlib-1.3.1-hb9d3cd8_2.conda#c9f075ab2f33b3bbee9e62d4ad0a6cd8
EOF
RUN micromamba create --yes --no-pyc --root-prefix /tmp/micromamba --platform linux-64 --prefix /tmp/environment --relocate-prefix /opt/env --file /tmp/conda.txt

FROM --platform=$BUILDPLATFORM mambaorg/micromamba:2.3.0 AS conda-ppc64le
COPY <<'EOF' /tmp/conda.txt
@EXPLICIT
https://conda.anaconda.org/conda-forge/noarch/tzdata-2025b-h78e105d_0.conda#sha256:5aaa366385d716557e365f0a4e9c3fca43ba196872abbbe3d56bb610d131e192
EOF
RUN micromamba create --yes --no-pyc --root-prefix /tmp/micromamba --platform linux-ppc64le --prefix /tmp/environment --relocate-prefix /opt/env --file /tmp/conda.txt

FROM conda-${TARGETARCH} AS conda

FROM ubuntu:24.04
COPY --from=conda /tmp/environment /opt/env
ENV PATH=/opt/env/bin:$PATH \
    CONDA_DEFAULT_ENV="/opt/env" \
    CONDA_PREFIX="/opt/env" \
    CONDA_SHLVL="1" \
    GREETING="say \"hello\" for \$5" \
    OMP_NUM_THREADS="4"
COPY --chmod=755 <<'EOF' /usr/local/bin/conda-activated
#!/bin/sh
for script in /opt/env/etc/conda/activate.d/*.sh; do
    if [ -r "$script" ]; then . "$script"; fi
done
exec "$@"
EOF
ENTRYPOINT ["/usr/local/bin/conda-activated"]
CMD ["bash"]
