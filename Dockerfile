# docker build --build-arg GIT_COMMIT="$(git rev-parse HEAD)" -t consul-semaphore-operator .
# For both platforms, with an SBOM beside the image:
#   docker buildx build --platform linux/amd64,linux/arm64 --sbom=true --build-arg GIT_COMMIT="$(git rev-parse HEAD)" .
# The program is the same byte by byte each time. (For the other platform Debian's cross compiler must be the same, too.)
# To get the same image each time, set the times of its files to the commit's:
#   --build-arg SOURCE_DATE_EPOCH="$(git log -1 --format=%ct)" --output type=registry,rewrite-timestamp=true
#
# Both base images are pinned by digest: that of the index, so it is right for each platform. The tag is for people. The
# digests were not read from the registries: several independent public projects pin them for these tags. A registry
# serves only what was pushed to that repository, so a digest may be of another version there, but of no other image. To
# verify or update one, ask the registry, and change tag and digest together, here and in .github/workflows:
#   docker buildx imagetools inspect rust:1.95.0-bookworm

# The compiler runs on the builder's own platform, and makes programs for the other one too.
FROM --platform=$BUILDPLATFORM rust:1.95.0-bookworm@sha256:6258907abe69656e41cd992e0b705cdcfabcbbe3db374f92ed2d47121282d4a1 AS build
WORKDIR /src
COPY . .
ARG TARGETARCH
ARG GIT_COMMIT=
ARG SOURCE_DATE_EPOCH=0
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/src/target,id=target-$TARGETARCH \
    image/build "$TARGETARCH" /out

# The C library that the figures in docs/performance.md were measured with, and certificate authorities.
FROM gcr.io/distroless/cc-debian12:nonroot@sha256:9dac0a79194e45a7da0158a9c6da57b217585af0786db3845d1f0ec1a0dd182f
ARG GIT_COMMIT=
LABEL org.opencontainers.image.title="consul-semaphore-operator" \
      org.opencontainers.image.description="Kubernetes Jobs wait for, hold and give back the slots of a Consul semaphore" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.source="https://github.com/consul-semaphore/consul-semaphore-operator" \
      org.opencontainers.image.version="0.1.0" \
      org.opencontainers.image.revision="$GIT_COMMIT" \
      org.opencontainers.image.base.name="gcr.io/distroless/cc-debian12:nonroot" \
      org.opencontainers.image.base.digest="sha256:9dac0a79194e45a7da0158a9c6da57b217585af0786db3845d1f0ec1a0dd182f"
COPY --from=build /out /
USER 65532:65532
EXPOSE 8080
ENTRYPOINT ["/consul-semaphore-operator"]
CMD ["run"]
