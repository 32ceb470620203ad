// Spans cut into chunks for threads, and what was found in chunks put together in an order that threads do not change.
#pragma once

#include <algorithm>
#include <cstring>
#include <exception>
#include <limits>
#include <thread>
#include <vector>

#include "bounds.h"

namespace terngrad {

template <class Body>
void on_threads(int threads, Body&& body) {
  std::vector<std::exception_ptr> failures(size_t(std::max(threads, 1)));
  const auto guarded = [&](int thread) {
    try {
      body(thread);
    } catch (...) {
      failures[size_t(thread)] = std::current_exception();
    }
  };
  std::vector<std::thread> others;
  for (int t = 1; t < threads; ++t) others.emplace_back([&guarded, t] { guarded(t); });
  guarded(0);
  for (std::thread& other : others) other.join();
  for (const std::exception_ptr& failure : failures)
    if (failure) std::rethrow_exception(failure);
}

// `length` elements from `first` of a span; the number-th of all chunks, and the thread that works on it.
struct Chunk {
  size_t span;
  int64_t first, length;
  size_t number;
  int thread;
};

inline size_t num_chunks(const std::vector<int64_t>& lengths, int64_t size = kChunk) {
  size_t total = 0;
  for (int64_t length : lengths) total += size_t(ceil_div(length, size));
  return total;
}

// How many threads for_chunks() takes of those it is offered: each is worth its start for 16 chunks of kChunk.
inline int threads_for(const std::vector<int64_t>& lengths, int threads, int64_t size = kChunk) {
  const int64_t worth = int64_t(num_chunks(lengths, size)) * size / (16 * kChunk);
  return int(std::max<int64_t>(1, std::min<int64_t>(threads, worth)));
}

// Calls body(chunk) for every chunk. A thread gets consecutive chunks, in order, and a later thread later ones.
template <class Body>
void for_chunks(const std::vector<int64_t>& lengths, int threads, Body&& body, int64_t size = kChunk) {
  std::vector<int64_t> first_chunk(lengths.size() + 1, 0);
  for (size_t i = 0; i < lengths.size(); ++i) first_chunk[i + 1] = first_chunk[i] + ceil_div(lengths[i], size);
  const int64_t total = first_chunk.back();
  threads = threads_for(lengths, threads, size);
  on_threads(threads, [&](int thread) {
    const int64_t from = total * thread / threads, to = total * (thread + 1) / threads;
    size_t span = size_t(std::upper_bound(first_chunk.begin(), first_chunk.end(), from) - first_chunk.begin()) - 1;
    for (int64_t number = from; number < to; ++number) {
      while (number >= first_chunk[span + 1]) ++span;
      const int64_t first = (number - first_chunk[span]) * size;
      body(Chunk{span, first, std::min(size, lengths[span] - first), size_t(number), thread});
    }
  });
}

// Sums adjacent pairs, in place, until one is left; the same tree whatever the number of threads.
inline double pairwise_sum(double* values, size_t count) {
  for (; count > 1; count = (count + 1) / 2) {
    for (size_t i = 0; i < count / 2; ++i) values[i] = values[2 * i] + values[2 * i + 1];
    if (count % 2) values[count / 2] = values[count - 1];
  }
  return count ? values[0] : 0.0;
}

// Calls body(span, first chunk, one behind its last chunk) for every span.
template <class Body>
void for_spans(const std::vector<int64_t>& lengths, Body&& body) {
  size_t chunk = 0;
  for (size_t i = 0; i < lengths.size(); ++i) {
    const size_t end = chunk + size_t(ceil_div(lengths[i], kChunk));
    body(i, chunk, end);
    chunk = end;
  }
}

struct SpanStatistics {
  float* largest;
  double *sum, *squares;
};

// The statistics of spans from those of their chunks; all NaN where an element is not finite.
inline void combine(const std::vector<Statistics>& chunks, const std::vector<int64_t>& lengths, SpanStatistics spans) {
  std::vector<double> sums(chunks.size()), squares(chunks.size());
  for (size_t i = 0; i < chunks.size(); ++i) {
    sums[i] = chunks[i].sum;
    squares[i] = chunks[i].sum_of_squares;
  }
  for_spans(lengths, [&](size_t i, size_t from, size_t to) {
    int32_t largest = 0;
    for (size_t chunk = from; chunk < to; ++chunk) largest = std::max(largest, chunks[chunk].largest_bits);
    std::memcpy(&spans.largest[i], &largest, 4);
    spans.sum[i] = pairwise_sum(sums.data() + from, to - from);
    spans.squares[i] = pairwise_sum(squares.data() + from, to - from);
    if (largest >= 0x7f800000) {
      spans.largest[i] = std::numeric_limits<float>::quiet_NaN();
      spans.sum[i] = spans.squares[i] = std::numeric_limits<double>::quiet_NaN();
    }
  });
}

}  // namespace terngrad
