#include "driver.h"

#include <algorithm>
#include <atomic>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <string>

#include "bounds.h"
#include "chunks.h"

namespace terngrad {
namespace {

constexpr int64_t kLanesPerRow = 8;

int rows_of(Code code) { return code == Code::kTwoBit ? 16 : 20; }

// What a group of rows becomes: 32 bytes of codes or levels, eight of symbols.
struct Group {
  int rows;
  int64_t bytes = kGroupBytes;
};

int64_t packed_bytes(int64_t length, Group group) { return ceil_div(length, group.rows * kLanesPerRow) * group.bytes; }

struct Limits {
  int64_t numel = std::numeric_limits<int64_t>::max();
  int64_t packed = std::numeric_limits<int64_t>::max();
  int64_t levels = std::numeric_limits<int64_t>::max();
  int64_t scales = std::numeric_limits<int64_t>::max();
  Group code{0}, level{0};  // no rows: not used
};

int64_t block_of(const Runs& runs) { return runs.block > 0 ? runs.block : std::numeric_limits<int64_t>::max(); }

void check(const Runs& runs, const Limits& limits) {
  const int64_t block = block_of(runs);
  if (runs.block < 0 || runs.block % kLanesPerRow != 0)
    throw std::invalid_argument("block " + std::to_string(runs.block) + " must be a multiple of 8, or 0");
  for (size_t i = 0; i < runs.count; ++i) {
    const Run& run = runs.rows[i];
    require_within("elements up to", i, run.source, run.length, limits.numel);
    const int64_t last_offset = std::numeric_limits<int64_t>::max() - run.length;
    require(run.offset >= 0 && run.offset <= last_offset && run.offset % kLanesPerRow == 0, "offset (a multiple of 8)",
            i, run.offset, last_offset);
    const int64_t last = run.length > 0 ? (run.offset + run.length - 1) / block : 0;
    require_within("scaler", i, run.unit, last + 1, limits.scales);
    if (limits.code.rows)
      require_within("packed bytes up to", i, run.packed, packed_bytes(run.length, limits.code), limits.packed);
    if (limits.level.rows)
      require_within("level bytes up to", i, run.levels, packed_bytes(run.length, limits.level), limits.levels);
  }
}

Blocks blocks_of(const Runs& runs, const Run& run) {
  const int64_t block = block_of(runs);
  return {run.unit + run.offset / block, run.offset % block, block};
}

// A part of a run that starts `skip` elements in, a multiple of every group size in use.
Run part_of(const Run& run, int64_t skip, int64_t length, Group code, Group level) {
  Run part = run;
  part.source += skip;
  part.offset += skip;
  part.length = length;
  if (code.rows) part.packed += skip / (code.rows * kLanesPerRow) * code.bytes;
  if (level.rows) part.levels += skip / (level.rows * kLanesPerRow) * level.bytes;
  return part;
}

// Calls body(row index, part) over all runs, cut into about equal shares for the threads at whole groups.
template <class Body>
void for_parts(const Runs& runs, Group code, Group level, int threads, Body&& body) {
  const int64_t grain = kLanesPerRow * (level.rows && code.rows ? std::lcm(code.rows, level.rows)
                                                                 : std::max(code.rows, level.rows));
  int64_t total = 0;
  for (size_t i = 0; i < runs.count; ++i) total += runs.rows[i].length;
  threads = int(std::max<int64_t>(1, std::min<int64_t>(threads, total / (64 * grain))));
  const int64_t share = ceil_div(ceil_div(total, threads), grain) * grain;
  on_threads(threads, [&](int thread) {
    const int64_t from = thread * share, to = thread + 1 == threads ? total : from + share;
    int64_t start = 0;  // of the row, in elements over the whole table
    for (size_t i = 0; i < runs.count && start < to; start += runs.rows[i].length, ++i) {
      const Run& run = runs.rows[i];
      const auto cut = [&](int64_t where) {
        const int64_t inside = std::clamp<int64_t>(where - start, 0, run.length);
        return inside == run.length ? inside : inside / grain * grain;
      };
      const int64_t first = cut(from), last = cut(to);
      if (first < last) body(i, part_of(run, first, last - first, code, level));
    }
  });
}

std::vector<const uint8_t*> at_offset(const Payloads& payloads, int64_t offset) {
  std::vector<const uint8_t*> result(payloads.data);
  for (const uint8_t*& pointer : result) pointer += offset;
  return result;
}

// body(part of a run, its codes in every payload) over all runs, which sums them into groups of `level`.
template <class Body>
bool for_sums(Code code, const Runs& runs, const Payloads& payloads, Group level, int64_t num_bytes, int threads,
              Body&& body) {
  Limits limits;
  limits.packed = payloads.num_bytes;
  limits.levels = num_bytes;
  limits.code = {rows_of(code)};
  limits.level = level;
  check(runs, limits);
  std::atomic<bool> good{true};
  for_parts(runs, limits.code, level, threads, [&](size_t, const Run& run) {
    const auto packed = at_offset(payloads, run.packed);
    if (!body(run, packed.data())) good = false;
  });
  return good;
}

// body(part of a run) over all runs, which reads groups of `level` and writes the buffer.
template <class Body>
bool for_means(const Buffer& buffer, const Runs& runs, Group level, int64_t num_bytes, const Scales& scales,
               int threads, Body&& body) {
  check(runs, {buffer.numel, 0, num_bytes, scales.count, {0}, level});
  std::atomic<bool> good{true};
  for_parts(runs, {0}, level, threads, [&](size_t, const Run& run) {
    if (!body(run)) good = false;
  });
  return good;
}

}  // namespace

int symbol_digits(int num_payloads) {
  if (num_payloads < 1 || num_payloads > 127)
    throw std::invalid_argument("symbols of " + std::to_string(num_payloads) + " payloads: need 1..127");
  int digits = 0;
  for (int power = 2 * num_payloads + 1; power <= 256; power *= 2 * num_payloads + 1) ++digits;
  return digits;
}

// The 33-bit reciprocal of Granlund and Montgomery (1994), fig. 4.1: right for every 32-bit dividend.
Radix make_radix(int num_payloads) {
  if (num_payloads < 1 || num_payloads > 32767)
    throw std::invalid_argument("levels of " + std::to_string(num_payloads) + " payloads: need 1..32767");
  const uint64_t base = 2 * uint64_t(num_payloads) + 1;
  Radix radix{};
  radix.base = uint32_t(base);
  uint64_t power = 1;
  for (; power * base <= (uint64_t(1) << 32); power *= base) ++radix.rows;
  radix.largest = uint32_t(power - 1);
  int bits = 0;
  while ((uint64_t(1) << bits) < base) ++bits;
  radix.magic = uint32_t(((uint64_t(1) << 32) * ((uint64_t(1) << bits) - base)) / base + 1);
  radix.shift = bits - 1;
  return radix;
}

std::vector<const Kernels*> available_kernels() {
  std::vector<const Kernels*> found;
#if defined(TG_HAVE_AVX512)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq"))
    found.push_back(&avx512);
#endif
#if defined(TG_HAVE_AVX2)
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c") && __builtin_cpu_supports("bmi2"))
    found.push_back(&avx2);
#endif
  found.push_back(&portable);
  return found;
}

void statistics(const Kernels& kernels, Buffer buffer, const Span* spans, size_t count, float* largest, double* sum,
                double* squares, int threads) {
  const std::vector<int64_t> lengths = checked_lengths(buffer, spans, count);
  std::vector<Statistics> found(num_chunks(lengths));
  for_chunks(lengths, threads, [&](const Chunk& chunk) {
    const void* source = at(buffer, spans[chunk.span].source + chunk.first);
    found[chunk.number] = kernels.chunk_statistics(buffer.element, source, chunk.length);
  });
  combine(found, lengths, {largest, sum, squares});
}

void ternarize(const Kernels& kernels, Buffer buffer, Code code, Runs runs, const Key* keys, Scales limit, Scales step,
               uint8_t* packed, int64_t num_bytes, int threads) {
  const int rows = rows_of(code);
  check(runs, {buffer.numel, num_bytes, 0, std::min(limit.count, step.count), {rows}, {0}});
  for_parts(runs, {rows}, {0}, threads, [&](size_t i, const Run& run) {
    kernels.ternarize(buffer.element, code, at(buffer, run.source), run.length,
                      {keys[i].key0, keys[i].key1, uint64_t(run.offset)}, blocks_of(runs, run), limit.values,
                      step.values, packed + run.packed);
  });
}

bool mean_shared(const Kernels& kernels, Buffer buffer, Code code, Runs runs, const Payloads& payloads, Scales scales,
                 int threads) {
  const int rows = rows_of(code), count = int(payloads.data.size());
  check(runs, {buffer.numel, payloads.num_bytes, 0, scales.count, {rows}, {0}});
  std::atomic<bool> good{true};
  for_parts(runs, {rows}, {0}, threads, [&](size_t, const Run& run) {
    const auto packed = at_offset(payloads, run.packed);
    if (!kernels.mean_shared(buffer.element, code, packed.data(), count, run.length, blocks_of(runs, run),
                             scales.values, at(buffer, run.source)))
      good = false;
  });
  return good;
}

bool mean_own(const Kernels& kernels, Buffer buffer, Code code, Runs runs, const Payloads& payloads, Scales scales,
              int threads) {
  const int rows = rows_of(code), count = int(payloads.data.size());
  const int64_t stride = scales.count / std::max(count, 1);
  check(runs, {buffer.numel, payloads.num_bytes, 0, stride, {rows}, {0}});
  std::atomic<bool> good{true};
  for_parts(runs, {rows}, {0}, threads, [&](size_t, const Run& run) {
    const auto packed = at_offset(payloads, run.packed);
    if (!kernels.mean_own(buffer.element, code, packed.data(), count, run.length, blocks_of(runs, run), scales.values,
                          stride, at(buffer, run.source)))
      good = false;
  });
  return good;
}

bool sum_levels(const Kernels& kernels, Code code, Runs runs, const Payloads& payloads, uint8_t* levels,
                int64_t num_bytes, int threads) {
  const int count = int(payloads.data.size());
  const Radix radix = make_radix(count);
  return for_sums(code, runs, payloads, {radix.rows}, num_bytes, threads, [&](const Run& run, const auto* packed) {
    return kernels.sum_levels(code, packed, count, run.length, radix, levels + run.levels);
  });
}

bool mean_levels(const Kernels& kernels, Buffer buffer, Runs runs, int num_payloads, const uint8_t* levels,
                 int64_t num_bytes, Scales scales, int threads) {
  const Radix radix = make_radix(num_payloads);
  return for_means(buffer, runs, {radix.rows}, num_bytes, scales, threads, [&](const Run& run) {
    return kernels.mean_levels(buffer.element, radix, levels + run.levels, num_payloads, run.length,
                               blocks_of(runs, run), scales.values, at(buffer, run.source));
  });
}

bool sum_symbols(const Kernels& kernels, Code code, Runs runs, const Payloads& payloads, uint8_t* symbols,
                 int64_t num_bytes, int threads) {
  const int count = int(payloads.data.size()), digits = symbol_digits(count);
  const Group group{digits, kSymbolBytes};
  return for_sums(code, runs, payloads, group, num_bytes, threads, [&](const Run& run, const auto* packed) {
    return kernels.sum_symbols(code, packed, count, run.length, digits, symbols + run.levels);
  });
}

bool mean_symbols(const Kernels& kernels, Buffer buffer, Runs runs, int num_payloads, const uint8_t* symbols,
                  int64_t num_bytes, Scales scales, int threads) {
  const int digits = symbol_digits(num_payloads);
  return for_means(buffer, runs, {digits, kSymbolBytes}, num_bytes, scales, threads, [&](const Run& run) {
    return kernels.mean_symbols(buffer.element, digits, symbols + run.levels, num_payloads, run.length,
                                blocks_of(runs, run), scales.values, at(buffer, run.source));
  });
}

bool error(const Kernels& kernels, Buffer buffer, Code code, Runs runs, const uint8_t* packed, int64_t num_bytes,
           Scales scales, int64_t* nonzero, double* squared_error, int threads) {
  const int rows = rows_of(code);
  check(runs, {buffer.numel, num_bytes, 0, scales.count, {rows}, {0}});
  std::vector<int64_t> lengths(runs.count);
  for (size_t i = 0; i < runs.count; ++i) lengths[i] = runs.rows[i].length;
  const size_t chunks = num_chunks(lengths);
  std::vector<double> errors(chunks);
  std::vector<int64_t> counts(chunks);
  std::atomic<bool> good{true};
  for_chunks(lengths, threads, [&](const Chunk& chunk) {
    const Run part = part_of(runs.rows[chunk.span], chunk.first, chunk.length, {rows}, {0});
    if (!kernels.chunk_error(buffer.element, code, at(buffer, part.source), packed + part.packed, part.length,
                             blocks_of(runs, part), scales.values, &counts[chunk.number], &errors[chunk.number]))
      good = false;
  });
  for_spans(lengths, [&](size_t i, size_t from, size_t to) {
    nonzero[i] = std::accumulate(counts.begin() + int64_t(from), counts.begin() + int64_t(to), int64_t(0));
    squared_error[i] = pairwise_sum(errors.data() + from, to - from);
  });
  return good;
}

}  // namespace terngrad
