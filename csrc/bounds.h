// Where a buffer's elements are, and whether a stretch lies inside what it refers to; in integers that may be anything.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

#include "driver.h"

namespace terngrad {

inline size_t element_bytes(Element element) { return element == Element::kFloat32 ? 4 : 2; }
inline int64_t ceil_div(int64_t a, int64_t b) { return a / b + (a % b > 0); }  // a >= 0, however large

inline char* at(const Buffer& buffer, int64_t index) {
  return static_cast<char*>(buffer.data) + size_t(index) * element_bytes(buffer.element);
}

inline void require(bool ok, const char* what, size_t row, int64_t got, int64_t limit) {
  if (!ok)
    throw std::invalid_argument("row " + std::to_string(row) + " of the run table: " + what + " " +
                                std::to_string(got) + " is outside 0.." + std::to_string(limit));
}

inline void require_within(const char* what, size_t row, int64_t first, int64_t count, int64_t limit) {
  int64_t end;
  if (__builtin_add_overflow(first, count, &end)) end = first;
  require(first >= 0 && count >= 0 && count <= limit && first <= limit - count, what, row, end, limit);
}

// The lengths of spans that lie inside the buffer.
inline std::vector<int64_t> checked_lengths(const Buffer& buffer, const Span* spans, size_t count) {
  std::vector<int64_t> lengths(count);
  for (size_t i = 0; i < count; ++i) {
    require_within("elements up to", i, spans[i].source, spans[i].length, buffer.numel);
    lengths[i] = spans[i].length;
  }
  return lengths;
}

}  // namespace terngrad
