# The product: both planes in one image. `docker build .` compiles the programs;
# BINARIES=prebuilt copies them from target/release instead.
ARG RUST=rust:1.95-bookworm
# Must provide glibc, libgcc and CA certificates; a shell is not needed.
ARG BASE=gcr.io/distroless/cc-debian12:nonroot
ARG BINARIES=compiled

FROM ${RUST} AS compile
WORKDIR /src
COPY . .
# Optimization across crates takes minutes longer; builds for tests omit it.
ENV CARGO_PROFILE_RELEASE_LTO=fat CARGO_PROFILE_RELEASE_CODEGEN_UNITS=1
RUN cargo build --release --locked -p fastllm-gateway -p fastllm-control -p fastllm-proxy

FROM scratch AS compiled
COPY --from=compile /src/target/release/fastllm-gateway /src/target/release/fastllm-control /src/target/release/fastllm-proxy /usr/local/bin/

FROM scratch AS prebuilt
COPY target/release/fastllm-gateway target/release/fastllm-control target/release/fastllm-proxy /usr/local/bin/

FROM ${BINARIES} AS binaries

FROM ${BASE}
ARG VERSION=dev
ARG REVISION=unknown
LABEL org.opencontainers.image.title="FastLLM Proxy" \
      org.opencontainers.image.description="LLM gateway and its control plane" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.source="https://github.com/fastllm/fastllm-proxy" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
COPY --from=binaries /usr/local/bin/ /usr/local/bin/
# The default, the loopback address, is not reachable from outside the container.
ENV FASTLLM_HOST=0.0.0.0
# Gateway, control plane, the gateway's status port.
EXPOSE 4000 4001 4002
USER 65532:65532
ENTRYPOINT ["/usr/local/bin/fastllm-proxy"]
