// The integer sum of N ternary payloads as 2N+1 levels, and the average from it: the second half of two-shot.
#pragma once

#include "mean.h"

namespace {

// Re-groups rows: codes come in groups of C::kRows, levels leave in groups of radix.rows.
template <class C>
TG_INLINE bool sum_levels_as(const uint8_t* const* packed, int num_payloads, int64_t length, const Radix& radix,
                             uint8_t* target) {
  VI waiting[kMaxRows + C::kRows];
  int num_waiting = 0;
  VU bad = splat(0u);
  for_groups(length, C::kRows, [&](int64_t, int64_t group, int64_t count) {
    VI sums[C::kRows];
    C::sum(packed, num_payloads, group, sums, bad);
    const int rows = int((count + kLanes - 1) / kLanes);
    for (int k = 0; k < rows; ++k) waiting[num_waiting++] = sums[k] + num_payloads;
    int taken = 0;
    for (; num_waiting - taken >= radix.rows; taken += radix.rows, target += kGroupBytes)
      store_vector(target, Levels::pack(radix, waiting + taken));
    for (int k = taken; k < num_waiting; ++k) waiting[k - taken] = waiting[k];
    num_waiting -= taken;
  });
  if (num_waiting > 0) {
    for (int k = num_waiting; k < radix.rows; ++k) waiting[k] = splat(int32_t(num_payloads));
    store_vector(target, Levels::pack(radix, waiting));
  }
  return !any(bad);
}

bool sum_levels(Code code, const uint8_t* const* packed, int num_payloads, int64_t length, const Radix& radix,
                uint8_t* target) {
  if (code == Code::kTwoBit) return sum_levels_as<TwoBit>(packed, num_payloads, length, radix, target);
  return sum_levels_as<Base3>(packed, num_payloads, length, radix, target);
}

bool mean_levels(Element element, const Radix& radix, const uint8_t* packed, int num_payloads, int64_t length,
                 Blocks blocks, const float* scale, void* target) {
  return with_element_and_scalers(element, blocks, length, [&](auto tag, auto whole) {
    auto* out = (decltype(tag)*)target;
    auto factor = scalers<decltype(whole)::value>(blocks, length, scale);
    VU bad = splat(0u);
    for_groups(length, radix.rows, [&](int64_t first, int64_t group, int64_t count) {
      VI digits[kMaxRows];
      bad |= Levels::unpack(radix, load_vector<VU>(packed + group * kGroupBytes), digits);
      for (int k = 0; k < radix.rows; ++k) digits[k] -= num_payloads;
      store_scaled(out + first, count, digits, factor);
    });
    return !any(bad);
  });
}

}  // namespace
