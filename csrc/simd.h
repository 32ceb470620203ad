// Eight-lane vectors, and the few operations on them that the kernels need.
//
// The types are GCC/Clang vector extensions, so one source compiles to AVX2, AVX-512VL, NEON or plain SSE2/scalar code.
// Where the generic form is slow and AVX2 has an instruction for it, that instruction is used; the result is the same
// to the last bit. Nothing here allocates, and nothing has external linkage: this file is compiled once per
// instruction set, and a shared inline function could be taken from the wrong one.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

// Vectors never cross a call that is not inlined, so their calling convention does not matter.
#pragma GCC diagnostic ignored "-Wpsabi"

#define TG_INLINE inline __attribute__((always_inline))

namespace {

constexpr int kLanes = 8;

typedef float VF __attribute__((vector_size(32)));
typedef int32_t VI __attribute__((vector_size(32)));
typedef uint32_t VU __attribute__((vector_size(32)));
typedef uint16_t VU16 __attribute__((vector_size(32)));
typedef uint8_t VU8 __attribute__((vector_size(32)));

struct Half { uint16_t bits; };      // IEEE binary16
struct BFloat16 { uint16_t bits; };  // the upper half of a binary32

TG_INLINE VF splat(float x) { return VF{x, x, x, x, x, x, x, x}; }
TG_INLINE VI splat(int32_t x) { return VI{x, x, x, x, x, x, x, x}; }
TG_INLINE VU splat(uint32_t x) { return VU{x, x, x, x, x, x, x, x}; }
TG_INLINE VU lane_index() { return VU{0, 1, 2, 3, 4, 5, 6, 7}; }

template <class V>
TG_INLINE V load_vector(const void* p) {
  V v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

template <class V>
TG_INLINE void store_vector(void* p, V v) {
  std::memcpy(p, &v, sizeof v);
}

// Far enough ahead that the hardware prefetcher's pause at each page is bridged; measured, not derived.
TG_INLINE void prefetch(const void* p) { __builtin_prefetch((const char*)p + 1536); }

TG_INLINE float half_to_float(uint16_t h) {
  const uint32_t sign = uint32_t(h & 0x8000u) << 16, rest = h & 0x7fffu;
  uint32_t bits = (rest << 13) + 0x38000000u;
  if (rest >= 0x7c00u) bits = 0x7f800000u | (rest << 13);  // infinity and NaN
  float value;
  if (rest < 0x0400u) {
    value = float(rest) * 0x1p-24f;  // zero and subnormals, exact
    std::memcpy(&bits, &value, 4);
  }
  bits |= sign;
  std::memcpy(&value, &bits, 4);
  return value;
}

TG_INLINE uint16_t float_to_half(float f) {
  uint32_t bits;
  std::memcpy(&bits, &f, 4);
  const uint16_t sign = uint16_t((bits >> 16) & 0x8000u);
  bits &= 0x7fffffffu;
  if (bits > 0x7f800000u) return sign | 0x7e00u;
  if (bits >= 0x477ff000u) return sign | 0x7c00u;  // rounds to infinity
  if (bits < 0x38800000u) {                        // subnormal: let the adder round to nearest even
    float magnitude;
    std::memcpy(&magnitude, &bits, 4);
    magnitude += 0.5f;
    std::memcpy(&bits, &magnitude, 4);
    return sign | uint16_t(bits - 0x3f000000u);
  }
  bits += 0xfffu + ((bits >> 13) & 1u) - 0x38000000u;
  return sign | uint16_t(bits >> 13);
}

TG_INLINE uint16_t float_to_bfloat16(float f) {
  uint32_t bits;
  std::memcpy(&bits, &f, 4);
  return f != f ? uint16_t(0x7fc0u) : uint16_t((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

TG_INLINE VF load_row(const float* p) { return load_vector<VF>(p); }

TG_INLINE VF load_row(const BFloat16* p) {
#if defined(__AVX2__)
  return (VF)(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)p)), 16));
#else
  VU v;
  for (int i = 0; i < kLanes; ++i) v[i] = uint32_t(p[i].bits) << 16;
  return (VF)v;
#endif
}

TG_INLINE VF load_row(const Half* p) {
#if defined(__F16C__)
  return (VF)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p));
#else
  VF v;
  for (int i = 0; i < kLanes; ++i) v[i] = half_to_float(p[i].bits);
  return v;
#endif
}

TG_INLINE void store_row(float* p, VF v) { store_vector(p, v); }

