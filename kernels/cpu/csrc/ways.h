// Which way a product is done: by its numbers, and by the instruction set that this is compiled for.
#pragma once

#include "lanes.h"
#include "lanes_quantized.h"
#include "streamed.h"
#include "tiled.h"
#include "tiled_bytes.h"
#include "unpacked.h"
#include "unpacked_tiles.h"

template <class T>
Streamed<T> way_of(const Product<T>& p) { return {p}; }

template <int BITS, class T>
Unpacked<BITS, T> way_of(const Product<T>& p, const Quantized& w) { return {p, w}; }

#if defined(PAGEANT_TILES)
inline Tiled<Lying> way_of(const Product<bf16>& p) { return {{p}, {p.weight, p.weight_stride, p.inputs, p.outputs}}; }
#elif defined(__AVX512BF16__)
inline Lanes<PairStrip, bf16> way_of(const Product<bf16>& p) { return {p, {p.weight, p.weight_stride, p.inputs}}; }
#endif
#if defined(__AVX512VNNI__) && defined(__AMX_INT8__)
template <int BITS>
BytesOrUnpacked<BITS> way_of(const Product<bf16>& p, const Quantized& w) { return {{{p, w}}, {{p}, {w, p.outputs}}}; }
template <int BITS>
LanesOrTiles<BITS, f16> way_of(const Product<f16>& p, const Quantized& w) { return {{p, w}}; }
#elif defined(__AVX512VNNI__)
template <int BITS>
Lanes<ByteStrip<BITS>, bf16> way_of(const Product<bf16>& p, const Quantized& w) { return {p, w}; }
template <int BITS>
Lanes<ByteStrip<BITS>, f16> way_of(const Product<f16>& p, const Quantized& w) { return {p, w}; }
#elif defined(PAGEANT_TILES)
template <int BITS>
Tiled<UnpackedTiles<BITS>> way_of(const Product<bf16>& p, const Quantized& w) { return {{p}, {w, p.outputs}}; }
#endif
