// Tables of runs over the kernels: bounds, chunks, threads. Knows nothing of Python or torch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels.h"

namespace terngrad {

// A flat gradient buffer.
struct Buffer {
  void* data;
  int64_t numel;
  Element element;
};

// One row of a run table: `length` elements at `source` in the buffer, which are elements `offset`.. of their
// parameter, whose first scaler is `unit`; their codes start at byte `packed`, the levels of their sum at `levels`.
struct Run {
  int64_t source, length, offset, unit, packed, levels;
};
static_assert(sizeof(Run) == 48, "must match the int64 table of six columns");

struct Runs {
  const Run* rows;
  size_t count;
  int64_t block;  // elements to a scaler; 0: one for the whole parameter
};

struct Key {
  uint32_t key0, key1;
};

struct Span {
  int64_t source, length;
};

struct Scales {
  const float* values;
  int64_t count;
};

struct Payloads {
  std::vector<const uint8_t*> data;
  int64_t num_bytes;  // of each
};

constexpr int64_t kStreamSymbols = int64_t(1) << 18;  // of an entropy-coded stream, at most

Radix make_radix(int num_payloads);
int symbol_digits(int num_payloads);  // levels of the sum to a symbol
Alphabet make_alphabet(int radix, int digits);
std::vector<const Kernels*> available_kernels();  // best first

void statistics(const Kernels&, Buffer, const Span*, size_t count, float* largest, double* sum, double* squares,
                int threads);
void ternarize(const Kernels&, Buffer, Code, Runs, const Key*, Scales limit, Scales step, uint8_t* packed,
               int64_t num_bytes, int threads);
bool mean_shared(const Kernels&, Buffer, Code, Runs, const Payloads&, Scales, int threads);
bool mean_own(const Kernels&, Buffer, Code, Runs, const Payloads&, Scales, int threads);
bool sum_levels(const Kernels&, Code, Runs, const Payloads&, uint8_t* levels, int64_t num_bytes, int threads);
bool mean_levels(const Kernels&, Buffer, Runs, int num_payloads, const uint8_t* levels, int64_t num_bytes, Scales,
                 int threads);
bool sum_symbols(const Kernels&, Code, Runs, const Payloads&, uint8_t* symbols, int64_t num_bytes, int threads);
bool mean_symbols(const Kernels&, Buffer, Runs, int num_payloads, const uint8_t* symbols, int64_t num_bytes, Scales,
                  int threads);
// nonzero and squared error of each run.
bool error(const Kernels&, Buffer, Code, Runs, const uint8_t* packed, int64_t num_bytes, Scales, int64_t* nonzero,
           double* squared_error, int threads);

// streams.cpp. Codes each span of symbols as a stream, one behind the other in `target`; `lengths` are theirs.
void entropy_encode(const Kernels&, const Alphabet&, const uint8_t* symbols, int64_t num_symbols, const Span*,
                    size_t count, uint8_t* target, int64_t num_bytes, int64_t* lengths, int threads);
// The inverse. False: streams or lengths that no encoder writes.
bool entropy_decode(const Kernels&, const Alphabet&, const uint8_t* payload, int64_t num_bytes, const int64_t* lengths,
                    const Span*, size_t count, uint8_t* symbols, int64_t num_symbols, int threads);

}  // namespace terngrad