TG_INLINE void store_row(BFloat16* p, VF v) {
  const VU bits = (VU)v;
  const VU rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const VU nan = (VU)(v != v);
  const VU result = (rounded & ~nan) | (nan & 0x7fc0u);
  for (int i = 0; i < kLanes; ++i) p[i].bits = uint16_t(result[i]);
}

TG_INLINE void store_row(Half* p, VF v) {
#if defined(__F16C__)
  _mm_storeu_si128((__m128i*)p, _mm256_cvtps_ph((__m256)v, _MM_FROUND_TO_NEAREST_INT));
#else
  for (int i = 0; i < kLanes; ++i) p[i].bits = float_to_half(v[i]);
#endif
}

TG_INLINE void store_value(float* p, float f) { *p = f; }
TG_INLINE void store_value(Half* p, float f) { p->bits = float_to_half(f); }
TG_INLINE void store_value(BFloat16* p, float f) { p->bits = float_to_bfloat16(f); }
// Eight bytes, one to a lane.
TG_INLINE VU load_bytes(const uint8_t* p) {
#if defined(__AVX2__)
  return (VU)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)p));
#else
  VU v;
  for (int i = 0; i < kLanes; ++i) v[i] = p[i];
  return v;
#endif
}

TG_INLINE void store_bytes(uint8_t* p, VU v) {
#if defined(__AVX2__)
  const __m128i words = _mm_packus_epi32(_mm256_castsi256_si128((__m256i)v), _mm256_extracti128_si256((__m256i)v, 1));
  _mm_storel_epi64((__m128i*)p, _mm_packus_epi16(words, words));
#else
  for (int i = 0; i < kLanes; ++i) p[i] = uint8_t(v[i]);
#endif
}

TG_INLINE VF to_float(VI v) { return __builtin_convertvector(v, VF); }

TG_INLINE VF magnitude(VF v) { return (VF)((VU)v & 0x7fffffffu); }

TG_INLINE VF minimum(VF a, VF b) {
#if defined(__AVX2__)
  return (VF)_mm256_min_ps((__m256)a, (__m256)b);
#else
  return a < b ? a : b;
#endif
}

TG_INLINE VI maximum(VI a, VI b) {
#if defined(__AVX2__)
  return (VI)_mm256_max_epi32((__m256i)a, (__m256i)b);
#else
  return a > b ? a : b;
#endif
}

// -1, 0 or +1: minus the sign of `value` where `mask` is all ones, else 0. (A value of zero never has its mask set.)
TG_INLINE VI negated_sign(VI mask, VF value) {
#if defined(__AVX2__)
  return (VI)_mm256_sign_epi32((__m256i)mask, (__m256i)value);
#else
  return mask & -(((VI)value >> 31) | 1);
#endif
}

// a where `mask` is all ones, b where it is zero.
TG_INLINE VF blend(VI mask, VF a, VF b) {
#if defined(__AVX2__)
  return (VF)_mm256_blendv_ps((__m256)b, (__m256)a, (__m256)mask);
#else
  return (VF)((mask & (VI)a) | (~mask & (VI)b));
#endif
}

// Bit i is lane i of a mask of all ones or zeros.
TG_INLINE uint64_t lane_bits(VI mask) {
#if defined(__AVX2__)
  return uint64_t(uint32_t(_mm256_movemask_ps((__m256)mask)));
#else
  uint64_t bits = 0;
  for (int i = 0; i < kLanes; ++i) bits |= uint64_t(mask[i] & 1) << i;
  return bits;
#endif
}

TG_INLINE int32_t largest_lane(VI v) {
  int32_t largest = v[0];
  for (int i = 1; i < kLanes; ++i) largest = v[i] > largest ? v[i] : largest;
  return largest;
}

TG_INLINE bool any(VU v) {
#if defined(__AVX2__)
  return !_mm256_testz_si256((__m256i)v, (__m256i)v);
#else
  uint32_t all = 0;
  for (int i = 0; i < kLanes; ++i) all |= v[i];
  return all != 0;
#endif
}

TG_INLINE VU multiply_high(VU a, VU b) {
#if defined(__AVX2__)
  const __m256i even = _mm256_srli_epi64(_mm256_mul_epu32((__m256i)a, (__m256i)b), 32);
  const __m256i odd = _mm256_mul_epu32(_mm256_srli_epi64((__m256i)a, 32), _mm256_srli_epi64((__m256i)b, 32));
  return (VU)_mm256_blend_epi32(even, odd, 0xaa);
#else
  VU v;
  for (int i = 0; i < kLanes; ++i) v[i] = uint32_t((uint64_t(a[i]) * b[i]) >> 32);
  return v;
#endif
}

}  // namespace
