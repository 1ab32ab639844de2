#include "model/ops/expert_rows.h"

#include <numeric>
#include <tuple>

#include "parallel/tensor/send.h"

namespace keel::model {

ExpertRows SortByExpert(const at::Tensor& chosen, int64_t experts) {
  const int64_t top_k = chosen.size(1);
  const int64_t count = chosen.numel();
  const at::Tensor host = chosen.to(at::kCPU).contiguous();
  const int64_t* expert = host.const_data_ptr<int64_t>();
  ExpertRows sorted;
  sorted.chosen = chosen;
  // A counting sort: how many rows each expert has, where they begin, and then each choice in turn.
  sorted.begins.assign(static_cast<size_t>(experts) + 1, 0);
  for (int64_t slot = 0; slot < count; ++slot) {
    TORCH_CHECK(expert[slot] >= 0 && expert[slot] < experts, "token ", slot / top_k,
                " chose expert ", expert[slot], " of ", experts);
    ++sorted.begins[static_cast<size_t>(expert[slot]) + 1];
  }
  std::partial_sum(sorted.begins.begin(), sorted.begins.end(), sorted.begins.begin());
  std::vector<int64_t> next(sorted.begins.begin(), sorted.begins.end() - 1);
  at::Tensor tokens = at::empty({count}, at::kLong);
  at::Tensor slots = at::empty({count}, at::kLong);
  at::Tensor rows = at::empty({chosen.size(0), top_k}, at::kLong);
  for (int64_t slot = 0; slot < count; ++slot) {
    const int64_t row = next[static_cast<size_t>(expert[slot])]++;
    tokens.data_ptr<int64_t>()[row] = slot / top_k;
    slots.data_ptr<int64_t>()[row] = slot;
    rows.data_ptr<int64_t>()[slot] = row;
  }
  sorted.tokens = parallel::SentTo(chosen.device(), tokens);
  sorted.slots = parallel::SentTo(chosen.device(), slots);
  sorted.rows = parallel::SentTo(chosen.device(), rows);
  return sorted;
}

ExpertRows SortByExpertInPlace(const at::Tensor& chosen, int64_t experts) {
  const at::Tensor expert = chosen.reshape({-1}).to(at::kInt);
  ExpertRows sorted;
  sorted.chosen = chosen;
  at::Tensor by_expert;
  std::tie(by_expert, sorted.slots) = at::sort(expert, /*stable=*/true, 0, /*descending=*/false);
  sorted.tokens = sorted.slots.floor_divide(chosen.size(1));
  sorted.rows = at::empty_like(sorted.slots)
                    .scatter_(0, sorted.slots, at::arange(expert.size(0), sorted.slots.options()))
                    .view_as(chosen);
  sorted.ends = at::searchsorted(by_expert, at::arange(experts, expert.options()),
                                 /*out_int32=*/true, /*right=*/true);
  return sorted;
}

at::Tensor ExpertRows::Gather(const at::Tensor& values, const at::Tensor& weights) const {
  at::Tensor sum = at::zeros({rows.size(0), values.size(1)}, values.options().dtype(at::kFloat));
  for (int64_t j = 0; j < rows.size(1); ++j) {
    const at::Tensor values_of = values.index_select(0, rows.select(1, j));
    if (weights.defined()) {
      sum.addcmul_(values_of.to(at::kFloat), weights.narrow(1, j, 1));
    } else {
      sum.add_(values_of);
    }
  }
  return sum.to(values.scalar_type());
}

}  // namespace keel::model
