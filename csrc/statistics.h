// max |g|, sum and sum of squares in one pass. Sixteen single-precision lanes over at most kChunk elements, then double:
// the order of additions is part of the definition, so that every backend gets the same bits.
#pragma once

#include "rows.h"

namespace {

TG_INLINE double sum_lanes(VF low, VF high) {
  double lanes[2 * kLanes];
  for (int i = 0; i < kLanes; ++i) {
    lanes[i] = low[i];
    lanes[kLanes + i] = high[i];
  }
  for (int half = kLanes; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  return lanes[0];
}

struct Sums {
  VI largest = splat(0);
  VF sum[2] = {splat(0.0f), splat(0.0f)}, squares[2] = {splat(0.0f), splat(0.0f)};

  TG_INLINE void add(VF value, int lane_half) {
    largest = maximum(largest, (VI)magnitude(value));
    sum[lane_half] += value;
    squares[lane_half] += value * value;
  }
};

template <class T>
TG_INLINE Statistics chunk_statistics_of(const T* source, int64_t length) {
  constexpr int64_t pair = 2 * kLanes;
  Sums sums;
  int64_t i = 0;
  for (; i + pair <= length; i += pair) {
    prefetch(source + i);
    sums.add(load_row(source + i), 0);
    sums.add(load_row(source + i + kLanes), 1);
  }
  if (i < length) {
    T tail[pair] = {};
    std::memcpy(tail, source + i, size_t(length - i) * sizeof(T));
    sums.add(load_row(tail), 0);
    sums.add(load_row(tail + kLanes), 1);
  }
  return {largest_lane(sums.largest), sum_lanes(sums.sum[0], sums.sum[1]), sum_lanes(sums.squares[0], sums.squares[1])};
}

Statistics chunk_statistics(Element element, const void* source, int64_t length) {
  return with_element(element, [&](auto tag) { return chunk_statistics_of((const decltype(tag)*)source, length); });
}

}  // namespace
