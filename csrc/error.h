// What the ternary code of a chunk lost: its non-zeros, and its squared distance from the gradient.
#pragma once

#include "mean.h"
#include "statistics.h"

namespace {

template <class T, class C>
TG_INLINE bool chunk_error_of(const T* source, const uint8_t* packed, int64_t length, Blocks blocks,
                              const float* scale, int64_t* nonzero, double* squared_error) {
  auto factor = scalers<false>(blocks, length, scale);
  VI count_nonzero = splat(0);
  VF squares[2] = {splat(0.0f), splat(0.0f)};
  VU bad = splat(0u);
  for_groups(length, C::kRows, [&](int64_t first, int64_t group, int64_t count) {
    VI values[C::kRows];
    C::sum(&packed, 1, group, values, bad);
    T elements[C::kRows * kLanes] = {};
    std::memcpy(elements, source + first, size_t(count) * sizeof(T));
    const int rows = int((count + kLanes - 1) / kLanes);
    for (int k = 0; k < rows; ++k) {
      const VF error = to_float(values[k]) * factor.next() - load_row(elements + k * kLanes);
      squares[(first / kLanes + k) % 2] += error * error;
      count_nonzero -= (VI)(values[k] != 0);
    }
  });
  *nonzero = 0;
  for (int lane = 0; lane < kLanes; ++lane) *nonzero += count_nonzero[lane];
  *squared_error = sum_lanes(squares[0], squares[1]);
  return !any(bad);
}

bool chunk_error(Element element, Code code, const void* source, const uint8_t* packed, int64_t length,
                 Blocks blocks, const float* scale, int64_t* nonzero, double* squared_error) {
  return with_element(element, [&](auto tag) {
    const auto* elements = (const decltype(tag)*)source;
    if (code == Code::kTwoBit)
      return chunk_error_of<decltype(tag), TwoBit>(elements, packed, length, blocks, scale, nonzero, squared_error);
    return chunk_error_of<decltype(tag), Base3>(elements, packed, length, blocks, scale, nonzero, squared_error);
  });
}

}  // namespace
