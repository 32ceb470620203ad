// The kernels of one instruction set, as a table of functions over plain memory.
//
// A run is a stretch of consecutive elements of one parameter, packed into groups of its own (digits.h). The caller
// (driver.cpp) has checked every bound; these functions check only what the bytes themselves say.
#pragma once

#include <cstddef>
#include <cstdint>

enum class Element : int { kFloat32 = 0, kFloat16 = 1, kBFloat16 = 2 };
enum class Code : int { kTwoBit = 0, kBase3 = 1 };

constexpr int64_t kChunk = 3840;    // elements whose sums are kept in single precision; whole groups of every code
constexpr int64_t kGroupBytes = 32;
constexpr int64_t kSymbolBytes = 8;  // eight symbols, one for each lane of as many rows as a symbol has digits
constexpr int kMaxRows = 20;        // rows of a group, over all codes
constexpr int64_t kTile = 64;       // elements of a segment whose largest |v| is kept; a chunk is 60 of them
constexpr int kStreamsAbreast = 4;  // streams that a kernel codes at once, at most
constexpr int64_t kSearch = 8 * kChunk;  // elements that are searched for large ones at once

// Digits 0 .. base-1, `rows` of them to a word, with what a division by `base` needs.
struct Radix {
  uint32_t base, largest, magic;
  int rows, shift;
};

// Bytes below `size` that stand for some digits of a radix. Those with the same digits in another order are a class.
struct Alphabet {
  int size, num_classes;
  uint8_t class_of[256];
  int class_size[256];  // how many symbols
};

// A stream of symbols, to be coded to the end of `slot`, which has room for `length` bytes. The kernel sets `num_bytes`
// to how many it takes: `length` if it is stored as it is, -1 if a symbol is outside the alphabet.
struct Encoding {
  const uint8_t* symbols;
  int64_t length;
  uint8_t* slot;
  int64_t num_bytes;
};

struct Decoding {
  const uint8_t* coded;
  int64_t num_bytes;
  uint8_t* symbols;
  int64_t length;
};

struct Statistics {
  int32_t largest_bits;  // bit pattern of max |g|; infinities and NaNs sort above every finite number
  double sum, sum_of_squares;
};

// Where the scalers of a run are: one for every `block` elements of the parameter, `first` for the run's first element,
// which lies `into_block` elements behind the start of its block.
struct Blocks {
  int64_t first, into_block, block;
};

struct Draws {
  uint32_t key0, key1;
  uint64_t offset;  // of the run's first element in its parameter
};

// What becomes of velocity u and residual v when the gradient g arrives:
//   plain      v + g;  there is no u
//   momentum   u <- m u + g;    v <- v + u
//   nesterov   u <- m (u + g);  v <- v + (u + g)
enum class Rule : int { kPlain = 0, kMomentum = 1, kNesterov = 2 };

struct Accumulation {
  Rule rule;
  bool clear;              // set the gradient to zero once it has been read
  float factor, momentum;  // `factor` multiplies the gradient
};

// Where entries go; `velocities` is null if there are none. There is room for every element that is searched.
struct Picks {
  uint32_t* indices;
  float *values, *velocities;
};

struct Kernels {
  const char* name;
  // Statistics of at most kChunk elements.
  Statistics (*chunk_statistics)(Element, const void* source, int64_t length);
  // Clips to `limit`, ternarizes with P(non-zero) = |g| / scale where step = scale * 2^-24, packs.
  void (*ternarize)(Element, Code, const void* source, int64_t length, Draws, Blocks, const float* limit,
                    const float* step, uint8_t* packed);
  // target = scale * (sum over payloads), one scaler for all payloads. False: a code that no encoder writes.
  bool (*mean_shared)(Element, Code, const uint8_t* const* packed, int num_payloads, int64_t length, Blocks,
                      const float* scale, void* target);
  // target = (sum over payloads of scale_p * value_p, in order) / num_payloads; payload p's scalers start at p * stride.
  bool (*mean_own)(Element, Code, const uint8_t* const* packed, int num_payloads, int64_t length, Blocks,
                   const float* scale, int64_t stride, void* target);
  // The sum over payloads, packed as 2N+1 levels.
  bool (*sum_levels)(Code, const uint8_t* const* packed, int num_payloads, int64_t length, const Radix&,
                     uint8_t* target);
  // target = scale * sum, from packed levels.
  bool (*mean_levels)(Element, const Radix&, const uint8_t* packed, int num_payloads, int64_t length, Blocks,
                      const float* scale, void* target);
  // The sum over payloads, as symbols of `digits` levels each (symbols.h).
  bool (*sum_symbols)(Code, const uint8_t* const* packed, int num_payloads, int64_t length, int digits,
                      uint8_t* target);
  // target = scale * sum, from symbols.
  bool (*mean_symbols)(Element, int digits, const uint8_t* symbols, int num_payloads, int64_t length, Blocks,
                       const float* scale, void* target);
  // Of at most kChunk elements: how many codes are non-zero, and the sum of (scale * code - g)^2.
  bool (*chunk_error)(Element, Code, const void* source, const uint8_t* packed, int64_t length, Blocks,
                      const float* scale, int64_t* nonzero, double* squared_error);
  // Of at most kChunk elements: updates `residual` and `velocity` with the gradient, except where factor * gradient is
  // not finite, which clears `finite`; writes the largest |v| of every tile; returns the statistics of v.
  Statistics (*chunk_accumulate)(Element, const Accumulation&, void* gradient, float* velocity, float* residual,
                                 float* maxima, int64_t length, bool* finite);
  // Takes those of at most kSearch elements that are above the threshold, numbered from `first`; returns how many.
  int64_t (*select_above)(float* residual, float* velocity, const float* maxima, int64_t length, float threshold,
                          float factor, uint32_t first, Picks);
  // Codes streams, several at once.
  void (*encode_streams)(const Alphabet&, Encoding*, int count);
  // The inverse. False: bytes that no encoder writes.
  bool (*decode_streams)(const Alphabet&, const Decoding*, int count);
};

namespace terngrad {
extern const Kernels portable, avx2, avx512;
}
