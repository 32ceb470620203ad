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

constexpr int64_t kWindow = 16384;  // elements whose sums are gathered at once; 64 KB of them

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
  explicit Window(const std::vector<Sorted>& payloads)
      : payloads_(payloads), begins_(payloads.size()), ends_(payloads.size()) {}

  // Adds up what the payloads have in a chunk of at most kWindow elements; calls soon(index) for each entry.
  template <class Soon>
  void gather(const Chunk& chunk, Soon&& soon) {
    for_entries([&](int64_t at, float) { sums_[at] = 0.0f; });
    const bool goes_on = chunk.span == segment_ && chunk.first == first_ + length_;
    segment_ = chunk.span, first_ = chunk.first, length_ = chunk.length;
    for (size_t p = 0; p < payloads_.size(); ++p) {
      begins_[p] = ends_[p] = goes_on ? ends_[p] : find(p, first_);
      const size_t end = payloads_[p].first[segment_ + 1];
      while (ends_[p] < end && payloads_[p].entries->indices[ends_[p]] < first_ + length_) ++ends_[p];
    }
    for_entries([&](int64_t at, float value) {
      soon(first_ + at);
      sums_[at] += value;
    });
  }

  // Calls emit(index, sum) for every entry: as often as there are payloads that have it, with the same sum.
  template <class Emit>
  void for_each(Emit&& emit) const {
    for_entries([&](int64_t at, float) { emit(first_ + at, sums_[at]); });
  }

  // Calls emit(index, sum) once for every element that has an entry, by increasing index.
  template <class Emit>
  void in_order(Emit&& emit) {
    for_entries([&](int64_t at, float) {
      marks_[at / 64] |= uint64_t(1) << (at % 64);
      words_[at / 4096] |= uint64_t(1) << (at / 64 % 64);
    });
    for (int64_t part = 0; part < kWindow / 4096; ++part) {
      for (uint64_t words = words_[part]; words; words &= words - 1) {
        const int64_t word = 64 * part + __builtin_ctzll(words);
        for (uint64_t marks = marks_[word]; marks; marks &= marks - 1) {
          const int64_t at = 64 * word + __builtin_ctzll(marks);
          emit(first_ + at, sums_[at]);
        }
        marks_[word] = 0;
      }
      words_[part] = 0;
    }
  }

 private:
  // The first entry of a payload in the segment that is not before an index.
  size_t find(size_t p, int64_t index) const {
    const Sorted& payload = payloads_[p];
    const uint32_t* indices = payload.entries->indices;
    const uint32_t* end = indices + payload.first[segment_ + 1];
    return size_t(std::lower_bound(indices + payload.first[segment_], end, index) - indices);
  }

  // Calls body(where in the window, value) for every entry in it.
  template <class Body>
  void for_entries(Body&& body) const {
    for (size_t p = 0; p < payloads_.size(); ++p) {
      const uint32_t* indices = payloads_[p].entries->indices;
      const float* values = payloads_[p].entries->values;
      for (size_t entry = begins_[p]; entry < ends_[p]; ++entry) body(int64_t(indices[entry]) - first_, values[entry]);
    }
  }

  const std::vector<Sorted>& payloads_;
  std::vector<size_t> begins_, ends_;  // of each payload's entries in the window
  size_t segment_ = size_t(-1);
  int64_t first_ = 0, length_ = 0;
  float sums_[kWindow] = {};
  uint64_t marks_[kWindow / 64] = {}, words_[kWindow / 4096] = {};  // where entries are, and where marks are
};

// Calls body(window, chunk) for all chunks, with a window for each thread.
template <class Body>
void for_windows(const std::vector<int64_t>& lengths, const std::vector<Sorted>& payloads, int threads, Body&& body) {
  std::vector<std::unique_ptr<Window>> windows;
  for (int t = threads_for(lengths, threads, kWindow); t > 0; --t) windows.emplace_back(new Window(payloads));
  for_chunks(lengths, threads, [&](const Chunk& chunk) { body(*windows[size_t(chunk.thread)], chunk); }, kWindow);
}

}  // namespace terngrad
