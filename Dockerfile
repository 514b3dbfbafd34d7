# One image for operator, workers, migrations and the docgrid command; which of them a container is, its command says.
# It needs nothing of BuildKit. Any base will do that has Python 3.11 or later with venv; pip takes its own settings
# (PIP_INDEX_URL, PIP_CERT) from build arguments, and nothing of them is left in the image.
ARG BASE_IMAGE=docker.io/library/python:3.11-slim-bookworm

# What we depend on. The virtual environment has no pip of its own: nobody installs anything into a running container.
FROM ${BASE_IMAGE} AS dependencies
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
ARG PIP_TRUSTED_HOST
ARG PIP_CERT
RUN python3 -m venv /opt/installer && python3 -m venv --without-pip /opt/docgrid
WORKDIR /build
COPY requirements-build.lock requirements-image.lock ./
# kubernetes.aio is a second, asynchronous client that nothing here imports, and of the 900 modules of models a
# handful is ever loaded. Bytecode is made here, since a container can not write it; it is never compared with the
# sources, so that a build at another time makes the same files.
RUN /opt/installer/bin/pip install --no-cache-dir --only-binary :all: --require-hashes \
      --requirement requirements-build.lock \
 && /opt/installer/bin/pip --python /opt/docgrid/bin/python3 install --no-cache-dir --no-compile \
      --only-binary :all: --require-hashes --requirement requirements-image.lock \
 && rm -rf /opt/docgrid/lib/python3*/site-packages/kubernetes/aio \
 && find /opt/docgrid -type d -name tests -prune -exec rm -rf {} + \
 && /opt/docgrid/bin/python3 -m compileall -q --invalidation-mode unchecked-hash -x 'kubernetes/client/(api|models)/' \
      /opt/docgrid/lib

# What is ours: a layer of its own, so that a change of it makes no other.
FROM dependencies AS own
COPY pyproject.toml README.md LICENSE ./
COPY core core
COPY pipeline pipeline
COPY worker worker
COPY operator operator
COPY cli cli
RUN /opt/installer/bin/pip wheel --no-cache-dir --no-deps --no-index --no-build-isolation --wheel-dir /build/wheel . \
 && /opt/installer/bin/pip --python /opt/docgrid/bin/python3 install --no-cache-dir --no-compile --no-deps \
      --no-index --find-links /build/wheel --prefix /opt/own docgrid \
 && /opt/docgrid/bin/python3 -m compileall -q --invalidation-mode unchecked-hash -s /opt/own -p /opt/docgrid \
      /opt/own/lib \
 && cp /etc/passwd /etc/group /opt/ \
 && echo 'docgrid:x:10001:10001:docgrid:/tmp:/usr/sbin/nologin' >>/opt/passwd && echo 'docgrid:x:10001:' >>/opt/group

FROM ${BASE_IMAGE}
# The base's own pip, and the parts of Python that would bring it back.
RUN rm -rf /usr/share/python-wheels /usr/local/bin/pip* /usr/local/lib/python3*/site-packages/pip* \
      /usr/local/lib/python3*/ensurepip /usr/lib/python3*/ensurepip
COPY --from=dependencies /opt/docgrid /opt/docgrid
COPY --from=own /opt/own /opt/docgrid
COPY --from=own /opt/passwd /opt/group /etc/
ENV PATH=/opt/docgrid/bin:/usr/local/bin:/usr/bin:/bin \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
USER 10001:10001
WORKDIR /tmp
CMD ["docgrid", "--help"]
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="docgrid" \
      org.opencontainers.image.description="Indexes documents for semantic search: operator, worker and command" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
