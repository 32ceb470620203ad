// Range variant of asymmetric numeral systems (Duda 2013): what coding a symbol does to a state.
//
// A stream has eight states, and symbol i belongs to state i mod 8; eight symbols, one for each, are a group. A state
// stays in [2^15, 2^31): the encoder, which goes backwards, pushes out the low 16 bits of a state that would leave the
// interval, and the decoder, which goes forwards, takes them in again. Every state starts at 2^15 in the encoder and so
// must end there in the decoder. docs/wire-formats.md has the layout.
//
// With AVX2 the states of a stream are also a vector. Tables are read lane by lane all the same: with gathers, decoding
// was measured at less than half the speed.
#pragma once

#include "model.h"

namespace {

constexpr int kStates = 8;
constexpr uint32_t kLowest = 1u << 15;
constexpr int kStateBytes = 4 * kStates;
constexpr int64_t kMostWords = 2 * kStates;  // bytes: a word for each symbol of a group

// The states of a stream, each on its own.
struct Scalars {
  uint32_t x[kStates];  // never indexed by a variable, so that it can be registers
};

// if (a < b) { x = y; p = q; } without a branch, as whether a word is due is as good as random. GCC makes a branch of
// every short way to write it, so on x86 it is spelled out.
template <class Pointer>
TG_INLINE void move_if_less(uint32_t a, uint32_t b, uint32_t& x, uint32_t y, Pointer& p, Pointer q) {
#if defined(__x86_64__)
  asm("cmp %[b], %[a]\n\tcmovb %[q], %[p]\n\tcmovb %[y], %[x]"
      : [p] "+&r"(p), [x] "+r"(x)
      : [a] "r"(a), [b] "rmi"(b), [y] "r"(y), [q] "r"(q)
      : "cc");
#else
  const uint32_t mask = 0 - uint32_t(a < b);
  x ^= (x ^ y) & mask;
  p += (q - p) & -int64_t(a < b);
#endif
}

// What encoding a symbol does to a state x: q = x / frequency, x += start + q * (2^15 - frequency). The division is the
// product with the reciprocal 2^(31 + shift) / frequency, rounded up, where 2^shift is the first power of two that is
// not below the frequency: exact for x < 2^31 (Granlund and Montgomery 1994, theorem 4.2).
struct alignas(16) Push {
  uint32_t reciprocal, most, start;  // most: frequency - 1, the most that the high half of x may be
  uint16_t complement, shift;
};

void make_pushes(const uint16_t* frequency, int size, Push* pushes) {
  uint32_t start = 0;
  for (int s = 0; s < size; ++s) {
    const uint32_t f = frequency[s];
    if (f == 0) continue;
    int bits = 0;
    while ((1u << bits) < f) ++bits;
    const uint64_t reciprocal = ((uint64_t(1) << (31 + bits)) + f - 1) / f;
    pushes[s] = {uint32_t(reciprocal), f - 1, start, uint16_t(kAllFrequencies - f), uint16_t(bits)};
    start += f;
  }
}

TG_INLINE void push(const Push& symbol, uint32_t& state, uint8_t*& words) {
  const uint16_t low = uint16_t(state);
  std::memcpy(words - 2, &low, 2);  // stays only if the pointer moves
  const uint32_t high = state >> 16;
  move_if_less(symbol.most, high, state, high, words, words - 2);
  const uint32_t quotient = uint32_t((uint64_t(state) * symbol.reciprocal) >> (31 + symbol.shift));
  state += symbol.start + quotient * symbol.complement;
}

// Eight symbols, the last first. Touches at most kMostWords bytes below `words`.
TG_INLINE void push_group(const Push* pushes, const uint8_t* symbols, Scalars& states, uint8_t*& words) {
#pragma GCC unroll 8
  for (int j = kStates - 1; j >= 0; --j) push(pushes[symbols[j]], states.x[j], words);
}

// The symbol at each of the 2^15 slots, and of each symbol its frequency (low half) and first slot (high half).
struct Slots {
  uint8_t symbol[kAllFrequencies];
  uint32_t place[256];
};

void make_slots(const uint16_t* frequency, int size, Slots& slots) {
  uint32_t start = 0;
  for (int s = 0; s < size; ++s) {
    std::memset(slots.symbol + start, s, frequency[s]);
    slots.place[s] = start << 16 | frequency[s];
    start += frequency[s];
  }
}

TG_INLINE uint8_t pop(const Slots& slots, uint32_t& state, const uint8_t*& words) {
  const uint32_t slot = state & (kAllFrequencies - 1);
  const uint8_t symbol = slots.symbol[slot];
  const uint32_t place = slots.place[symbol];
  uint32_t x = (place & 0xffffu) * (state >> kFrequencyBits) + slot - (place >> 16);
  uint16_t word;
  std::memcpy(&word, words, 2);
  move_if_less(x, kLowest, x, x << 16 | word, words, words + 2);
  state = x;
  return symbol;
}

// Eight symbols, the first first. Reads kMostWords bytes at `words`, whether they are due or not.
TG_INLINE void pop_group(const Slots& slots, Scalars& states, const uint8_t*& words, uint8_t* symbols) {
#pragma GCC unroll 8
  for (int j = 0; j < kStates; ++j) symbols[j] = pop(slots, states.x[j], words);
}

#if defined(__AVX2__)

// For each set of lanes two shuffles of eight words: `spread` hands the first out to these lanes, `pack` moves those of
// these lanes to the end, in their order. All other words become zero.
struct Shuffles {
  alignas(16) uint16_t spread[256][kStates], pack[256][kStates];
};

constexpr uint16_t bytes_of_word(int word) { return uint16_t(0x0202 * word + 0x0100); }

constexpr Shuffles make_shuffles() {
  constexpr uint16_t kZero = 0x8080;
  Shuffles shuffles{};
  for (int lanes = 0; lanes < 256; ++lanes) {
    int count = 0;
    for (int j = 0; j < kStates; ++j) shuffles.spread[lanes][j] = lanes >> j & 1 ? bytes_of_word(count++) : kZero;
    for (int i = 0; i < kStates - count; ++i) shuffles.pack[lanes][i] = kZero;
    for (int j = 0, i = kStates - count; j < kStates; ++j)
      if (lanes >> j & 1) shuffles.pack[lanes][i++] = bytes_of_word(j);
  }
  return shuffles;
}

constexpr Shuffles kShuffles = make_shuffles();

TG_INLINE __m128i shuffle_words(__m128i words, const uint16_t* shuffle) {
  return _mm_shuffle_epi8(words, _mm_load_si128((const __m128i*)shuffle));
}

// The fields of the pushes of eight symbols; `rest` has complement (low half) and shift.
struct Pushes {
  VU reciprocal, most, start, rest;
};

TG_INLINE __m256i load_pair(const Push& a, const Push& b) {
  return _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_load_si128((const __m128i*)&a)),
                                 _mm_load_si128((const __m128i*)&b), 1);
}

