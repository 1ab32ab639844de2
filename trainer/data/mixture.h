// Mixture: from which of several sources the k-th sample of a run comes.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace keel::trainer {

// By the schedule of R. Tijdeman, "The chairman assignment problem", Discrete Mathematics 32
// (1980): after any number n of samples each source has given its share of n but for less than one.
// Exact integers throughout. The state is how many each source has given, which follows from n.
class Mixture {
 public:
  // Positive weights, which need not sum to 1; at least one.
  explicit Mixture(std::span<const double> weights);

  struct Draw {
    size_t source;
    int64_t index;  // how many the source had given before
  };
  // The draw at position k >= 0. Going forward costs a step each; going back begins anew.
  Draw At(int64_t k);
  // Of source i, in units of 1 / kUnits: they sum to kUnits.
  int64_t share(size_t i) const { return shares_[i]; }
  static constexpr int64_t kUnits = int64_t{1} << 32;

 private:
  Draw Next();

  std::vector<int64_t> shares_;
  std::vector<int64_t> given_;
  int64_t next_ = 0;  // position of the next draw
  Draw last_{0, 0};   // at next_ - 1
};

}  // namespace keel::trainer
