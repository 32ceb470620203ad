// The integer sum of N <= 127 ternary payloads as symbols for the entropy coder, and the average from them.
//
// A symbol is a byte of D digits, each a level value + N of radix R = 2N+1, with D as large as R^D <= 256 allows. D
// rows of eight consecutive elements make eight symbols: symbol j holds lane j, row 0 the most significant digit.
// Missing elements of a run's last rows are zeros.
#pragma once

#include "levels.h"

namespace {

// Calls f(number of digits) with it as a type. Four digits do not occur: 3^5 and 5^3 fit a byte, 5^4 does not.
template <class F>
TG_INLINE bool with_digits(int digits, F&& f) {
  switch (digits) {
    case 5: return f(std::integral_constant<int, 5>{});
    case 3: return f(std::integral_constant<int, 3>{});
    case 2: return f(std::integral_constant<int, 2>{});
    default: return f(std::integral_constant<int, 1>{});
  }
}

template <class C>
TG_INLINE bool sum_symbols_as(const uint8_t* const* packed, int num_payloads, int64_t length, int digits,
                              uint8_t* target) {
  const uint32_t base = 2 * uint32_t(num_payloads) + 1;
  return with_digits(digits, [&](auto num_digits) {
    constexpr int kDigits = decltype(num_digits)::value;
    return regroup_sums<C>(packed, num_payloads, length, kDigits, [&](const VI* levels) {
      VU symbol = (VU)levels[0];
      for (int k = 1; k < kDigits; ++k) symbol = symbol * base + (VU)levels[k];
      store_bytes(target, symbol);
      target += kSymbolBytes;
    });
  });
}

bool sum_symbols(Code code, const uint8_t* const* packed, int num_payloads, int64_t length, int digits,
                 uint8_t* target) {
  if (code == Code::kTwoBit) return sum_symbols_as<TwoBit>(packed, num_payloads, length, digits, target);
  return sum_symbols_as<Base3>(packed, num_payloads, length, digits, target);
}

// Sets kDigits rows of sums. 2^16 / base, rounded up, divides every byte exactly.
template <int kDigits>
TG_INLINE void unpack_symbols(VU symbol, int num_payloads, VI* sums) {
  const uint32_t base = 2 * uint32_t(num_payloads) + 1, magic = (65536 + base - 1) / base;
  for (int k = kDigits - 1; k > 0; --k) {
    const VU quotient = (symbol * magic) >> 16;
    sums[k] = (VI)(symbol - quotient * base) - num_payloads;
    symbol = quotient;
  }
  sums[0] = (VI)symbol - num_payloads;
}

bool mean_symbols(Element element, int digits, const uint8_t* symbols, int num_payloads, int64_t length, Blocks blocks,
                  const float* scale, void* target) {
  return with_digits(digits, [&](auto num_digits) {
    constexpr int kDigits = decltype(num_digits)::value;
    uint32_t largest = 1;
    for (int k = 0; k < kDigits; ++k) largest *= 2 * uint32_t(num_payloads) + 1;
    --largest;
    return with_element_and_scalers(element, blocks, length, [&](auto tag, auto whole) {
      auto* out = (decltype(tag)*)target;
      auto factor = scalers<decltype(whole)::value>(blocks, length, scale);
      VU bad = splat(0u);
      for_groups(length, kDigits, [&](int64_t first, int64_t group, int64_t count) {
        const VU symbol = load_bytes(symbols + group * kSymbolBytes);
        bad |= (VU)(symbol > largest);
        VI sums[kDigits];
        unpack_symbols<kDigits>(symbol, num_payloads, sums);
        store_scaled(out + first, count, sums, factor);
      });
      return !any(bad);
    });
  });
}

}  // namespace
