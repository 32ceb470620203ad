// Unpack the codes of all workers, add, scale: the average of a run, written in place of the gradient.
#pragma once

#include "digits.h"
#include "rows.h"

namespace {

template <class T, bool kWhole>
TG_INLINE void store_scaled(T* target, int64_t count, const VI* sums, Scalers<kWhole>& scale) {
  store_rows(target, count, [&]() __attribute__((always_inline)) { return to_float(*sums++) * scale.next(); });
}

// Calls f(element type, whether one scaler serves the run) with both as types.
template <class F>
TG_INLINE bool with_element_and_scalers(Element element, const Blocks& blocks, int64_t length, F&& f) {
  return with_element(element, [&](auto tag) {
    return one_scaler(blocks, length) ? f(tag, std::integral_constant<bool, true>{})
                                      : f(tag, std::integral_constant<bool, false>{});
  });
}

template <class C>
TG_INLINE bool mean_shared_as(Element element, const uint8_t* const* packed, int num_payloads, int64_t length,
                              Blocks blocks, const float* scale, void* target) {
  return with_element_and_scalers(element, blocks, length, [&](auto tag, auto whole) {
    auto* out = (decltype(tag)*)target;
    auto factor = scalers<decltype(whole)::value>(blocks, length, scale);
    VU bad = splat(0u);
    for_groups(length, C::kRows, [&](int64_t first, int64_t group, int64_t count) __attribute__((always_inline)) {
      VI sums[C::kRows];
      C::sum(packed, num_payloads, group, sums, bad);
      store_scaled(out + first, count, sums, factor);
    });
    return !any(bad);
  });
}

bool mean_shared(Element element, Code code, const uint8_t* const* packed, int num_payloads, int64_t length,
                 Blocks blocks, const float* scale, void* target) {
  if (code == Code::kTwoBit)
    return mean_shared_as<TwoBit>(element, packed, num_payloads, length, blocks, scale, target);
  return mean_shared_as<Base3>(element, packed, num_payloads, length, blocks, scale, target);
}

template <class C>
TG_INLINE bool mean_own_as(Element element, const uint8_t* const* packed, int num_payloads, int64_t length,
                           Blocks blocks, const float* scale, int64_t stride, void* target) {
  const VF share = splat(1.0f / float(num_payloads));
  return with_element(element, [&](auto tag) {
    auto* out = (decltype(tag)*)target;
    VU bad = splat(0u);
    for_groups(length, C::kRows, [&](int64_t first, int64_t group, int64_t count) __attribute__((always_inline)) {
      VF totals[C::kRows];
      for (int k = 0; k < C::kRows; ++k) totals[k] = splat(0.0f);
      const int64_t into = blocks.into_block + first;
      const Blocks here = {blocks.first + into / blocks.block, into % blocks.block, blocks.block};
      for (int p = 0; p < num_payloads; ++p) {
        VI values[C::kRows];
        C::sum(packed + p, 1, group, values, bad);
        const int64_t rows = (count + kLanes - 1) / kLanes;
        auto factor = scalers<false>(here, count, scale + p * stride);
        for (int64_t k = 0; k < rows; ++k) totals[k] += to_float(values[k]) * factor.next();
      }
      const VF* total = totals;
      store_rows(out + first, count, [&]() __attribute__((always_inline)) { return *total++ * share; });
    });
    return !any(bad);
  });
}

bool mean_own(Element element, Code code, const uint8_t* const* packed, int num_payloads, int64_t length,
              Blocks blocks, const float* scale, int64_t stride, void* target) {
  if (code == Code::kTwoBit)
    return mean_own_as<TwoBit>(element, packed, num_payloads, length, blocks, scale, stride, target);
  return mean_own_as<Base3>(element, packed, num_payloads, length, blocks, scale, stride, target);
}

}  // namespace
