// Palettes: the few different values of a segment, and for each value which of them it is (kernels/reference/palettes.py).
//
// An open table finds a value's number; most lookups hit the same dozens of slots. Compiled once, without special
// instructions.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <vector>

namespace {

constexpr size_t kMostRanks = 65535;  // so that the size of a palette has two bytes, and 0 is left for none

class Palette {
 public:
  // Writes each value's number, by first occurrence, to `numbers`. False: they are not few.
  bool find(const float* values, size_t count, uint16_t* numbers) {
    const size_t most = std::min(kMostRanks, count / 2);
    int log_slots = 4;
    while (size_t(1) << log_slots < 2 * most) ++log_slots;
    const size_t mask = (size_t(1) << log_slots) - 1;
    slots_.assign(mask + 1, 0);
    bits_.clear();
    times_.clear();
    for (size_t i = 0; i < count; ++i) {
      uint32_t bits;
      std::memcpy(&bits, values + i, 4);
      size_t slot = (bits * 0x9e3779b1u) >> (32 - log_slots);
      while (slots_[slot] && bits_[slots_[slot] - 1u] != bits) slot = (slot + 1) & mask;
      if (!slots_[slot]) {
        if (bits_.size() == most) return false;
        bits_.push_back(bits);
        times_.push_back(0);
        slots_[slot] = uint16_t(bits_.size());
      }
      numbers[i] = uint16_t(slots_[slot] - 1);
      ++times_[numbers[i]];
    }
    return count > 0;
  }

  size_t size() const { return bits_.size(); }

  // Writes the values, the most frequent first, and turns numbers into ranks.
  void sort(float* table, uint16_t* numbers, size_t count) {
    order_.resize(size());
    rank_.resize(size());
    std::iota(order_.begin(), order_.end(), uint16_t(0));
    std::sort(order_.begin(), order_.end(), [&](uint16_t a, uint16_t b) {
      return times_[a] != times_[b] ? times_[a] > times_[b] : bits_[a] < bits_[b];
    });
    for (size_t i = 0; i < size(); ++i) {
      std::memcpy(table + i, &bits_[order_[i]], 4);
      rank_[order_[i]] = uint16_t(i);
    }
    for (size_t i = 0; i < count; ++i) numbers[i] = rank_[numbers[i]];
  }

 private:
  std::vector<uint16_t> slots_;  // number + 1; 0: free
  std::vector<uint32_t> bits_;   // of each value, by number
  std::vector<size_t> times_;
  std::vector<uint16_t> order_, rank_;
};

}  // namespace
