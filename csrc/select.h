// Takes the elements with |v| above a threshold, in order. A tile whose maximum is not above it is not even read, which
// at a density of 0.1 % leaves one tile in sixteen.
//
// What stays of a taken v is factor * v, and its velocity becomes 0. With factor 0 that is momentum factor masking. With
// factor m and no velocities it is SAMomentum, which is
//
//     u <- m u + g;   send where |u| > t;   u <- u / m where not sent
//
// With w = m u in store that reads  u <- w + g;  w <- m u where sent, w <- u elsewhere: unsent elements need no
// division, nor the multiplication that undoes it, and one pass over all of them is saved. The two differ by the
// rounding of m (u / m). So `residual` holds w, and what is taken is u.
#pragma once

#include "rows.h"

namespace {

static_assert(kChunk / kTile <= 64, "the tiles of a chunk are the bits of a word");

// Bit i says whether test(row) holds for value i, of at most 64.
template <class Test>
TG_INLINE uint64_t bits_where(const float* values, int64_t count, Test&& test) {
  uint64_t bits = 0;
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) bits |= lane_bits(test(load_row(values + i))) << i;
  if (i < count) {
    float tail[kLanes] = {};
    std::memcpy(tail, values + i, size_t(count - i) * sizeof(float));
    bits |= (lane_bits(test(load_row(tail))) & ((uint64_t(1) << (count - i)) - 1)) << i;
  }
  return bits;
}

// Calls body(first element, bits of the elements above the threshold) for the tiles of a chunk that may have any.
template <class Body>
TG_INLINE void for_tiles_above(const float* residual, const float* maxima, int64_t length, float threshold,
                               Body&& body) {
  const VF limit = splat(threshold);
  // Not "maximum > threshold": a maximum that is NaN hides the others of its tile.
  uint64_t tiles = bits_where(maxima, (length + kTile - 1) / kTile, [&](VF maximum) __attribute__((always_inline)) {
    return ~(VI)(maximum <= limit);
  });
  for (uint64_t left = tiles; left; left &= left - 1) {
    const char* tile = (const char*)(residual + __builtin_ctzll(left) * kTile);
    for (int line = 0; line < 4; ++line) __builtin_prefetch(tile + 64 * line);
  }
  for (; tiles; tiles &= tiles - 1) {
    const int64_t first = __builtin_ctzll(tiles) * kTile, count = length - first < kTile ? length - first : kTile;
    body(first, bits_where(residual + first, count, [&](VF v) __attribute__((always_inline)) {
           return (VI)(magnitude(v) > limit);
         }));
  }
}

int64_t chunk_count(const float* residual, const float* maxima, int64_t length, float threshold) {
  int64_t count = 0;
  for_tiles_above(residual, maxima, length, threshold,
                  [&](int64_t, uint64_t above) { count += __builtin_popcountll(above); });
  return count;
}

int64_t chunk_select(float* residual, float* velocity, const float* maxima, int64_t length, float threshold,
                     float factor, uint32_t first, Picks picks) {
  int64_t count = 0;
  for_tiles_above(residual, maxima, length, threshold, [&](int64_t tile, uint64_t above) {
    for (; above; above &= above - 1, ++count) {
      const int64_t i = tile + __builtin_ctzll(above);
      const float value = residual[i];
      picks.indices[count] = first + uint32_t(i);
      picks.values[count] = value;
      residual[i] = factor == 0.0f ? 0.0f : factor * value;  // 0 * value would be -0 or NaN
      if (velocity) {
        picks.velocities[count] = velocity[i];
        velocity[i] = 0.0f;
      }
    }
  });
  return count;
}

}  // namespace
