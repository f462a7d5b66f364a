// Products as work of whichever kernel there is for their numbers. Kernels take long to compile: so each is compiled where
// these are defined, and not again in every source that has products.
#pragma once

#include <memory>

#include "gemm/product.h"
#include "gemm/quantized.h"

// Of a weight that is no less exact than x (linear.cpp).
template <class T>
std::unique_ptr<AnyWork> work_of(const Product<T>& p);

// Of a quantised weight, which may be in tiles where x of this type has kernels for them (quantized.cpp).
template <class T>
std::unique_ptr<AnyWork> work_of(const Product<T>& p, const Quantized& w, int64_t bits, bool in_tiles);
