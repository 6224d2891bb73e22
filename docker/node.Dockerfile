# vericache-node, any role. Build from the root of the tree: docker build -f docker/node.Dockerfile .
FROM debian:12 AS build
WORKDIR /src
COPY run CMakeLists.txt CMakePresets.json ./
RUN ./run deps && rm -rf /var/lib/apt/lists/*
COPY . .
RUN cmake --preset release -DVC_TESTS=OFF -DVC_BENCH=OFF \
 && cmake --build build/release --target vericache-node \
 && install -D -s -t /out/bin build/release/inference-node/vericache-node

FROM debian:12-slim
RUN apt-get update \
 && apt-get install -y --no-install-recommends libucx0 libgrpc29 libprotobuf-c1 libsodium23 libjansson4 libpcre2-8-0 \
    ca-certificates \
 && rm -rf /var/lib/apt/lists/* \
 && useradd --system --uid 10071 --home-dir /nonexistent --no-create-home vericache
COPY --from=build /out/bin/ /usr/local/bin/
USER vericache
EXPOSE 7071
STOPSIGNAL SIGTERM
ENTRYPOINT ["vericache-node"]
CMD ["--help"]
