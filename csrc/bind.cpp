// Python's view of the native core. Tensors arrive as addresses and element counts, tables as numpy arrays; the GIL is
// released while a kernel runs.
#include "bind.h"

namespace nb = nanobind;
using namespace terngrad;

namespace {

using Table = Array<const int64_t, nb::shape<-1, 6>>;
using Lengths = Array<const int64_t, nb::ndim<1>>;
using Keys = Array<const uint32_t, nb::shape<-1, 2>>;

Code code_of(int code) {
  if (code < 0 || code > 1) throw std::invalid_argument("code " + std::to_string(code) + ": need 0 or 1");
  return Code(code);
}

Runs runs(const Table& table, int64_t block) {
  return {reinterpret_cast<const Run*>(table.data()), table.shape(0), block};
}

Payloads payloads(const std::vector<uintptr_t>& addresses, int64_t num_bytes) {
  if (addresses.empty()) throw std::invalid_argument("no payloads: need at least one");
  Payloads result{{}, num_bytes};
  for (uintptr_t address : addresses) result.data.push_back(reinterpret_cast<const uint8_t*>(address));
  return result;
}

}  // namespace

NB_MODULE(_native, m) {
  m.def("available", [] {
    std::vector<std::string> names;
    for (const Kernels* kernels : available_kernels()) names.emplace_back(kernels->name);
    return names;
  });
  m.def(
      "statistics",
      [](const std::string& isa, uintptr_t data, int64_t numel, int element, Spans spans,
         Array<float, nb::ndim<1>> largest, Array<double, nb::ndim<1>> sum, Array<double, nb::ndim<1>> squares,
         int threads) {
        require_length("largest", largest.shape(0), spans.shape(0));
        require_length("sum", sum.shape(0), spans.shape(0));
        require_length("squares", squares.shape(0), spans.shape(0));
        statistics(kernels_named(isa), buffer(data, numel, element), reinterpret_cast<const Span*>(spans.data()),
                   spans.shape(0), largest.data(), sum.data(), squares.data(), threads);
      },
      Unlocked());
  m.def(
      "ternarize",
      [](const std::string& isa, uintptr_t data, int64_t numel, int element, int code, Table table, int64_t block,
         Keys keys, Floats limit, Floats step, uintptr_t packed, int64_t num_bytes, int threads) {
        require_length("keys", keys.shape(0), table.shape(0));
        ternarize(kernels_named(isa), buffer(data, numel, element), code_of(code), runs(table, block),
                  reinterpret_cast<const Key*>(keys.data()), scales(limit), scales(step),
                  reinterpret_cast<uint8_t*>(packed), num_bytes, threads);
      },
      Unlocked());
  m.def(
      "mean_shared",
      [](const std::string& isa, uintptr_t data, int64_t numel, int element, int code, Table table, int64_t block,
         const std::vector<uintptr_t>& packed, int64_t num_bytes, Floats scale, int threads) {
        return mean_shared(kernels_named(isa), buffer(data, numel, element), code_of(code), runs(table, block),
                           payloads(packed, num_bytes), scales(scale), threads);
      },
      Unlocked());
  m.def(
      "mean_own",
      [](const std::string& isa, uintptr_t data, int64_t numel, int element, int code, Table table, int64_t block,
         const std::vector<uintptr_t>& packed, int64_t num_bytes, Floats scale, int threads) {
        return mean_own(kernels_named(isa), buffer(data, numel, element), code_of(code), runs(table, block),
                        payloads(packed, num_bytes), scales(scale), threads);
      },
      Unlocked());
  m.def(
      "sum_levels",
      [](const std::string& isa, int code, Table table, const std::vector<uintptr_t>& packed, int64_t num_bytes,
         uintptr_t levels, int64_t num_level_bytes, int threads) {
        return sum_levels(kernels_named(isa), code_of(code), runs(table, 0), payloads(packed, num_bytes),
                          reinterpret_cast<uint8_t*>(levels), num_level_bytes, threads);
      },
      Unlocked());
  m.def(
      "mean_levels",
      [](const std::string& isa, uintptr_t data, int64_t numel, int element, Table table, int64_t block,
         int num_payloads, uintptr_t levels, int64_t num_bytes, Floats scale, int threads) {
        return mean_levels(kernels_named(isa), buffer(data, numel, element), runs(table, block), num_payloads,
                           reinterpret_cast<const uint8_t*>(levels), num_bytes, scales(scale), threads);
      },
      Unlocked());
  m.def(
      "sum_symbols",
      [](const std::string& isa, int code, Table table, const std::vector<uintptr_t>& packed, int64_t num_bytes,
         uintptr_t symbols, int64_t num_symbols, int threads) {
        return sum_symbols(kernels_named(isa), code_of(code), runs(table, 0), payloads(packed, num_bytes),
                           reinterpret_cast<uint8_t*>(symbols), num_symbols, threads);
      },
      Unlocked());
  m.def(
      "mean_symbols",
      [](const std::string& isa, uintptr_t data, int64_t numel, int element, Table table, int64_t block,
         int num_payloads, uintptr_t symbols, int64_t num_symbols, Floats scale, int threads) {
        return mean_symbols(kernels_named(isa), buffer(data, numel, element), runs(table, block), num_payloads,
                            reinterpret_cast<const uint8_t*>(symbols), num_symbols, scales(scale), threads);
      },
      Unlocked());
  m.def(
      "entropy_encode",
      [](const std::string& isa, int radix, int digits, uintptr_t symbols, int64_t num_symbols, Spans spans,
         uintptr_t target, int64_t num_bytes, Array<int64_t, nb::ndim<1>> lengths, int threads) {
        require_length("lengths", lengths.shape(0), spans.shape(0));
        entropy_encode(kernels_named(isa), make_alphabet(radix, digits), reinterpret_cast<const uint8_t*>(symbols),
                       num_symbols, reinterpret_cast<const Span*>(spans.data()), spans.shape(0),
                       reinterpret_cast<uint8_t*>(target), num_bytes, lengths.data(), threads);
      },
      Unlocked());
  m.def(
      "entropy_decode",
      [](const std::string& isa, int radix, int digits, uintptr_t payload, int64_t num_bytes, Lengths lengths,
         Spans spans, uintptr_t symbols, int64_t num_symbols, int threads) {
        require_length("lengths", lengths.shape(0), spans.shape(0));
        return entropy_decode(kernels_named(isa), make_alphabet(radix, digits),
                              reinterpret_cast<const uint8_t*>(payload), num_bytes, lengths.data(),
                              reinterpret_cast<const Span*>(spans.data()), spans.shape(0),
                              reinterpret_cast<uint8_t*>(symbols), num_symbols, threads);
      },
      Unlocked());
  m.def(
      "error",
      [](const std::string& isa, uintptr_t data, int64_t numel, int element, int code, Table table, int64_t block,
         uintptr_t packed, int64_t num_bytes, Floats scale, Array<int64_t, nb::ndim<1>> nonzero,
         Array<double, nb::ndim<1>> squared_error, int threads) {
        require_length("nonzero", nonzero.shape(0), table.shape(0));
        require_length("squared_error", squared_error.shape(0), table.shape(0));
        return error(kernels_named(isa), buffer(data, numel, element), code_of(code), runs(table, block),
                     reinterpret_cast<const uint8_t*>(packed), num_bytes, scales(scale), nonzero.data(),
                     squared_error.data(), threads);
      },
      Unlocked());
  bind_sparse(m);
}
