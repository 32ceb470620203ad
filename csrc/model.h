// The model of an entropy-coded stream: which frequency, out of 2^15, each symbol of an alphabet has.
//
// Symbols with the same digits in another order form a class and are taken to be equally likely. A stream's table says
// which classes occur and gives each a weight, to four significant bits after the first; frequencies follow from the
// weights in integers, so that writer and reader agree. docs/wire-formats.md has the layout.
#pragma once

#include "kernels.h"
#include "simd.h"

namespace {

constexpr int kFrequencyBits = 15;
constexpr uint32_t kAllFrequencies = 1u << kFrequencyBits;
constexpr int kLargestTable = 32 + 256;

TG_INLINE uint64_t weight_of(uint8_t byte) { return uint64_t(16 + byte % 16) << (byte / 16); }

// The byte whose weight is nearest to `wanted`, the larger of two; `wanted` is at most 2^19.
TG_INLINE uint8_t nearest_weight(uint64_t wanted) {
  if (wanted < 16) return 0;
  int exponent = 0;
  while ((wanted >> exponent) >= 32) ++exponent;
  const uint64_t half = (uint64_t(1) << exponent) >> 1;
  return uint8_t(16 * exponent + int((wanted + half) >> exponent) - 16);
}

// One table for each of eight neighbours: equal symbols in a row do not wait for each other.
void count_symbols(const uint8_t* symbols, int64_t length, uint32_t* counts) {
  uint32_t tables[8][256] = {};
  int64_t i = 0;
  for (; i + 8 <= length; i += 8) {
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) ++tables[j][symbols[i + j]];
  }
  for (; i < length; ++i) ++tables[0][symbols[i]];
  for (int s = 0; s < 256; ++s) {
    counts[s] = 0;
    for (int j = 0; j < 8; ++j) counts[s] += tables[j][s];
  }
}

// Writes the table for these counts of symbols and returns its length. A symbol that has the stream to itself gets
// company, because a frequency of 2^15 would leave a state as it is.
int write_table(const Alphabet& alphabet, const uint32_t* counts, uint8_t* table) {
  uint64_t totals[256] = {}, all = 0;
  for (int s = 0; s < alphabet.size; ++s) totals[alphabet.class_of[s]] += counts[s];
  int best = 0;
  for (int c = 0; c < alphabet.num_classes; ++c) {
    all += totals[c];
    if (totals[c] * alphabet.class_size[best] > totals[best] * alphabet.class_size[c]) best = c;
  }
  const bool alone = totals[best] == all && alphabet.class_size[best] == 1;
  const int company = alone ? int(best == 0) : -1, bitmap = (alphabet.num_classes + 7) / 8;
  std::memset(table, 0, size_t(bitmap));
  int length = bitmap;
  for (int c = 0; c < alphabet.num_classes; ++c) {
    if (totals[c] == 0 && c != company) continue;
    table[c / 8] = uint8_t(table[c / 8] | 1 << c % 8);
    table[length++] = nearest_weight((totals[c] << 19) * alphabet.class_size[best] /
                                     (alphabet.class_size[c] * (totals[best] ? totals[best] : 1)));
  }
  return length;
}

// What rounding left over goes to the symbols in their order, no more to any than a 32nd of what it has. That is
// always enough: rounding is off by at most one for each of 256 symbols, and their 32nds are at least 772 together.
TG_INLINE void spread(int32_t remainder, int size, uint16_t* frequency) {
  for (int s = 0; s < size && remainder != 0; ++s) {
    const int32_t most = frequency[s] / 32;
    const int32_t step = remainder > most ? most : remainder < -most ? -most : remainder;
    frequency[s] = uint16_t(frequency[s] + step);
    remainder -= step;
  }
}

// Sets the frequency of every symbol from the table at the start of `available` bytes and returns the table's length;
// -1 if no encoder writes it.
int read_table(const Alphabet& alphabet, const uint8_t* table, int64_t available, uint16_t* frequency) {
  const int bitmap = (alphabet.num_classes + 7) / 8;
  if (available < bitmap) return -1;
  if (alphabet.num_classes % 8 && table[bitmap - 1] >> alphabet.num_classes % 8) return -1;
  uint64_t weights[256] = {}, all = 0;
  int length = bitmap, num_symbols = 0;
  for (int c = 0; c < alphabet.num_classes; ++c) {
    if (!(table[c / 8] >> c % 8 & 1)) continue;
    if (length == available) return -1;
    weights[c] = weight_of(table[length++]);
    all += weights[c] * alphabet.class_size[c];
    num_symbols += alphabet.class_size[c];
  }
  if (num_symbols < 2) return -1;
  int32_t remainder = int32_t(kAllFrequencies);
  for (int s = 0; s < alphabet.size; ++s) {
    const uint64_t weight = weights[alphabet.class_of[s]];
    const uint64_t share = ((weight << (kFrequencyBits + 1)) + all) / (2 * all);
    frequency[s] = uint16_t(weight && !share ? 1 : share);
    remainder -= frequency[s];
  }
  spread(remainder, alphabet.size, frequency);
  return length;
}

}  // namespace
