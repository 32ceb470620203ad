// Momentum and residual of a chunk, the largest |v| of each of its tiles, and the statistics of v, in one pass.
//
// An element whose gradient (times `factor`) is not finite leaves its velocity and residual as they were. The sums are
// in the order of statistics.h.
#pragma once

#include "statistics.h"

namespace {

template <Rule kRule>
struct Accumulator {
  VF factor, momentum;
  Sums sums;
  VI finite = splat(-1);

  TG_INLINE void add(VF gradient, float* velocity, float* residual, int lane_half) {
    const VF g = gradient * factor, v = load_row(residual);
    const VI good = (VI)magnitude(g) < 0x7f800000;
    finite &= good;
    VF change = g;
    if (kRule != Rule::kPlain) {
      const VF u = load_row(velocity);
      const VF next = kRule == Rule::kMomentum ? momentum * u + g : momentum * (u + g);
      change = kRule == Rule::kMomentum ? next : next + g;
      store_row(velocity, blend(good, next, u));
    }
    const VF result = blend(good, v + change, v);
    store_row(residual, result);
    sums.add(result, lane_half);
  }

  // Of the elements since the last call.
  TG_INLINE int32_t take_largest() {
    const int32_t largest = largest_lane(sums.largest);
    sums.largest = splat(0);
    return largest;
  }
};

constexpr int64_t kPair = 2 * kLanes;

template <Rule kRule, bool kClear, class T>
TG_INLINE void accumulate_pair(Accumulator<kRule>& all, T* gradient, float* velocity, float* residual) {
  for (int half = 0; half < 2; ++half) {
    const int at = half * kLanes;
    all.add(load_row(gradient + at), kRule == Rule::kPlain ? nullptr : velocity + at, residual + at, half);
  }
  if (kClear) std::memset(gradient, 0, kPair * sizeof(T));
}

// The last few elements, in a copy that is padded with zeros. Zeros add nothing to a sum and are no maximum; and a
// factor that makes them not finite makes every other element so.
template <Rule kRule, bool kClear, class T>
TG_INLINE void accumulate_rest(Accumulator<kRule>& all, T* gradient, float* velocity, float* residual, int64_t count) {
  T g[kPair] = {};
  float u[kPair] = {}, v[kPair] = {};
  const size_t bytes = size_t(count) * sizeof(float);
  std::memcpy(g, gradient, size_t(count) * sizeof(T));
  std::memcpy(v, residual, bytes);
  if (kRule != Rule::kPlain) std::memcpy(u, velocity, bytes);
  accumulate_pair<kRule, false>(all, g, u, v);
  std::memcpy(residual, v, bytes);
  if (kRule != Rule::kPlain) std::memcpy(velocity, u, bytes);
  if (kClear) std::memset(gradient, 0, size_t(count) * sizeof(T));
}

template <Rule kRule, bool kClear, class T>
TG_INLINE Statistics accumulate_as(const Accumulation& how, T* gradient, float* velocity, float* residual,
                                   float* maxima, int64_t length, bool* finite) {
  Accumulator<kRule> all{splat(how.factor), splat(how.momentum), {}, splat(-1)};
  int32_t largest = 0;
  for (int64_t first = 0; first < length; first += kTile) {
    const int64_t end = first + kTile < length ? first + kTile : length;
    int64_t i = first;
    for (; i + kPair <= end; i += kPair) {
      prefetch(gradient + i);
      prefetch(residual + i);
      if (kRule != Rule::kPlain) prefetch(velocity + i);
      accumulate_pair<kRule, kClear>(all, gradient + i, velocity + (kRule == Rule::kPlain ? 0 : i), residual + i);
    }
    if (i < end)
      accumulate_rest<kRule, kClear>(all, gradient + i, velocity + (kRule == Rule::kPlain ? 0 : i), residual + i,
                                     end - i);
    const int32_t here = all.take_largest();
    std::memcpy(maxima++, &here, 4);
    largest = here > largest ? here : largest;
  }
  *finite = !any((VU)~all.finite);
  return {largest, sum_lanes(all.sums.sum[0], all.sums.sum[1]), sum_lanes(all.sums.squares[0], all.sums.squares[1])};
}

template <Rule kRule>
TG_INLINE Statistics accumulate_by(Element element, const Accumulation& how, void* gradient, float* velocity,
                                   float* residual, float* maxima, int64_t length, bool* finite) {
  return with_element(element, [&](auto tag) {
    auto* g = (decltype(tag)*)gradient;
    return how.clear ? accumulate_as<kRule, true>(how, g, velocity, residual, maxima, length, finite)
                     : accumulate_as<kRule, false>(how, g, velocity, residual, maxima, length, finite);
  });
}

Statistics chunk_accumulate(Element element, const Accumulation& how, void* gradient, float* velocity,
                            float* residual, float* maxima, int64_t length, bool* finite) {
  switch (how.rule) {
    case Rule::kMomentum:
      return accumulate_by<Rule::kMomentum>(element, how, gradient, velocity, residual, maxima, length, finite);
    case Rule::kNesterov:
      return accumulate_by<Rule::kNesterov>(element, how, gradient, velocity, residual, maxima, length, finite);
    default:
      return accumulate_by<Rule::kPlain>(element, how, gradient, velocity, residual, maxima, length, finite);
  }
}

}  // namespace
