// The integer sum of N ternary payloads as 2N+1 levels, and the average from it: the second half of two-shot.
#pragma once

#include "mean.h"

namespace {

// Re-groups rows: sums come in groups of C::kRows, and put(digits) takes `rows` rows of them at a time, the last padded
// with zeros.
template <class C, class Put>
TG_INLINE bool regroup_sums(const uint8_t* const* packed, int num_payloads, int64_t length, int rows, Put&& put) {
  VI waiting[kMaxRows + C::kRows];
  int num_waiting = 0;
  VU bad = splat(0u);
  for_groups(length, C::kRows, [&](int64_t, int64_t group, int64_t count) {
    VI sums[C::kRows];
    C::sum(packed, num_payloads, group, sums, bad);
    const int num_rows = int((count + kLanes - 1) / kLanes);
    for (int k = 0; k < num_rows; ++k) waiting[num_waiting++] = sums[k] + num_payloads;
    int taken = 0;
    for (; num_waiting - taken >= rows; taken += rows) put(waiting + taken);
    for (int k = taken; k < num_waiting; ++k) waiting[k - taken] = waiting[k];
    num_waiting -= taken;
  });
  if (num_waiting > 0) {
    for (int k = num_waiting; k < rows; ++k) waiting[k] = splat(int32_t(num_payloads));
    put(waiting);
  }
  return !any(bad);
}

template <class C>
TG_INLINE bool sum_levels_as(const uint8_t* const* packed, int num_payloads, int64_t length, const Radix& radix,
                             uint8_t* target) {
  return regroup_sums<C>(packed, num_payloads, length, radix.rows, [&](const VI* digits) {
    store_vector(target, Levels::pack(radix, digits));
    target += kGroupBytes;
  });
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
