# syntax=docker/dockerfile:1
# docker build --build-arg GIT_COMMIT="$(git rev-parse HEAD)" -t consul-semaphore-operator .
# For both platforms, with an SBOM beside the image:
#   docker buildx build --platform linux/amd64,linux/arm64 --sbom=true --build-arg GIT_COMMIT="$(git rev-parse HEAD)" .
# The program is the same byte by byte each time, as long as the images below are: hold them by their digests behind the
# tags, as `docker buildx imagetools inspect` tells them. For an image that is, too, have its files' times be the commit's:
#   --build-arg SOURCE_DATE_EPOCH="$(git log -1 --format=%ct)" --output type=registry,rewrite-timestamp=true

# The compiler runs on the builder's own platform, and makes programs for the other one too.
FROM --platform=$BUILDPLATFORM rust:1.95.0-bookworm AS build
WORKDIR /src
COPY . .
ARG TARGETARCH
ARG GIT_COMMIT=
ARG SOURCE_DATE_EPOCH=0
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/src/target,id=target-$TARGETARCH \
    image/build "$TARGETARCH" /out

# The C library that the figures in docs/performance.md were measured with, and certificate authorities.
FROM gcr.io/distroless/cc-debian12:nonroot
ARG GIT_COMMIT=
LABEL org.opencontainers.image.title="consul-semaphore-operator" \
      org.opencontainers.image.description="Kubernetes Jobs wait for, hold and give back the slots of a Consul semaphore" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="0.1.0" \
      org.opencontainers.image.revision="$GIT_COMMIT" \
      org.opencontainers.image.base.name="gcr.io/distroless/cc-debian12:nonroot"
COPY --from=build /out /
USER 65532:65532
EXPOSE 8080
ENTRYPOINT ["/consul-semaphore-operator"]
CMD ["run"]