TG_INLINE Pushes load_pushes(const Push* pushes, const uint8_t* symbols) {
  __m256i rows[4];
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) rows[j] = load_pair(pushes[symbols[j]], pushes[symbols[j + 4]]);
  const __m256i low01 = _mm256_unpacklo_epi32(rows[0], rows[1]), low23 = _mm256_unpacklo_epi32(rows[2], rows[3]);
  const __m256i high01 = _mm256_unpackhi_epi32(rows[0], rows[1]), high23 = _mm256_unpackhi_epi32(rows[2], rows[3]);
  return {(VU)_mm256_unpacklo_epi64(low01, low23), (VU)_mm256_unpackhi_epi64(low01, low23),
          (VU)_mm256_unpacklo_epi64(high01, high23), (VU)_mm256_unpackhi_epi64(high01, high23)};
}

TG_INLINE __m128i low_halves(VU x) {
  const __m256i low = (__m256i)(x & 0xffffu);
  return _mm_packus_epi32(_mm256_castsi256_si128(low), _mm256_extracti128_si256(low, 1));
}

// Touches kMostWords bytes below `words`, however many are due.
TG_INLINE void push_group(const Push* pushes, const uint8_t* symbols, VU& states, uint8_t*& words) {
  const Pushes symbol = load_pushes(pushes, symbols);
  const VU high = states >> 16;
  const VI full = (VI)high > (VI)symbol.most;
  const uint64_t lanes = lane_bits(full);
  _mm_storeu_si128((__m128i*)(words - kMostWords), shuffle_words(low_halves(states), kShuffles.pack[lanes]));
  words -= 2 * __builtin_popcountll(lanes);
  const VU x = (VU)blend(full, (VF)high, (VF)states);
  const VU quotient = multiply_high(x + x, symbol.reciprocal) >> (symbol.rest >> 16);
  states = x + symbol.start + quotient * (symbol.rest & 0xffffu);
}

// Takes in the next words where x is below 2^15.
TG_INLINE VU take_words(VU x, const uint8_t*& words) {
  const __m128i next = _mm_loadu_si128((const __m128i*)words);
#if defined(__AVX512VL__)
  const __mmask8 due = _mm256_cmplt_epu32_mask((__m256i)x, (__m256i)splat(kLowest));
  words += 2 * __builtin_popcount(due);
  const __m256i word = _mm256_maskz_expand_epi32(due, _mm256_cvtepu16_epi32(next));
  return (VU)_mm256_mask_or_epi32((__m256i)x, due, (__m256i)(x << 16), word);
#else
  const VI due = (VI)x < splat(int32_t(kLowest));
  const uint64_t lanes = lane_bits(due);
  words += 2 * __builtin_popcountll(lanes);
  const VU word = (VU)_mm256_cvtepu16_epi32(shuffle_words(next, kShuffles.spread[lanes]));
  return (VU)blend(due, (VF)(x << 16 | word), (VF)x);
#endif
}

TG_INLINE void pop_group(const Slots& slots, VU& states, const uint8_t*& words, uint8_t* symbols) {
  const VU slot = states & (kAllFrequencies - 1);
  VU place{};
#pragma GCC unroll 8
  for (int j = 0; j < kStates; ++j) {
    symbols[j] = slots.symbol[slot[j]];
    place[j] = slots.place[symbols[j]];
  }
  states = take_words((place & 0xffffu) * (states >> kFrequencyBits) + slot - (place >> 16), words);
}

#endif

}  // namespace
