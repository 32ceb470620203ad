// Draws that are a function of (key, offset), not a stream: element `offset` of a parameter gets the same 24 bits
// whatever the bucket, the thread or the instruction set. The 64-bit key stands for (seed, step, rank, parameter).
//
// A Weyl sequence from the first half of the key goes through two rounds of multiply and xor-shift (the constants are
// the [16 21f0aaad 15 d35a2d97 15] of Wellons' hash-prospector, low-bias32 family); the second half of the key enters
// between the rounds, so that two keys never give the same sequence merely shifted or permuted.
#pragma once

#include "simd.h"

namespace {

constexpr uint32_t kWeyl = 0x9e3779b9u;

TG_INLINE VU weyl_start(uint32_t key0, uint64_t offset) {
  return splat(key0 + uint32_t(offset) * kWeyl) + lane_index() * kWeyl;
}

TG_INLINE VU weyl_next(VU x) { return x + kWeyl * uint32_t(kLanes); }

// Uniform on 0 .. 2^24 - 1.
TG_INLINE VI draw24(VU x, uint32_t key1) {
  x ^= x >> 16;
  x *= 0x21f0aaadu;
  x ^= x >> 15;
  x ^= key1;
  x *= 0xd35a2d97u;
  return (VI)(x >> 8);
}

}  // namespace
