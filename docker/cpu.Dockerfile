# Keel for machines without a GPU. From the root of the sources:
#   docker build -f docker/cpu.Dockerfile -t keel:cpu .
#   docker run --rm -v "$PWD:/work" keel:cpu config example
FROM debian:bookworm-slim AS build
SHELL ["/bin/bash", "-euo", "pipefail", "-c"]
WORKDIR /src
# What changes seldom first: packages of Debian and the virtual environment that Keel is built with.
COPY tools/bootstrap.sh tools/bootstrap.sh
COPY requirements.txt CMakeLists.txt CMakePresets.json ./
RUN tools/bootstrap.sh --only-setup
RUN apt-get install -y --no-install-recommends dpkg-dev
COPY . .
ARG SOURCE_DATE_EPOCH=0
RUN tools/bootstrap.sh && tools/package.sh deb --out /packages

FROM debian:bookworm-slim
SHELL ["/bin/bash", "-euo", "pipefail", "-c"]
# PyTorch for the CPU alone: a tenth of the size. It comes from PyTorch's own index, as its pages say.
RUN apt-get update \
 && apt-get install -y --no-install-recommends ca-certificates python3 python3-venv \
 && rm -rf /var/lib/apt/lists/* \
 && python3 -m venv /opt/torch \
 && /opt/torch/bin/pip install --no-cache-dir --index-url https://download.pytorch.org/whl/cpu torch==2.11.0 \
 && /opt/torch/bin/pip install --no-cache-dir pyarrow==26.0.1
COPY --from=build /packages /packages
RUN apt-get update \
 && apt-get install -y --no-install-recommends /packages/keel_*.deb libdnnl2 \
 && rm -rf /var/lib/apt/lists/* /packages \
 && useradd --uid 1000 --create-home keel \
 && install -d -o keel -g keel /work
ENV VIRTUAL_ENV=/opt/torch PATH=/opt/torch/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
USER keel
WORKDIR /work
ENTRYPOINT ["keel"]
CMD ["--help"]
