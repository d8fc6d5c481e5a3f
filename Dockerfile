# Two images from one file:
#   docker build --target probe      -t fleet-rebalancer-probe .
#   docker build --target controller -t fleet-rebalancer .
# Nothing is downloaded but the base image and Python packages, at the versions of requirements.lock.
FROM python:3.12-slim AS source
WORKDIR /src
COPY pyproject.toml requirements.lock README.md LICENSE ./
COPY rebalancer rebalancer
COPY probes probes

FROM python:3.12-slim AS probe
RUN --mount=type=bind,from=source,source=/src,target=/src,rw \
    pip install --no-cache-dir --disable-pip-version-check -c /src/requirements.lock /src
USER 65532:65532
EXPOSE 8620/udp 8620/tcp 8621/tcp
ENTRYPOINT ["rebalancer-probe"]
CMD ["--config", "/etc/rebalancer-probe/probe.yaml"]

FROM python:3.12-slim AS controller
RUN --mount=type=bind,from=source,source=/src,target=/src,rw \
    pip install --no-cache-dir --disable-pip-version-check -c /src/requirements.lock "/src[controller]"
# The placement kernels are compiled here, for any CPU of the image's kind, so that the first large plan does not wait.
ENV NUMBA_CACHE_DIR=/var/cache/fleet-rebalancer NUMBA_CPU_NAME=generic
RUN python -c "from rebalancer.core.placement import compile_kernels; compile_kernels()" \
    && chown -R 65532:65532 /var/cache/fleet-rebalancer
USER 65532:65532
EXPOSE 8085/tcp
ENTRYPOINT ["rebalancer"]
CMD ["run", "--config", "/etc/rebalancer"]
