// Lists of entries: checked for what a peer may have sent, and added up in the order of ranks.
#pragma once

#include <algorithm>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "chunks.h"
#include "sparse.h"

namespace terngrad {

constexpr int64_t kWindow = 8192;  // elements whose sums are gathered at once; 32 KB of them

inline void require_count(const char* what, int64_t got, int64_t need) {
  if (got != need)
    throw std::invalid_argument(std::string(what) + ": " + std::to_string(got) + " given, need " +
                                std::to_string(need));
}

// The first entry of each segment, and behind the last one the number of all.
inline std::vector<size_t> first_entries(const Entries& entries, size_t num_segments) {
  require_count("counts of entries", int64_t(entries.num_counts), int64_t(num_segments));
  require_count("values of entries", int64_t(entries.num_values), int64_t(entries.num_indices));
  std::vector<size_t> first(num_segments + 1, 0);
  for (size_t i = 0; i < num_segments; ++i) {
    const int64_t count = entries.counts[i];
    if (count < 0 || size_t(count) > entries.num_indices - first[i])
      throw std::invalid_argument("segment " + std::to_string(i) + " has a count of " + std::to_string(count) +
                                  " entries, and there are " + std::to_string(entries.num_indices - first[i]) +
                                  " left");
    first[i + 1] = first[i] + size_t(count);
  }
  require_count("indices of entries", int64_t(entries.num_indices), int64_t(first.back()));
  return first;
}

inline bool increasing_below(const uint32_t* indices, size_t count, int64_t limit) {
  bool good = true;
  for (size_t i = 1; i < count; ++i) good &= indices[i - 1] < indices[i];
  return good && (count == 0 || indices[count - 1] < limit);
}

// Entries that are known to be sorted and within their segments.
struct Sorted {
  const Entries* entries;
  std::vector<size_t> first;
};

// Empty if one is not.
inline std::vector<Sorted> sorted_entries(const std::vector<Entries>& payloads, const std::vector<int64_t>& lengths) {
  if (payloads.empty()) throw std::invalid_argument("no payloads: need at least one");
  std::vector<Sorted> result;
  bool good = true;
  for (const Entries& entries : payloads) {
    result.push_back({&entries, first_entries(entries, lengths.size())});
    const std::vector<size_t>& first = result.back().first;
    for (size_t i = 0; i < lengths.size(); ++i)
      good &= increasing_below(entries.indices + first[i], first[i + 1] - first[i], lengths[i]);
  }
  if (!good) result.clear();
  return result;
}

// Sums of entries within a window of one segment: payload after payload, so that every element's are added in order.
class Window {
 public:
  explicit Window(const std::vector<Sorted>& payloads) : payloads_(payloads), cursors_(payloads.size()) {}

  // Calls emit(index, sum) by increasing index for what the payloads have in a chunk of at most kWindow elements; and
  // soon(index) for each of these, as often as it occurs, well before.
  template <class Soon, class Emit>
  void sum(const Chunk& chunk, Soon&& soon, Emit&& emit) {
    if (chunk.span != segment_ || chunk.first != next_) seek(chunk);
    next_ = chunk.first + chunk.length;
    for (size_t p = 0; p < payloads_.size(); ++p) add(p, chunk, soon);
    for (int64_t part = 0; part < kWords / 64; ++part) {
      for (uint64_t words = words_[part]; words; words &= words - 1) {
        const int64_t word = 64 * part + __builtin_ctzll(words);
        for (uint64_t marks = marks_[word]; marks; marks &= marks - 1) {
          const int64_t at = 64 * word + __builtin_ctzll(marks);
          emit(chunk.first + at, sums_[at]);
          sums_[at] = 0.0f;
        }
        marks_[word] = 0;
      }
      words_[part] = 0;
    }
  }

 private:
  void seek(const Chunk& chunk) {
    segment_ = chunk.span;
    for (size_t p = 0; p < payloads_.size(); ++p) {
      const Sorted& payload = payloads_[p];
      const uint32_t* indices = payload.entries->indices;
      const uint32_t* end = indices + payload.first[segment_ + 1];
      cursors_[p] = size_t(std::lower_bound(indices + payload.first[segment_], end, chunk.first) - indices);
    }
  }

  template <class Soon>
  void add(size_t p, const Chunk& chunk, Soon&& soon) {
    const Sorted& payload = payloads_[p];
    const uint32_t* indices = payload.entries->indices;
    const float* values = payload.entries->values;
    const size_t end = payload.first[segment_ + 1];
    size_t cursor = cursors_[p];
    for (; cursor < end && indices[cursor] < next_; ++cursor) {
      soon(indices[cursor]);
      const int64_t at = indices[cursor] - chunk.first, word = at / 64;
      sums_[at] += values[cursor];
      marks_[word] |= uint64_t(1) << (at % 64);
      words_[word / 64] |= uint64_t(1) << (word % 64);
    }
    cursors_[p] = cursor;
  }

  static constexpr int64_t kWords = kWindow / 64;

  const std::vector<Sorted>& payloads_;
  std::vector<size_t> cursors_;
  size_t segment_ = size_t(-1);
  int64_t next_ = 0;
  float sums_[kWindow] = {};
  uint64_t marks_[kWords] = {}, words_[kWords / 64] = {};  // where sums are, and where marks are
};

// Calls emit(chunk, index, sum) for every element that a payload has an entry of, and soon(chunk, index) before.
template <class Soon, class Emit>
void for_union(const std::vector<int64_t>& lengths, const std::vector<Sorted>& payloads, int threads, Soon&& soon,
               Emit&& emit) {
  std::vector<std::unique_ptr<Window>> windows;
  for (int t = threads_for(lengths, threads, kWindow); t > 0; --t) windows.emplace_back(new Window(payloads));
  const auto gather = [&](const Chunk& chunk) {
    windows[size_t(chunk.thread)]->sum(
        chunk, [&](int64_t index) { soon(chunk, index); },
        [&](int64_t index, float sum) { emit(chunk, index, sum); });
  };
  for_chunks(lengths, threads, gather, kWindow);
}

}  // namespace terngrad
