# syntax=docker/dockerfile:1
# docker build --build-arg GIT_COMMIT="$(git rev-parse HEAD)" -t consul-semaphore-operator .

# Alpine's Rust links with musl: one static file.
FROM rust:1.95-alpine AS build
RUN apk add --no-cache ca-certificates musl-dev
WORKDIR /src
COPY . .
ARG GIT_COMMIT=
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/src/target \
    GIT_COMMIT="$GIT_COMMIT" cargo build --locked --release --package consul-semaphore-operator \
    && cp target/release/consul-semaphore-operator /

# Nothing but the program and the certificate authorities that HTTPS to Consul is checked against.
FROM scratch
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/
COPY --from=build /consul-semaphore-operator /
USER 65532:65532
EXPOSE 8080
ENTRYPOINT ["/consul-semaphore-operator"]
CMD ["run"]
