// How digits become 32-bit words and back: the layout that every fixed-size code shares.
//
// A group is kRows rows of eight consecutive elements and fills eight little-endian 32-bit words; word j holds the
// digits of lane j, one per row. Elements thus stay in their natural order by rows, and a group packs without any
// shuffle. A digit is the value plus a bias, so that it is not negative; missing elements of the last group are zeros.
//
//   two-bit   16 rows, value + 1 in two bits, row 0 in the highest
//   base3     20 rows, five to a byte: byte b holds rows 5b .. 5b+4, row 5b the most significant trit; zero is 121
//   levels    radix R = 2N+1, as many rows K as R^K <= 2^32 allows, value + N, row 0 the most significant digit
#pragma once

#include "kernels.h"
#include "simd.h"

namespace {

struct TwoBit {
  static constexpr int kRows = 16;

  // Packs rows of *negated* ternary values, as negated_sign() makes them.
  template <class Row>
  static TG_INLINE VU pack(Row&& negated_row) {
    VI word = splat(0);
#pragma GCC unroll 16
    for (int k = 0; k < kRows; ++k) word = (word << 2) - negated_row();
    return (VU)word + 0x55555555u;
  }

  // The sum of a group over all payloads, row by row. Two digits travel in the 16-bit halves of a word until the end.
  // Sets lanes of `bad` where a digit is not 0, 1 or 2.
  static TG_INLINE void sum(const uint8_t* const* packed, int num_payloads, int64_t group, VI* sums, VU& bad) {
    VU pairs[8] = {};  // rows 15-j and 7-j
    for (int p = 0; p < num_payloads; ++p) {
      const VU word = load_vector<VU>(packed[p] + group * kGroupBytes);
      bad |= word & (word << 1) & 0xaaaaaaaau;
#pragma GCC unroll 8
      for (int j = 0; j < 8; ++j) pairs[j] += (word >> (2 * j)) & 0x00030003u;
    }
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) {
      sums[15 - j] = (VI)(pairs[j] & 0xffffu) - num_payloads;
      sums[7 - j] = (VI)(pairs[j] >> 16) - num_payloads;
    }
  }
};

struct Base3 {
  static constexpr int kRows = 20;

  template <class Row>
  static TG_INLINE VU pack(Row&& negated_row) {
    VI word = splat(0);
#pragma GCC unroll 4
    for (int b = 0; b < 4; ++b) {
      VI byte = splat(0);
#pragma GCC unroll 5
      for (int k = 0; k < 5; ++k) byte = (byte + byte) + (byte - negated_row());
      word += byte << (8 * b);
    }
    return (VU)word + 0x79797979u;
  }

  // Digit by digit from the top: 67.5 v, rounded up, is v / 243 as a 14-bit fraction that never leaves [v, v+1) / 243,
  // and times three brings the next trit above the point. The 16-bit halves of a word are decoded and added together.
  static TG_INLINE void sum(const uint8_t* const* packed, int num_payloads, int64_t group, VI* sums, VU& bad) {
    VU16 evens[5] = {}, odds[5] = {};  // bytes 0 and 2, bytes 1 and 3
    for (int p = 0; p < num_payloads; ++p) {
      const VU word = load_vector<VU>(packed[p] + group * kGroupBytes);
      bad |= (VU)((VU8)word > 242);
      VU16 even = as_fraction((VU16)(word & 0x00ff00ffu));
      VU16 odd = as_fraction((VU16)((word >> 8) & 0x00ff00ffu));
#pragma GCC unroll 5
      for (int k = 0; k < 5; ++k) {
        even = even + even + even;
        odd = odd + odd + odd;
        evens[k] += even >> 14;
        odds[k] += odd >> 14;
        even &= 0x3fff;
        odd &= 0x3fff;
      }
    }
#pragma GCC unroll 5
    for (int k = 0; k < 5; ++k) {
      const VU even = (VU)evens[k], odd = (VU)odds[k];
      sums[k] = (VI)(even & 0xffffu) - num_payloads;
      sums[5 + k] = (VI)(odd & 0xffffu) - num_payloads;
      sums[10 + k] = (VI)(even >> 16) - num_payloads;
      sums[15 + k] = (VI)(odd >> 16) - num_payloads;
    }
  }

 private:
  static TG_INLINE VU16 as_fraction(VU16 v) { return (v * 135 + 1) >> 1; }
};

struct Levels {
  static TG_INLINE VU pack(const Radix& radix, const VI* digits) {
    VU word = splat(0u);
    for (int k = 0; k < radix.rows; ++k) word = word * radix.base + (VU)digits[k];
    return word;
  }

  // Sets `digits` (not a sum); returns non-zero lanes where the word is not below base^rows.
  static TG_INLINE VU unpack(const Radix& radix, VU word, VI* digits) {
    const VU bad = (VU)(word > radix.largest);
    for (int k = radix.rows - 1; k >= 0; --k) {
      const VU high = multiply_high(word, splat(radix.magic));
      const VU quotient = (high + ((word - high) >> 1)) >> radix.shift;
      digits[k] = (VI)(word - quotient * radix.base);
      word = quotient;
    }
    return bad;
  }
};

}  // namespace
