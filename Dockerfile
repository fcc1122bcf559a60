# docker build --tag perturb-mpm .
# docker run --rm --network none --user "$(id -u)" --volume "$PWD:/data" perturb-mpm run --help
FROM python:3.13-slim-bookworm AS build
WORKDIR /source
COPY pyproject.toml README.md LICENSE ./
COPY src ./src
RUN python -m venv /opt/perturb-mpm \
    && /opt/perturb-mpm/bin/pip install --no-cache-dir --disable-pip-version-check .

FROM python:3.13-slim-bookworm
COPY --from=build /opt/perturb-mpm /opt/perturb-mpm
COPY containers/start.sh /opt/perturb-mpm/start.sh
ENV PATH=/opt/perturb-mpm/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    MPLCONFIGDIR=/tmp
RUN useradd --create-home --uid 1000 perturb \
    && mkdir -p /opt/perturb-mpm/kernels \
    && PERTURB_MPM_CACHE=/opt/perturb-mpm/kernels perturb-mpm demo --output /tmp/demo --spacing 8 --samples 8 --quiet \
    && chmod -R a+rX,go-w /opt/perturb-mpm/kernels \
    && rm -rf /tmp/demo
USER perturb
WORKDIR /data
ENTRYPOINT ["/bin/sh", "/opt/perturb-mpm/start.sh"]
CMD ["--help"]
