// Entropy-coded streams: alphabets, bounds, threads. The coder itself is entropy.h.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <numeric>

#include "driver.h"
#include "chunks.h"

namespace terngrad {
namespace {

// The symbol with the same digits in ascending order, the most significant the smallest.
int sorted_symbol(int symbol, int radix, int digits) {
  int sorted[8];
  for (int k = 0; k < digits; ++k, symbol /= radix) sorted[k] = symbol % radix;
  std::sort(sorted, sorted + digits);
  return std::accumulate(sorted, sorted + digits, 0, [radix](int value, int digit) { return value * radix + digit; });
}

// Returns how many symbols the spans have together.
int64_t check(const Span* spans, size_t count, int64_t num_symbols) {
  int64_t total = 0;
  for (size_t i = 0; i < count; ++i) {
    require_within("symbols up to", i, spans[i].source, spans[i].length, num_symbols);
    require(spans[i].length <= kStreamSymbols, "symbols of a stream", i, spans[i].length, kStreamSymbols);
    total += spans[i].length;
  }
  return total;
}

// Calls body(stream) for every stream; each thread takes the next one that is left.
template <class Body>
void for_streams(size_t count, int64_t total, int threads, Body&& body) {
  constexpr int64_t kWorthAThread = 1 << 14;
  threads = int(std::max<int64_t>(1, std::min({int64_t(threads), int64_t(count), total / kWorthAThread})));
  std::atomic<size_t> next{0};
  on_threads(threads, [&](int) {
    for (size_t i; (i = next++) < count;) body(i);
  });
}

}  // namespace

Alphabet make_alphabet(int radix, int digits) {
  int size = 1;
  for (int k = 0; k < digits && radix >= 2 && size <= 256; ++k) size = radix > 256 ? 257 : size * radix;
  if (size < 2 || size > 256)
    throw std::invalid_argument("symbols of " + std::to_string(digits) + " digits of radix " + std::to_string(radix) +
                                ": need 2..256 of them");
  Alphabet alphabet{};
  alphabet.size = size;
  for (int s = 0; s < size; ++s) {  // a class is numbered when its smallest symbol, the sorted one, comes up
    const int sorted = sorted_symbol(s, radix, digits);
    alphabet.class_of[s] = sorted == s ? uint8_t(alphabet.num_classes++) : alphabet.class_of[sorted];
    ++alphabet.class_size[alphabet.class_of[s]];
  }
  return alphabet;
}

void entropy_encode(const Kernels& kernels, const Alphabet& alphabet, const uint8_t* symbols, int64_t num_symbols,
                    const Span* spans, size_t count, uint8_t* target, int64_t num_bytes, int64_t* lengths,
                    int threads) {
  const int64_t total = check(spans, count, num_symbols);
  if (total > num_bytes)
    throw std::invalid_argument("the target has room for " + std::to_string(num_bytes) + " bytes, need " +
                                std::to_string(total));
  std::vector<int64_t> slots(count);  // where there is room for the stream, however long it gets
  for (size_t i = 1; i < count; ++i) slots[i] = slots[i - 1] + spans[i - 1].length;
  std::atomic<bool> good{true};
  for_streams(count, total, threads, [&](size_t i) {
    lengths[i] = kernels.encode_stream(alphabet, symbols + spans[i].source, spans[i].length, target + slots[i]);
    if (lengths[i] < 0) good = false;
  });
  if (!good) throw std::invalid_argument("a symbol is outside 0.." + std::to_string(alphabet.size - 1));
  for (size_t i = 0, at = 0; i < count; at += size_t(lengths[i]), ++i)
    if (lengths[i] > 0)
      std::memmove(target + at, target + slots[i] + spans[i].length - lengths[i], size_t(lengths[i]));
}

bool entropy_decode(const Kernels& kernels, const Alphabet& alphabet, const uint8_t* payload, int64_t num_bytes,
                    const int64_t* lengths, const Span* spans, size_t count, uint8_t* symbols, int64_t num_symbols,
                    int threads) {
  const int64_t total = check(spans, count, num_symbols);
  std::vector<int64_t> offsets(count);
  int64_t used = 0;
  for (size_t i = 0; i < count; ++i) {
    if (lengths[i] < 0 || lengths[i] > spans[i].length || lengths[i] > num_bytes - used) return false;
    offsets[i] = used;
    used += lengths[i];
  }
  std::atomic<bool> good{true};
  for_streams(count, total, threads, [&](size_t i) {
    if (!kernels.decode_stream(alphabet, payload + offsets[i], lengths[i], symbols + spans[i].source, spans[i].length))
      good = false;
  });
  return good;
}

}  // namespace terngrad
