#include "sparse.h"

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <string>

#include "bounds.h"
#include "chunks.h"
#include "entries.h"
#include "gaps.h"
#include "palettes.h"
#include "rows.h"

namespace terngrad {
namespace {

// Segments are numbered with 32 bits.
void require_segment(size_t segment, int64_t numel) {
  if (numel < 0 || numel > int64_t(1) << 32)
    throw std::invalid_argument("segment " + std::to_string(segment) + " has " + std::to_string(numel) +
                                " elements, need 0..2^32");
}

void require_states(const char* what, States states, const std::vector<int64_t>& lengths) {
  require_count(what, int64_t(states.count), int64_t(lengths.size()));
  for (size_t i = 0; i < lengths.size(); ++i)
    if (states.rows[i].numel != lengths[i])
      throw std::invalid_argument(std::string(what) + ": segment " + std::to_string(i) + " has " +
                                  std::to_string(lengths[i]) + " elements, its tensor " +
                                  std::to_string(states.rows[i].numel));
}

std::vector<int64_t> lengths_of(States states) {
  std::vector<int64_t> lengths(states.count);
  for (size_t i = 0; i < states.count; ++i) {
    require_segment(i, states.rows[i].numel);
    lengths[i] = states.rows[i].numel;
  }
  return lengths;
}

// The first tile of each segment, and behind the last one the number of all.
std::vector<int64_t> first_tiles(const std::vector<int64_t>& lengths) {
  std::vector<int64_t> first(lengths.size() + 1, 0);
  for (size_t i = 0; i < lengths.size(); ++i) first[i + 1] = first[i] + ceil_div(lengths[i], kTile);
  return first;
}

// Calls body(state's element, entry number) for every entry; throws before the first if one is outside its segment.
template <class Body>
void for_entries(States states, const Entries& entries, Body&& body) {
  const std::vector<int64_t> lengths = lengths_of(states);
  const std::vector<size_t> first = first_entries(entries, lengths.size());
  for (size_t i = 0; i < lengths.size(); ++i)
    for (size_t entry = first[i]; entry < first[i + 1]; ++entry)
      if (entries.indices[entry] >= lengths[i])
        throw std::invalid_argument("entry " + std::to_string(entry) + " has index " +
                                    std::to_string(entries.indices[entry]) + " in segment " + std::to_string(i) +
                                    " of " + std::to_string(lengths[i]) + " elements");
  for (size_t i = 0; i < lengths.size(); ++i)
    for (size_t entry = first[i]; entry < first[i + 1]; ++entry)
      body(states.rows[i].data()[entries.indices[entry]], entry);
}

// One after the other what the threads have found.
Picked joined(std::vector<Picked>& parts) {
  Picked all = std::move(parts.front());
  for (size_t t = 1; t < parts.size(); ++t) {
    for (size_t i = 0; i < all.counts.size(); ++i) all.counts[i] += parts[t].counts[i];
    all.indices.append(parts[t].indices);
    all.values.append(parts[t].values);
    all.velocities.append(parts[t].velocities);
  }
  return all;
}

std::vector<Picked> parts_for(int threads, size_t num_segments) {
  std::vector<Picked> parts(static_cast<size_t>(threads));
  for (Picked& part : parts) part.counts.assign(num_segments, 0);
  return parts;
}

}  // namespace

void accumulate(const Kernels& kernels, Buffer buffer, const Span* spans, size_t count, States velocities,
                States residuals, Scales factors, float momentum, bool nesterov, bool clear, float* maxima,
                int64_t num_maxima, Accumulated result, int threads) {
  const std::vector<int64_t> lengths = checked_lengths(buffer, spans, count);
  require_states("residuals", residuals, lengths);
  if (velocities.count) require_states("velocities", velocities, lengths);
  require_count("factors", factors.count, int64_t(count));
  const std::vector<int64_t> tiles = first_tiles(lengths);
  require_count("maxima", num_maxima, tiles.back());
  const Rule rule = !velocities.count ? Rule::kPlain : nesterov ? Rule::kNesterov : Rule::kMomentum;
  std::vector<Statistics> found(num_chunks(lengths));
  std::vector<uint8_t> finite(found.size());
  for_chunks(lengths, threads, [&](const Chunk& chunk) {
    const size_t i = chunk.span;
    bool good;
    found[chunk.number] = kernels.chunk_accumulate(
        buffer.element, {rule, clear, factors.values[i], momentum}, at(buffer, spans[i].source + chunk.first),
        velocities.count ? velocities.rows[i].data() + chunk.first : nullptr, residuals.rows[i].data() + chunk.first,
        maxima + tiles[i] + chunk.first / kTile, chunk.length, &good);
    finite[chunk.number] = good;
  });
  combine(found, lengths, {result.largest, result.sum, result.squares});
  for_spans(lengths, [&](size_t i, size_t from, size_t to) {
    const auto begin = finite.begin();
    result.finite[i] = std::all_of(begin + int64_t(from), begin + int64_t(to), [](uint8_t good) { return good; });
  });
}

Picked select_entries(const Kernels& kernels, States residuals, States velocities, Scales maxima, Scales thresholds,
                      float factor, int threads) {
  const std::vector<int64_t> lengths = lengths_of(residuals), tiles = first_tiles(lengths);
  if (velocities.count) require_states("velocities", velocities, lengths);
  require_count("maxima", maxima.count, tiles.back());
  require_count("thresholds", thresholds.count, int64_t(lengths.size()));
  std::vector<Picked> parts = parts_for(threads_for(lengths, threads, kSearch), lengths.size());
  const auto take = [&](const Chunk& chunk) {
    Picked& part = parts[size_t(chunk.thread)];
    const size_t i = chunk.span, room = size_t(chunk.length);
    float* velocity = velocities.count ? velocities.rows[i].data() + chunk.first : nullptr;
    const Picks picks = {part.indices.room(room), part.values.room(room),
                         velocity ? part.velocities.room(room) : nullptr};
    const int64_t count = kernels.select_above(
        residuals.rows[i].data() + chunk.first, velocity, maxima.values + tiles[i] + chunk.first / kTile, chunk.length,
        thresholds.values[i], factor, uint32_t(chunk.first), picks);
    part.counts[i] += count;
    part.indices.grow(size_t(count));
    part.values.grow(size_t(count));
    if (velocity) part.velocities.grow(size_t(count));
  };
  for_chunks(lengths, threads, take, kSearch);
  return joined(parts);
}

void restore_entries(States residuals, States velocities, const Entries& entries, Scales saved) {
  if (velocities.count) {
    require_states("velocities", velocities, lengths_of(residuals));
    require_count("saved velocities", saved.count, int64_t(entries.num_indices));
  }
  for_entries(residuals, entries, [&](float& v, size_t entry) { v = entries.values[entry]; });
  if (velocities.count) for_entries(velocities, entries, [&](float& u, size_t entry) { u = saved.values[entry]; });
}

void add_entries(States residuals, const Entries& entries) {
  for_entries(residuals, entries, [&](float& v, size_t entry) { v += entries.values[entry]; });
}

bool scatter_mean(Buffer buffer, const Span* spans, size_t count, const std::vector<Entries>& payloads, int num_ranks,
                  int threads) {
  const std::vector<int64_t> lengths = checked_lengths(buffer, spans, count);
  if (num_ranks < 1) throw std::invalid_argument("mean of " + std::to_string(num_ranks) + " ranks: need at least 1");
  for (size_t i = 0; i < count; ++i) require_segment(i, lengths[i]);
  const std::vector<Sorted> sorted = sorted_entries(payloads, lengths);
  if (sorted.empty()) return false;
  const float share = 1.0f / float(num_ranks);
  with_element(buffer.element, [&](auto tag) {
    auto* target = static_cast<decltype(tag)*>(buffer.data);
    for_windows(lengths, sorted, threads, [&](Window& window, const Chunk& chunk) {
      auto* const segment = target + spans[chunk.span].source;
      window.gather(chunk, [&](int64_t index) { __builtin_prefetch(segment + index, 1); });
      window.for_each([&](int64_t index, float sum) { store_value(segment + index, sum * share); });
    });
  });
  return true;
}

bool merge_entries(const int64_t* lengths_given, size_t count, const std::vector<Entries>& payloads, int threads,
                   Picked& merged) {
  const std::vector<int64_t> lengths(lengths_given, lengths_given + count);
  for (size_t i = 0; i < count; ++i) require_segment(i, lengths[i]);
  const std::vector<Sorted> sorted = sorted_entries(payloads, lengths);
  if (sorted.empty()) return false;
  std::vector<Picked> parts = parts_for(threads_for(lengths, threads, kWindow), count);
  size_t most = 0;
  for (const Entries& entries : payloads) most += entries.num_indices;
  most = std::min(most, size_t(std::accumulate(lengths.begin(), lengths.end(), int64_t(0))));
  for (Picked& part : parts) {
    part.indices.room(most);
    part.values.room(most);
  }
  for_windows(lengths, sorted, threads, [&](Window& window, const Chunk& chunk) {
    Picked& part = parts[size_t(chunk.thread)];
    window.gather(chunk, [](int64_t) {});
    window.in_order([&](int64_t index, float sum) {
      *part.indices.room(1) = uint32_t(index);
      *part.values.room(1) = sum;
      part.indices.grow(1);
      part.values.grow(1);
      ++part.counts[chunk.span];
    });
  });
  merged = joined(parts);
  return true;
}

namespace {

void require_positions(int64_t limit) {
  if (limit < 0 || limit > kMaxPositions)
    throw std::invalid_argument("gaps among " + std::to_string(limit) + " positions: need 0..2^48");
}

}  // namespace

Growing<uint8_t> encode_gaps(const int64_t* positions, size_t count, int64_t limit) {
  constexpr size_t batch = 1024;
  require_positions(limit);
  Growing<uint8_t> bytes;
  if (count == 0) return bytes;
  int64_t previous = -1;
  for (size_t i = 0; i < count; ++i) {
    if (positions[i] <= previous || positions[i] >= limit)
      throw std::invalid_argument("position " + std::to_string(positions[i]) + " after " + std::to_string(previous) +
                                  " of " + std::to_string(limit) + ": positions must increase and be below the limit");
    previous = positions[i];
  }
  GapEncoder encoder{{uint64_t(limit), count}, {nullptr}};
  for (size_t first = 0; first < count; first += batch) {
    const size_t end = std::min(first + batch, count);
    uint8_t* const start = bytes.room((end - first) * kMaxGapBytes + 8);
    encoder.bits.out = start;
    for (size_t i = first; i < end; ++i) encoder.put(positions[i]);
    bytes.grow(size_t(encoder.bits.out - start));
  }
  if (encoder.bits.num_waiting) {
    *bytes.room(1) = uint8_t(encoder.bits.waiting);
    bytes.grow(1);
  }
  return bytes;
}

bool decode_gaps(const uint8_t* data, size_t size, int64_t count, int64_t limit, Growing<int64_t>& positions) {
  require_positions(limit);
  if (count < 0) throw std::invalid_argument(std::to_string(count) + " gaps: need 0 or more");
  if (uint64_t(count) > 8 * uint64_t(size)) return false;  // before any room is made for them
  int64_t* const target = positions.room(size_t(count));
  if (!decode_positions(data, size, uint64_t(limit), size_t(count), target)) return false;
  positions.grow(size_t(count));
  return true;
}

Palettes find_palettes(const float* values, size_t num_values, const int64_t* counts, size_t num_counts) {
  const Entries all = {counts, num_counts, nullptr, num_values, values, num_values};
  const std::vector<size_t> first = first_entries(all, num_counts);
  Palettes found;
  uint16_t* const sizes = found.sizes.room(num_counts);
  Palette palette;
  for (size_t i = 0; i < num_counts; ++i) {
    const size_t count = first[i + 1] - first[i];
    uint16_t* const ranks = found.ranks.room(count);
    const bool few = palette.find(values + first[i], count, ranks);
    const size_t listed = few ? palette.size() : count;
    float* const table = found.table.room(listed);
    if (few) {
      palette.sort(table, ranks, count);
      found.ranks.grow(count);
    } else if (count) {
      std::memcpy(table, values + first[i], 4 * count);
    }
    found.table.grow(listed);
    sizes[i] = uint16_t(few ? listed : 0);
  }
  found.sizes.grow(num_counts);
  return found;
}

}  // namespace terngrad
