// Which kernel a product is done: by its numbers, and by the instruction set that this is compiled for.
#pragma once

#include "gemm/byte_panels.h"
#include "gemm/lanes_bfloat.h"
#include "gemm/lanes_quantized.h"
#include "gemm/streamed.h"
#include "gemm/tiled.h"
#include "gemm/unpacked.h"
#include "gemm/unpacked_panels.h"
#include "gemm/unpacked_tiles.h"

template <class T>
Streamed<T> kernel_of(const Product<T>& p) { return {p}; }

template <int BITS, class T>
Unpacked<BITS, T> kernel_of(const Product<T>& p, const Quantized& w) { return {p, w}; }

#if defined(PAGEANT_TILES)
inline Tiled<Lying> kernel_of(const Product<bf16>& p) { return {{p}, {p.weight, p.weight_stride, p.inputs, p.outputs}}; }
inline ByPanels<Panels> tiled_kernel_of(const Product<bf16>& p, const bf16* tiles) { return {{p}, {tiles, p.inputs, p.outputs}}; }
#elif defined(__AVX2__)
inline Lanes<BfloatPanel<BestPairs>, bf16> kernel_of(const Product<bf16>& p) { return {p, {p.weight, p.weight_stride, p.inputs}}; }
inline Lanes<TiledBfloatPanel<BestPairs>, bf16> tiled_kernel_of(const Product<bf16>& p, const bf16* tiles) {
    return {p, {tiles, p.inputs}};
}
#endif

// Products with more rows than are to be alike need not have the bits of fewer.
template <class Few, class Many>
struct FewOrMany {
    Few few;
    Many many;
    bool are_many;
    Product<bf16> p = many.p;

    static constexpr int64_t PACKED_TOGETHER = TILE;
    int64_t block_rows() const { return are_many ? many.block_rows() : few.block_rows(); }
    const void* weights() const { return few.weights(); }
    int64_t row_bytes() const { return few.row_bytes(); }
    int64_t packed_size(int64_t count) const { return are_many ? many.packed_size(count) : few.packed_size(count); }
    void pack(int64_t first, int64_t last, int64_t r, int64_t end, uint8_t* workspace) const {
        if (are_many) many.pack(first, last, r, end, workspace);
        else few.pack(first, last, r, end, workspace);
    }
    void block(const uint8_t* workspace, int64_t r, int64_t end, int64_t start, int64_t stop) const {
        if (are_many) many.block(workspace, r, end, start, stop);
        else few.block(workspace, r, end, start, stop);
    }
};

// Of quantised weights as they lie, and of those in tiles, or in halves too, which x of some types has kernels for.
#if defined(__AVX512VNNI__)
template <class T>
constexpr bool TAKES_TILES = sizeof(T) == 2;
template <class T>
constexpr bool TAKES_HALVES = TAKES_TILES<T>;
#else
#if defined(PAGEANT_TILES)
template <class T>
constexpr bool TAKES_TILES = std::is_same_v<T, bf16>;
#else
template <class T>
constexpr bool TAKES_TILES = false;
#endif
template <class T>
constexpr bool TAKES_HALVES = false;
#endif

#if defined(PAGEANT_BYTE_TILES)
template <int BITS>
auto kernel_of(const Product<bf16>& p, const Quantized& w) {
    return FewOrMany<Lanes<BytePanel<BITS>, bf16>, Tiled<UnpackedTiles<BITS>>>{{p, {w}}, {{p}, {{w, p.outputs}}}, p.rows > w.alike};
}
template <int BITS>
Lanes<BytePanel<BITS>, f16> kernel_of(const Product<f16>& p, const Quantized& w) { return {p, {w}}; }
template <int BITS, bool IN_HALVES = false>
auto tiled_kernel_of(const Product<bf16>& p, const Quantized& w) {
    return FewOrMany<LanesOrTiles<BITS, bf16, IN_HALVES>, ByPanels<UnpackedPanels<BITS>>>{
        {{p, {w}}}, {{p}, {{w, p.outputs}}}, p.rows > w.alike};
}
template <int BITS, bool IN_HALVES = false>
LanesOrTiles<BITS, f16, IN_HALVES> tiled_kernel_of(const Product<f16>& p, const Quantized& w) { return {{p, {w}}}; }
#elif defined(__AVX512VNNI__)
template <int BITS>
Lanes<BytePanel<BITS>, bf16> kernel_of(const Product<bf16>& p, const Quantized& w) { return {p, {w}}; }
template <int BITS>
Lanes<BytePanel<BITS>, f16> kernel_of(const Product<f16>& p, const Quantized& w) { return {p, {w}}; }
template <int BITS, bool IN_HALVES = false, class T>
Lanes<TilesOrHalves<BITS, IN_HALVES>, T> tiled_kernel_of(const Product<T>& p, const Quantized& w) { return {p, {w}}; }
#elif defined(__AVX2__)
template <int BITS>
UnpackedLanes<BITS> kernel_of(const Product<bf16>& p, const Quantized& w) { return {p, w}; }
#elif defined(PAGEANT_TILES)
template <int BITS>
Tiled<UnpackedTiles<BITS>> kernel_of(const Product<bf16>& p, const Quantized& w) { return {{p}, {{w, p.outputs}}}; }
template <int BITS>
ByPanels<UnpackedPanels<BITS>> tiled_kernel_of(const Product<bf16>& p, const Quantized& w) { return {{p}, {{w, p.outputs}}}; }
#endif
#if !defined(__AVX512VNNI__) && !defined(PAGEANT_TILES)
template <int BITS>
void tiled_kernel_of();  // nobody's
#endif
