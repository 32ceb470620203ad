// The gap code: increasing positions as adaptive Golomb-Rice codes of the gaps between them (docs/wire-formats.md).
//
// Both sides keep running means of the gaps, one for each length of the three gaps before, and take from them the number k
// of low bits that are written as they are; the rest of a gap is written in unary. Compiled once, without special
// instructions: it is bits, one after the other.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace {

constexpr int kMeanShift = 5;       // a mean moves by 1/32 of each new gap
constexpr int kContexts = 51;       // the digits of a sum of three gaps
constexpr int kMaxLowBits = 32;     // with the quotient and its end, less than the 56 bits that go at once
constexpr uint64_t kEscape = 16;    // quotients from here on are not written in unary
constexpr size_t kMaxGapBytes = 8;  // escape and 48 bits
constexpr int64_t kMaxPositions = int64_t(1) << 48;

inline int bit_length(uint64_t x) { return x ? 64 - __builtin_clzll(x) : 0; }
inline uint64_t low_bits(uint64_t x, int count) { return x & ((uint64_t(1) << count) - 1); }

// What both sides know of the gaps so far; at first, what follows from `count` of `limit` positions.
struct GapModel {
  // They settle at 2^kMeanShift times mean plus one half, because the shift in update() rounds down.
  uint64_t scaled_means[kContexts];
  uint64_t* scaled_mean = scaled_means;  // of the context that the gaps before are
  uint64_t last = 0, last_two = 0;       // the gap before, and the sum of two
  int raw_bits;                          // of the largest gap there can be

  GapModel(uint64_t limit, uint64_t count) : raw_bits(bit_length(limit - count)) {
    std::fill_n(scaled_means, kContexts, ((limit - count) << kMeanShift) / count);
  }
  GapModel(const GapModel&) = delete;  // scaled_mean points into it

  // The smallest k with 2^k above half of mean plus one half; for geometric gaps k and k + 1 cost the same at 0.481 of
  // it, and next to that point nearly so.
  int low() const {
    const int k = bit_length(*scaled_mean >> (kMeanShift + 1));
    return k < kMaxLowBits ? k : kMaxLowBits;
  }

  // A gap that was escaped counts as the smallest such, lest one outlier make the next hundred gaps dear.
  void update(uint64_t gap, int k) {
    const uint64_t most = kEscape << k;
    *scaled_mean += (gap < most ? gap : most) - (*scaled_mean >> kMeanShift);
    scaled_mean = scaled_means + bit_length(last_two + gap);
    last_two = last + gap;
    last = gap;
  }
};

// Bits are appended from the lowest of each byte up. Writes up to eight bytes ahead.
struct BitWriter {
  uint8_t* out;
  uint64_t waiting = 0;
  int num_waiting = 0;  // below 8 between calls

  void put(uint64_t bits, int count) {  // at most 56
    waiting |= bits << num_waiting;
    num_waiting += count;
    std::memcpy(out, &waiting, 8);
    out += num_waiting >> 3;
    waiting >>= num_waiting & ~7;
    num_waiting &= 7;
  }
};

struct GapEncoder {
  GapModel model;
  BitWriter bits;
  int64_t previous = -1;

  void put(int64_t position) {
    const uint64_t gap = uint64_t(position - previous - 1);
    previous = position;
    const int k = model.low();
    const uint64_t quotient = gap >> k;
    if (__builtin_expect(quotient < kEscape, 1)) {
      const int unary = int(quotient) + 1;
      bits.put((low_bits(gap, k) << unary) | (uint64_t(1) << quotient), unary + k);
    } else {
      bits.put(0, int(kEscape));
      bits.put(gap, model.raw_bits);
    }
    model.update(gap, k);
  }
};

struct BitReader {
  const uint8_t* data;
  uint64_t size;    // bytes
  uint64_t at = 0;  // bits; at most 8 * size

  // At least the next 57 bits; zeros behind the end.
  uint64_t peek() const {
    const uint64_t byte = at >> 3;
    uint64_t word = 0;
    if (__builtin_expect(byte + 8 <= size, 1))
      std::memcpy(&word, data + byte, 8);
    else
      std::memcpy(&word, data + byte, size - byte);
    return word >> (at & 7);
  }

  bool skip(uint64_t count) {
    at += count;
    return at <= 8 * size;
  }

  // Whether the stream ends here: in this byte, with zeros behind.
  bool at_end() const { return (at + 7) / 8 == size && (at % 8 == 0 || data[size - 1] >> (at % 8) == 0); }
};

struct GapDecoder {
  GapModel model;
  BitReader bits;

  // False: the stream ran out, or no encoder wrote it.
  bool take(uint64_t& gap) {
    const int k = model.low();
    uint64_t window = bits.peek();
    const uint64_t zeros = window ? uint64_t(__builtin_ctzll(window)) : 64;
    if (__builtin_expect(zeros < kEscape, 1)) {
      gap = (zeros << k) | low_bits(window >> (zeros + 1), k);
      if (!bits.skip(zeros + 1 + uint64_t(k))) return false;
    } else {
      if (!bits.skip(kEscape)) return false;
      gap = low_bits(bits.peek(), model.raw_bits);
      if (!bits.skip(uint64_t(model.raw_bits)) || gap >> k < kEscape) return false;
    }
    model.update(gap, k);
    return true;
  }
};

inline bool decode_positions(const uint8_t* data, size_t size, uint64_t limit, size_t count, int64_t* positions) {
  if (count == 0) return size == 0;
  if (count > limit) return false;
  GapDecoder decoder{{limit, count}, {data, size}};
  uint64_t next = 0;  // the lowest position that is left
  for (size_t i = 0; i < count; ++i) {
    uint64_t gap;
    if (!decoder.take(gap) || gap >= limit - next) return false;
    positions[i] = int64_t(next + gap);
    next += gap + 1;
  }
  return decoder.bits.at_end();
}

}  // namespace
