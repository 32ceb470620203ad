// Walking a run row by row: scalers that change every `block` elements, and the padded last group.
#pragma once

#include "kernels.h"
#include "simd.h"

namespace {

// One scaler for the whole run, or a new one every `block` elements; next() is the scaler of the next row.
template <bool kWhole>
struct Scalers {
  const float *at, *last;
  int64_t left, block;
  VF whole;

  TG_INLINE VF next() {
    if (kWhole) return whole;
    if (left == 0) {
      if (at < last) ++at;  // the padding of the last group has no scaler of its own
      left = block;
    }
    left -= kLanes;
    return splat(*at);
  }
};

TG_INLINE bool one_scaler(const Blocks& blocks, int64_t length) { return blocks.into_block + length <= blocks.block; }

template <bool kWhole>
TG_INLINE Scalers<kWhole> scalers(const Blocks& blocks, int64_t length, const float* values) {
  const float* first = values + blocks.first;
  const float* last = first + (blocks.into_block + length - 1) / blocks.block;
  return {first, last, blocks.block - blocks.into_block, blocks.block, splat(*first)};
}

// Calls body(first element, rows, elements) for every group of `rows` rows; the last may hold fewer elements.
template <class Body>
TG_INLINE void for_groups(int64_t length, int rows, Body&& body) {
  const int64_t size = int64_t(rows) * kLanes;
  for (int64_t first = 0, group = 0; first < length; first += size, ++group)
    body(first, group, length - first < size ? length - first : size);
}

template <class T, class Row>
TG_INLINE void store_rows(T* target, int64_t count, Row&& next_row) {
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) store_row(target + i, next_row());
  if (i < count) {
    T tail[kLanes];
    store_row(tail, next_row());
    std::memcpy(target + i, tail, size_t(count - i) * sizeof(T));
  }
}

// Picks the C++ types for the run-time tags.
template <class F>
TG_INLINE auto with_element(Element element, F&& f) {
  switch (element) {
    case Element::kFloat16: return f(Half{});
    case Element::kBFloat16: return f(BFloat16{});
    default: return f(float{});
  }
}

}  // namespace
