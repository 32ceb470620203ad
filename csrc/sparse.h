// Sparse gradients: momentum and residuals of all segments of a bucket, the entries taken from them, sums of entries of
// several ranks, the gap code, and palettes. Checks every bound, shares work among threads. Knows nothing of Python or torch.
#pragma once

#include <cstring>
#include <memory>
#include <vector>

#include "driver.h"

namespace terngrad {

// One row of a table of tensors of fp32, one for each segment.
struct State {
  int64_t address, numel;

  float* data() const { return reinterpret_cast<float*>(address); }
};
static_assert(sizeof(State) == 16, "must match the int64 table of two columns");

struct States {
  const State* rows;
  size_t count;
};

// Elements of the segments of a bucket: counts[i] of segment i, by increasing index within it.
struct Entries {
  const int64_t* counts;
  size_t num_counts;
  const uint32_t* indices;
  size_t num_indices;
  const float* values;
  size_t num_values;
};

// An array that grows without being filled first.
template <class T>
class Growing {
 public:
  T* data() const { return data_.get(); }
  size_t size() const { return size_; }

  // Where `more` items can be written; grow() then says how many were.
  T* room(size_t more) {
    if (size_ + more > capacity_) {
      const size_t capacity = size_ + more > 2 * capacity_ ? size_ + more : 2 * capacity_;
      std::unique_ptr<T[]> larger(new T[capacity]);
      if (size_) std::memcpy(larger.get(), data_.get(), size_ * sizeof(T));
      data_ = std::move(larger);
      capacity_ = capacity;
    }
    return data_.get() + size_;
  }

  void grow(size_t more) { size_ += more; }

  void append(const Growing& other) {
    if (other.size_) std::memcpy(room(other.size_), other.data(), other.size_ * sizeof(T));
    grow(other.size_);
  }

 private:
  std::unique_ptr<T[]> data_;
  size_t size_ = 0, capacity_ = 0;
};

struct Picked {
  std::vector<int64_t> counts;  // of each segment
  Growing<uint32_t> indices;
  Growing<float> values, velocities;
};

struct Accumulated {
  float* largest;
  double *sum, *squares;
  bool* finite;
};

// `velocities` may have no rows: then there are none. `factors` has one for each span, `maxima` one for each tile of
// each span, in order.
void accumulate(const Kernels&, Buffer, const Span*, size_t count, States velocities, States residuals, Scales factors,
                float momentum, bool nesterov, bool clear, float* maxima, int64_t num_maxima, Accumulated, int threads);
Picked select_entries(const Kernels&, States residuals, States velocities, Scales maxima, Scales thresholds,
                      float factor, int threads);
void restore_entries(States residuals, States velocities, const Entries&, Scales saved);
void add_entries(States residuals, const Entries&);

// False: indices that do not increase, or are not below their segment's length; then nothing is written.
bool scatter_mean(Buffer, const Span*, size_t count, const std::vector<Entries>&, int num_ranks, int threads);
bool merge_entries(const int64_t* lengths, size_t count, const std::vector<Entries>&, int threads, Picked& merged);

Growing<uint8_t> encode_gaps(const int64_t* positions, size_t count, int64_t limit);
bool decode_gaps(const uint8_t* data, size_t size, int64_t count, int64_t limit, Growing<int64_t>& positions);

struct Palettes {
  Growing<uint16_t> sizes;  // of each segment; 0: they are not few, and all of its values are in the table
  Growing<float> table;
  Growing<uint16_t> ranks;
};

Palettes find_palettes(const float* values, size_t num_values, const int64_t* counts, size_t num_counts);

}  // namespace terngrad
