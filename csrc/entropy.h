// Range variant of asymmetric numeral systems (Duda 2013), eight interleaved states over one stream of symbols.
//
// Symbol i belongs to state i mod 8. A state stays in [2^15, 2^31): the encoder, which goes backwards, pushes out the
// low 16 bits of a state that would leave the interval, and the decoder, which goes forwards, takes them in again.
// Every state starts at 2^15 in the encoder and so must end there in the decoder. docs/wire-formats.md has the layout.
#pragma once

#include "model.h"

namespace {

constexpr int kStates = 8;
constexpr uint32_t kLowest = 1u << 15;
constexpr int kStateBytes = 4 * kStates;

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
// product with the reciprocal 2^shift / frequency, rounded up, where 2^(shift - 31) is the first power of two that is
// not below the frequency: exact for x < 2^31 (Granlund and Montgomery 1994, theorem 4.2).
struct Push {
  uint32_t reciprocal;
  uint16_t most, start, complement;  // most: frequency - 1, the most that the high half of x may be
  uint8_t shift;
};

TG_INLINE void push(const Push& symbol, uint32_t& state, uint8_t*& words) {
  const uint16_t low = uint16_t(state);
  std::memcpy(words - 2, &low, 2);  // stays only if the pointer moves
  const uint32_t high = state >> 16;
  move_if_less(symbol.most, high, state, high, words, words - 2);
  const uint32_t quotient = uint32_t((uint64_t(state) * symbol.reciprocal) >> symbol.shift);
  state += symbol.start + quotient * symbol.complement;
}

void make_pushes(const uint16_t* frequency, int size, Push* pushes) {
  uint32_t start = 0;
  for (int s = 0; s < size; ++s) {
    const uint32_t f = frequency[s];
    if (f == 0) continue;
    int bits = 0;
    while ((1u << bits) < f) ++bits;
    const uint64_t reciprocal = ((uint64_t(1) << (31 + bits)) + f - 1) / f;
    pushes[s] = {uint32_t(reciprocal), uint16_t(f - 1), uint16_t(start), uint16_t(kAllFrequencies - f),
                 uint8_t(31 + bits)};
    start += f;
  }
}

// Writes words from `end` downwards and returns where they begin; at or below `begin`, it has given up. It touches at
// most 18 bytes below `begin`.
uint8_t* push_all(const Push* pushes, const uint8_t* symbols, int64_t length, const uint8_t* begin, uint8_t* end,
                  uint32_t* states) {
  uint8_t* words = end;
  for (int j = 0; j < kStates; ++j) states[j] = kLowest;
  int64_t i = length - length % kStates;
  for (int64_t j = length - 1; j >= i; --j) push(pushes[symbols[j]], states[j - i], words);
  uint32_t x[kStates];  // never indexed by a variable, so that it can be registers
  std::memcpy(x, states, sizeof x);
  while (i > 0 && words > begin) {
    i -= kStates;
#pragma GCC unroll 8
    for (int j = kStates - 1; j >= 0; --j) push(pushes[symbols[i + j]], x[j], words);
  }
  std::memcpy(states, x, sizeof x);
  return words;
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

// Writes the stream to the end of `slot`, which has `length` bytes, and returns how many it takes: `length` if it is
// stored as it is. -1: a symbol outside the alphabet.
int64_t encode_stream(const Alphabet& alphabet, const uint8_t* symbols, int64_t length, uint8_t* slot) {
  uint32_t counts[256], states[kStates];
  count_symbols(symbols, length, counts);
  for (int s = alphabet.size; s < 256; ++s)
    if (counts[s]) return -1;
  uint8_t table[kLargestTable];
  const int table_bytes = write_table(alphabet, counts, table), head = table_bytes + kStateBytes;
  if (length > head) {
    uint16_t frequency[256];
    Push pushes[256];
    read_table(alphabet, table, table_bytes, frequency);
    make_pushes(frequency, alphabet.size, pushes);
    uint8_t *begin = slot + head, *end = slot + length;
    uint8_t* words = push_all(pushes, symbols, length, begin, end, states);
    if (words > begin) {
      std::memcpy(words - kStateBytes, states, kStateBytes);
      std::memcpy(words - head, table, size_t(table_bytes));
      return end - words + head;
    }
  }
  if (length > 0) std::memcpy(slot, symbols, size_t(length));
  return length;
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

// Eight symbols may take eight words, so behind the last sixteen bytes the words are read from a copy with room behind.
struct Words {
  static constexpr int64_t kMost = 2 * kStates;
  const uint8_t *at, *end;
  int64_t need = kMost;
  uint8_t rest[2 * kMost] = {};

  // Whether kMost bytes can be read. False: more words have been taken than there were.
  TG_INLINE bool ready() { return __builtin_expect(end - at >= need, 1) || (need > 0 && copy_rest()); }

  bool copy_rest() {
    const int64_t left = end - at;
    std::memcpy(rest, at, size_t(left));
    at = rest;
    end = rest + left;
    need = 0;
    return true;
  }
};

bool pop_all(const Slots& slots, uint32_t* states, Words& words, uint8_t* symbols, int64_t length) {
  uint32_t x[kStates];  // never indexed by a variable, so that it can be registers
  std::memcpy(x, states, sizeof x);
  int64_t i = 0;
  for (; i + kStates <= length; i += kStates) {
    if (!words.ready()) return false;
    const uint8_t* at = words.at;
#pragma GCC unroll 8
    for (int j = 0; j < kStates; ++j) symbols[i + j] = pop(slots, x[j], at);
    words.at = at;
  }
  std::memcpy(states, x, sizeof x);
  if (!words.ready()) return false;
  for (int j = 0; i < length; ++i, ++j) symbols[i] = pop(slots, states[j], words.at);
  bool home = words.at == words.end;
  for (int j = 0; j < kStates; ++j) home &= states[j] == kLowest;
  return home;
}

bool copy_symbols(const Alphabet& alphabet, const uint8_t* source, uint8_t* symbols, int64_t length) {
  uint8_t largest = 0;
  for (int64_t i = 0; i < length; ++i) {
    symbols[i] = source[i];
    largest = source[i] > largest ? source[i] : largest;
  }
  return largest < alphabet.size;
}

// The inverse of encode_stream. False: no encoder writes these bytes; `symbols` then holds anything.
bool decode_stream(const Alphabet& alphabet, const uint8_t* coded, int64_t num_bytes, uint8_t* symbols,
                   int64_t length) {
  if (num_bytes >= length) return num_bytes == length && copy_symbols(alphabet, coded, symbols, length);
  uint16_t frequency[256];
  const int table_bytes = read_table(alphabet, coded, num_bytes, frequency);
  if (table_bytes < 0) return false;
  const int64_t rest = num_bytes - table_bytes - kStateBytes;
  if (rest < 0 || rest % 2) return false;
  uint32_t states[kStates];
  std::memcpy(states, coded + table_bytes, kStateBytes);
  for (uint32_t state : states)
    if (state < kLowest || state >> 31) return false;
  Slots slots;
  make_slots(frequency, alphabet.size, slots);
  Words words{coded + table_bytes + kStateBytes, coded + num_bytes};
  return pop_all(slots, states, words, symbols, length);
}

}  // namespace
