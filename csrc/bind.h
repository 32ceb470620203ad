// What the files that know Python share: array types, and arguments checked for what the types do not say.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>
#include <string>

#include "driver.h"

namespace terngrad {

namespace nb = nanobind;

template <class T, class Shape>
using Array = nb::ndarray<T, nb::numpy, Shape, nb::c_contig, nb::device::cpu>;
using Spans = Array<const int64_t, nb::shape<-1, 2>>;
using Floats = Array<const float, nb::ndim<1>>;
using Unlocked = nb::call_guard<nb::gil_scoped_release>;

inline const Kernels& kernels_named(const std::string& name) {
  for (const Kernels* kernels : available_kernels())
    if (name == kernels->name) return *kernels;
  throw std::invalid_argument("no native kernels named '" + name + "' on this machine");
}

inline Buffer buffer(uintptr_t address, int64_t numel, int element) {
  if (element < 0 || element > 2) throw std::invalid_argument("element type " + std::to_string(element) + ": need 0..2");
  return {reinterpret_cast<void*>(address), numel, Element(element)};
}

inline Scales scales(const Floats& values) { return {values.data(), int64_t(values.shape(0))}; }

inline void require_length(const char* what, size_t got, size_t need) {
  if (got < need)
    throw std::invalid_argument(std::string(what) + " has room for " + std::to_string(got) + ", need " +
                                std::to_string(need));
}

void bind_sparse(nb::module_&);

}  // namespace terngrad
