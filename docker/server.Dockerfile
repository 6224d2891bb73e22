# vericache-server and vericachectl. Build from the root of the tree: docker build -f docker/server.Dockerfile .
FROM debian:12 AS build
WORKDIR /src
COPY run CMakeLists.txt CMakePresets.json ./
RUN ./run deps && rm -rf /var/lib/apt/lists/*
COPY . .
RUN cmake --preset release -DVC_TESTS=OFF -DVC_BENCH=OFF \
 && cmake --build build/release --target vericache-server vericachectl \
 && install -D -s -t /out/bin build/release/cache-server/vericache-server build/release/cache-server/vericachectl

FROM debian:12-slim
RUN apt-get update \
 && apt-get install -y --no-install-recommends librocksdb7.8 liburing2 libucx0 libgrpc29 libprotobuf-c1 libsodium23 \
    libjansson4 libmicrohttpd12 ca-certificates \
 && rm -rf /var/lib/apt/lists/* \
 && useradd --system --uid 10070 --home-dir /var/lib/vericache --create-home vericache
COPY --from=build /out/bin/ /usr/local/bin/
USER vericache
VOLUME /var/lib/vericache
EXPOSE 7070
STOPSIGNAL SIGTERM
ENTRYPOINT ["vericache-server"]
CMD ["--data-dir", "/var/lib/vericache"]
