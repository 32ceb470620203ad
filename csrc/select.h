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

// Tiles between asking for memory and using it. Measured: less than 4 and 2 is slow, more makes no difference.
constexpr int kFar = 16, kNear = 8;

// The numbers of the tiles that may have elements above the threshold.
TG_INLINE int find_tiles(const float* maxima, int64_t num_tiles, VF threshold, uint16_t* found) {
  int count = 0;
  for (int64_t first = 0; first < num_tiles; first += 64) {
    // Not "maximum > threshold": a maximum that is NaN hides the others of its tile.
    uint64_t bits = bits_where(maxima + first, num_tiles - first < 64 ? num_tiles - first : 64,
                               [&](VF maximum) __attribute__((always_inline)) { return ~(VI)(maximum <= threshold); });
    for (; bits; bits &= bits - 1) found[count++] = uint16_t(first + __builtin_ctzll(bits));
  }
  return count;
}

TG_INLINE void prefetch_tile(const float* tile) {
  for (int line = 0; line < 4; ++line) __builtin_prefetch(tile + 16 * line);
}

// Calls body(first element of a tile, bits of its elements above the threshold) for every tile that may have any, and
// soon(the same) some tiles before that. Tiles are too far apart for the processor to fetch them by itself.
template <class Soon, class Body>
TG_INLINE void for_tiles_above(const float* residual, const float* maxima, int64_t length, float threshold,
                               Soon&& soon, Body&& body) {
  const VF limit = splat(threshold);
  uint16_t tiles[kSearch / kTile];
  uint64_t above[kNear];
  const int count = find_tiles(maxima, (length + kTile - 1) / kTile, limit, tiles);
  for (int i = 0; i < kFar && i < count; ++i) prefetch_tile(residual + tiles[i] * kTile);
  for (int i = 0; i < count + kNear; ++i) {
    if (i >= kNear) body(tiles[i - kNear] * kTile, above[i % kNear]);
    if (i >= count) continue;
    if (i + kFar < count) prefetch_tile(residual + tiles[i + kFar] * kTile);
    const int64_t first = tiles[i] * kTile;
    above[i % kNear] = bits_where(residual + first, length - first < kTile ? length - first : kTile,
                                  [&](VF v) __attribute__((always_inline)) { return (VI)(magnitude(v) > limit); });
    soon(first, above[i % kNear]);
  }
}

int64_t select_above(float* residual, float* velocity, const float* maxima, int64_t length, float threshold,
                     float factor, uint32_t first, Picks picks) {
  int64_t count = 0;
  const auto fetch = [&](int64_t tile, uint64_t above) {
    if (velocity)
      for (; above; above &= above - 1) __builtin_prefetch(velocity + tile + __builtin_ctzll(above), 1);
  };
  const auto take = [&](int64_t tile, uint64_t above) {
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
  };
  for_tiles_above(residual, maxima, length, threshold, fetch, take);
  return count;
}

}  // namespace
