// Python's view of sparse gradients. What a kernel finds is as long as it turns out to be, and leaves as numpy arrays
// that own their memory.
#include "bind.h"
#include "sparse.h"

namespace terngrad {
namespace {

using StateTable = Array<const int64_t, nb::shape<-1, 2>>;
using Counts = Array<const int64_t, nb::ndim<1>>;
using Indices = Array<const uint32_t, nb::ndim<1>>;
using Bytes = Array<const uint8_t, nb::ndim<1>>;

States states(const StateTable& table) {
  return {reinterpret_cast<const State*>(table.data()), table.shape(0)};
}

Entries entries(const Counts& counts, const Indices& indices, const Floats& values) {
  return {counts.data(), counts.shape(0), indices.data(), indices.shape(0), values.data(), values.shape(0)};
}

std::vector<Entries> all_entries(const std::vector<Counts>& counts, const std::vector<Indices>& indices,
                                 const std::vector<Floats>& values) {
  if (counts.size() != indices.size() || counts.size() != values.size())
    throw std::invalid_argument("payloads: " + std::to_string(counts.size()) + " counts, " +
                                std::to_string(indices.size()) + " indices and " + std::to_string(values.size()) +
                                " values; need as many of each");
  std::vector<Entries> result;
  for (size_t p = 0; p < counts.size(); ++p) result.push_back(entries(counts[p], indices[p], values[p]));
  return result;
}

template <class T>
nb::object to_numpy(Growing<T>&& found) {
  auto* kept = new Growing<T>(std::move(found));
  nb::capsule owner(kept, [](void* p) noexcept { delete static_cast<Growing<T>*>(p); });
  if (!kept->data()) kept->room(1);  // numpy wants an address even of nothing
  return nb::cast(nb::ndarray<T, nb::numpy, nb::ndim<1>>(kept->data(), {kept->size()}, owner));
}

template <class T>
nb::object to_numpy(const std::vector<T>& found) {
  Growing<T> copy;
  T* target = copy.room(found.size());
  if (!found.empty()) std::memcpy(target, found.data(), found.size() * sizeof(T));
  copy.grow(found.size());
  return to_numpy(std::move(copy));
}

}  // namespace

void bind_sparse(nb::module_& m) {
  m.def(
      "accumulate",
      [](const std::string& isa, uintptr_t data, int64_t numel, int element, Spans spans, StateTable velocities,
         StateTable residuals, Floats factors, float momentum, bool nesterov, bool clear,
         Array<float, nb::ndim<1>> maxima, Array<float, nb::ndim<1>> largest, Array<double, nb::ndim<1>> sum,
         Array<double, nb::ndim<1>> squares, Array<bool, nb::ndim<1>> finite, int threads) {
        require_length("largest", largest.shape(0), spans.shape(0));
        require_length("sum", sum.shape(0), spans.shape(0));
        require_length("squares", squares.shape(0), spans.shape(0));
        require_length("finite", finite.shape(0), spans.shape(0));
        accumulate(kernels_named(isa), buffer(data, numel, element), reinterpret_cast<const Span*>(spans.data()),
                   spans.shape(0), states(velocities), states(residuals), scales(factors), momentum, nesterov, clear,
                   maxima.data(), int64_t(maxima.shape(0)),
                   {largest.data(), sum.data(), squares.data(), finite.data()}, threads);
      },
      Unlocked());
  m.def("select", [](const std::string& isa, StateTable residuals, StateTable velocities, Floats maxima,
                     Floats thresholds, float factor, int threads) {
    Picked found;
    {
      const nb::gil_scoped_release unlocked;
      found = select_entries(kernels_named(isa), states(residuals), states(velocities), scales(maxima),
                             scales(thresholds), factor, threads);
    }
    return nb::make_tuple(to_numpy(found.counts), to_numpy(std::move(found.indices)),
                          to_numpy(std::move(found.values)), to_numpy(std::move(found.velocities)));
  });
  m.def(
      "restore",
      [](StateTable residuals, StateTable velocities, Counts counts, Indices indices, Floats values, Floats saved) {
        restore_entries(states(residuals), states(velocities), entries(counts, indices, values), scales(saved));
      },
      Unlocked());
  m.def(
      "add_back",
      [](StateTable residuals, Counts counts, Indices indices, Floats values) {
        add_entries(states(residuals), entries(counts, indices, values));
      },
      Unlocked());
  m.def(
      "scatter_mean",
      [](uintptr_t data, int64_t numel, int element, Spans spans, const std::vector<Counts>& counts,
         const std::vector<Indices>& indices, const std::vector<Floats>& values, int num_ranks, int threads) {
        return scatter_mean(buffer(data, numel, element), reinterpret_cast<const Span*>(spans.data()), spans.shape(0),
                            all_entries(counts, indices, values), num_ranks, threads);
      },
      Unlocked());
  m.def("merge", [](Counts lengths, const std::vector<Counts>& counts, const std::vector<Indices>& indices,
                    const std::vector<Floats>& values, int threads) -> nb::object {
    Picked merged;
    bool good;
    {
      const nb::gil_scoped_release unlocked;
      good = merge_entries(lengths.data(), lengths.shape(0), all_entries(counts, indices, values), threads, merged);
    }
    if (!good) return nb::none();
    return nb::make_tuple(to_numpy(merged.counts), to_numpy(std::move(merged.indices)),
                          to_numpy(std::move(merged.values)));
  });
  m.def("gaps_encode", [](Counts positions, int64_t limit) {
    Growing<uint8_t> bytes;
    {
      const nb::gil_scoped_release unlocked;
      bytes = encode_gaps(positions.data(), positions.shape(0), limit);
    }
    return to_numpy(std::move(bytes));
  });
  m.def("gaps_decode", [](Bytes stream, int64_t count, int64_t limit) -> nb::object {
    Growing<int64_t> positions;
    bool good;
    {
      const nb::gil_scoped_release unlocked;
      good = decode_gaps(stream.data(), stream.shape(0), count, limit, positions);
    }
    if (!good) return nb::none();
    return to_numpy(std::move(positions));
  });
  m.def("palettes", [](Floats values, Counts counts) {
    Palettes found;
    {
      const nb::gil_scoped_release unlocked;
      found = find_palettes(values.data(), values.shape(0), counts.data(), counts.shape(0));
    }
    return nb::make_tuple(to_numpy(std::move(found.sizes)), to_numpy(std::move(found.table)),
                          to_numpy(std::move(found.ranks)));
  });
}

}  // namespace terngrad
