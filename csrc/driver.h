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

Radix make_radix(int num_payloads);
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
// nonzero and squared error of each run.
bool error(const Kernels&, Buffer, Code, Runs, const uint8_t* packed, int64_t num_bytes, Scales, int64_t* nonzero,
           double* squared_error, int threads);

}  // namespace terngrad
