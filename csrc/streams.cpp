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

// Calls body(first, count) for all streams: as many calls for each thread as it takes to leave no more to one than are
// coded at once. Each thread takes the next that are left.
template <class Body>
void for_streams(size_t count, int64_t total, int threads, Body&& body) {
  constexpr int64_t kWorthAThread = 1 << 14;
  threads = int(std::max<int64_t>(1, std::min({int64_t(threads), int64_t(count), total / kWorthAThread})));
  const size_t calls = size_t(threads * ceil_div(int64_t(count), threads * kStreamsAbreast));
  std::atomic<size_t> next{0};
  on_threads(threads, [&](int) {
    for (size_t i; (i = next++) < calls;) {
      const size_t first = count * i / calls, last = count * (i + 1) / calls;
      body(first, int(last - first));
    }
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
  std::vector<Encoding> streams(count);
  uint8_t* slot = target;
  for (size_t i = 0; i < count; slot += spans[i].length, ++i)
    streams[i] = {symbols + spans[i].source, spans[i].length, slot, 0};
  for_streams(count, total, threads,
              [&](size_t first, int some) { kernels.encode_streams(alphabet, &streams[first], some); });
  for (size_t i = 0; i < count; ++i) lengths[i] = streams[i].num_bytes;
  if (std::any_of(lengths, lengths + count, [](int64_t length) { return length < 0; }))
    throw std::invalid_argument("a symbol is outside 0.." + std::to_string(alphabet.size - 1));
  for (const Encoding& stream : streams) {  // from the end of its slot to behind the stream before
    if (stream.num_bytes > 0)
      std::memmove(target, stream.slot + stream.length - stream.num_bytes, size_t(stream.num_bytes));
    target += stream.num_bytes;
  }
}

bool entropy_decode(const Kernels& kernels, const Alphabet& alphabet, const uint8_t* payload, int64_t num_bytes,
                    const int64_t* lengths, const Span* spans, size_t count, uint8_t* symbols, int64_t num_symbols,
                    int threads) {
  const int64_t total = check(spans, count, num_symbols);
  std::vector<Decoding> streams(count);
  for (size_t i = 0; i < count; ++i) {
    if (lengths[i] < 0 || lengths[i] > spans[i].length || lengths[i] > num_bytes) return false;
    streams[i] = {payload, lengths[i], symbols + spans[i].source, spans[i].length};
    payload += lengths[i];
    num_bytes -= lengths[i];
  }
  std::atomic<bool> good{true};
  for_streams(count, total, threads, [&](size_t first, int some) {
    if (!kernels.decode_streams(alphabet, &streams[first], some)) good = false;
  });
  return good;
}

}  // namespace terngrad
