# One image for operator, workers, migrations and the docgrid command; which of them a container is, its command says.
# It needs nothing of BuildKit. Any base will do that has Python 3.11 or later with venv, at the same path in both
# stages; pip takes its own settings (PIP_INDEX_URL, PIP_CERT) from build arguments.
ARG BASE_IMAGE=docker.io/library/python:3.11-slim-bookworm

FROM ${BASE_IMAGE} AS build
ARG PIP_INDEX_URL
ARG PIP_CERT
# The virtual environment has no pip of its own: nobody installs anything into a running container.
RUN python3 -m venv /opt/installer && python3 -m venv --without-pip /opt/docgrid
WORKDIR /build
COPY requirements-image.lock ./
RUN /opt/installer/bin/pip --python /opt/docgrid/bin/python3 install --no-cache-dir --no-compile \
      --only-binary :all: --require-hashes --requirement requirements-image.lock
COPY pyproject.toml README.md LICENSE ./
COPY core core
COPY pipeline pipeline
COPY worker worker
COPY operator operator
COPY cli cli
RUN /opt/installer/bin/pip --python /opt/docgrid/bin/python3 install --no-cache-dir --no-compile --no-deps .
# kubernetes.aio is a second, asynchronous client that nothing here imports, and of the 900 modules of models a
# handful is ever loaded. Bytecode is made here, since a container can not write it; it is never compared with the
# sources, so that a build at another time makes the same files.
RUN rm -rf /opt/docgrid/lib/python3*/site-packages/kubernetes/aio \
 && find /opt/docgrid -type d -name tests -prune -exec rm -rf {} + \
 && /opt/docgrid/bin/python3 -m compileall -q --invalidation-mode unchecked-hash -x 'kubernetes/client/(api|models)/' \
      /opt/docgrid/lib

FROM ${BASE_IMAGE}
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="docgrid" \
      org.opencontainers.image.description="Indexes documents for semantic search: operator, worker and command" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
RUN echo 'docgrid:x:10001:10001:docgrid:/tmp:/usr/sbin/nologin' >>/etc/passwd && echo 'docgrid:x:10001:' >>/etc/group
COPY --from=build /opt/docgrid /opt/docgrid
ENV PATH=/opt/docgrid/bin:/usr/local/bin:/usr/bin:/bin \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
USER 10001:10001
WORKDIR /tmp
CMD ["docgrid", "--help"]
