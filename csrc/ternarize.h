// Clip, ternarize, pack. An element becomes sign(g) with probability min(|g|, limit) / scale, else 0.
//
// The test is  float(draw) * step < min(|g|, limit)  with a 24-bit draw and step = scale * 2^-24. The left side is one
// rounded product; rounding to nearest is monotone and moves the boundary by at most one draw, so the probability is
// within 2^-24 of the exact one (docs/design.md has the proof). Zero stays zero, and |g| = scale is always sent.
#pragma once

#include "digits.h"
#include "random.h"
#include "rows.h"

namespace {

template <class T, class C, bool kWhole>
TG_INLINE void ternarize_run(const T* source, int64_t length, Draws draws, Blocks blocks, const float* limit,
                             const float* step, uint8_t* packed) {
  constexpr int64_t size = C::kRows * kLanes;
  Scalers<kWhole> limits = scalers<kWhole>(blocks, length, limit), steps = scalers<kWhole>(blocks, length, step);
  VU weyl = weyl_start(draws.key0, draws.offset);
  for_groups(length, C::kRows, [&](int64_t first, int64_t group, int64_t count) __attribute__((always_inline)) {
    T tail[size];
    const T* row = source + first;
    if (__builtin_expect(count < size, 0)) {
      std::memset(tail, 0, sizeof tail);
      std::memcpy(tail, row, size_t(count) * sizeof(T));
      row = tail;
    }
    const VU word = C::pack([&]() __attribute__((always_inline)) {
      const VF value = load_row(row);
      const VF threshold = to_float(draw24(weyl, draws.key1)) * steps.next();
      const VI sent = (VI)(threshold < minimum(magnitude(value), limits.next()));
      prefetch(row);
      row += kLanes;
      weyl = weyl_next(weyl);
      return negated_sign(sent, value);
    });
    store_vector(packed + group * kGroupBytes, word);
  });
}

template <class C>
TG_INLINE void ternarize_as(Element element, const void* source, int64_t length, Draws draws, Blocks blocks,
                            const float* limit, const float* step, uint8_t* packed) {
  with_element(element, [&](auto tag) {
    const auto* elements = (const decltype(tag)*)source;
    if (one_scaler(blocks, length))
      ternarize_run<decltype(tag), C, true>(elements, length, draws, blocks, limit, step, packed);
    else
      ternarize_run<decltype(tag), C, false>(elements, length, draws, blocks, limit, step, packed);
  });
}

void ternarize(Element element, Code code, const void* source, int64_t length, Draws draws, Blocks blocks,
               const float* limit, const float* step, uint8_t* packed) {
  if (code == Code::kTwoBit)
    ternarize_as<TwoBit>(element, source, length, draws, blocks, limit, step, packed);
  else
    ternarize_as<Base3>(element, source, length, draws, blocks, limit, step, packed);
}

}  // namespace
