#include "parallel/tensor/regions.h"

#include <vector>

#include "parallel/tensor/autograd_capture.h"

namespace keel::parallel {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

at::Tensor AllReduced(const at::Tensor& x, ProcessGroup& group) {
  at::Tensor out = x.clone(at::MemoryFormat::Contiguous);
  group.AllReduce(out);
  return out;
}

at::Tensor SummedInOrder(const at::Tensor& x, ProcessGroup& group) {
  at::Tensor out = x.clone(at::MemoryFormat::Contiguous);
  SumOverRanks(out, group, /*fixed_order=*/true);
  return out;
}

at::Tensor GatheredRows(const at::Tensor& x, ProcessGroup& group) {
  std::vector<int64_t> shape = x.sizes().vec();
  shape[0] *= group.size();
  at::Tensor out = at::empty(shape, x.options());
  group.AllGather(out, x.contiguous());
  return out;
}

at::Tensor ReduceScatteredRows(const at::Tensor& x, ProcessGroup& group) {
  TORCH_CHECK(x.size(0) % group.size() == 0, "sequence parallelism: ", x.size(0),
              " tokens do not divide over ", group.size(), " ranks");
  std::vector<int64_t> shape = x.sizes().vec();
  shape[0] /= group.size();
  at::Tensor out = at::empty(shape, x.options());
  group.ReduceScatter(out, x.contiguous());
  return out;
}

at::Tensor SplitRows(const at::Tensor& x, ProcessGroup& group) {
  const int64_t part = x.size(0) / group.size();
  return x.narrow(0, group.rank() * part, part).contiguous();
}

at::Tensor SplitSummedInOrder(const at::Tensor& x, ProcessGroup& group) {
  return SplitRows(SummedInOrder(x, group), group);
}

at::Tensor SplitLast(const at::Tensor& x, ProcessGroup& group) {
  TORCH_CHECK(x.size(-1) % group.size() == 0, "tensor parallelism: last dim ", x.size(-1),
              " does not divide over ", group.size(), " ranks");
  const int64_t part = x.size(-1) / group.size();
  return x.narrow(-1, group.rank() * part, part).contiguous();
}

at::Tensor GatheredLast(const at::Tensor& x, ProcessGroup& group) {
  std::vector<int64_t> shape = x.sizes().vec();
  shape.insert(shape.begin(), group.size());
  at::Tensor parts = at::empty(shape, x.options());
  group.AllGather(parts, x.contiguous());
  return at::cat(parts.unbind(0), -1);
}

using Transform = at::Tensor (*)(const at::Tensor&, ProcessGroup&);

at::Tensor Same(const at::Tensor& x, ProcessGroup&) { return x.view_as(x); }

// A region is a pair of transforms; the backward one is the transpose of the forward one.
template <Transform kForward, Transform kBackward>
struct Region : Function<Region<kForward, kBackward>> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, ProcessGroup* group) {
    Capture(context, "group", group);
    return kForward(x, *group);
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    return {kBackward(gradients[0], *Captured<ProcessGroup*>(context, "group")), at::Tensor()};
  }
};

}  // namespace

at::Tensor CopyToTensorParallel(const at::Tensor& x, ProcessGroup& group) {
  if (group.size() == 1) return x;
  return Region<Same, AllReduced>::apply(x, &group);
}

at::Tensor ReduceFromTensorParallel(const at::Tensor& x, ProcessGroup& group, bool fixed_order) {
  if (group.size() == 1) return x;
  if (fixed_order) return Region<SummedInOrder, Same>::apply(x, &group);
  return Region<AllReduced, Same>::apply(x, &group);
}

at::Tensor GatherFromTensorParallel(const at::Tensor& x, ProcessGroup& group) {
  if (group.size() == 1) return x;
  return Region<GatheredLast, SplitLast>::apply(x, &group);
}

at::Tensor GatherFromSequenceParallel(const at::Tensor& x, ProcessGroup& group) {
  if (group.size() == 1) return x;
  return Region<GatheredRows, ReduceScatteredRows>::apply(x, &group);
}

at::Tensor JoinFromSequenceParallel(const at::Tensor& x, ProcessGroup& group) {
  if (group.size() == 1) return x;
  return Region<GatheredRows, SplitRows>::apply(x, &group);
}

at::Tensor ReduceScatterToSequenceParallel(const at::Tensor& x, ProcessGroup& group,
                                           bool fixed_order) {
  if (group.size() == 1) return x;
  if (fixed_order) return Region<SplitSummedInOrder, GatheredRows>::apply(x, &group);
  return Region<ReduceScatteredRows, GatheredRows>::apply(x, &group);
}

void SumOverRanks(at::Tensor& x, ProcessGroup& group, bool fixed_order) {
  if (group.size() == 1) return;
  if (!fixed_order || group.size() == 2) return group.AllReduce(x);
  at::Tensor all = at::empty({group.size(), x.size(0), x.size(1)}, x.options());
  group.AllGather(all, x);
  at::Tensor sum = all.select(0, 0).to(at::kFloat);
  for (int64_t rank = 1; rank < group.size(); ++rank) sum.add_(all.select(0, rank));
  x.copy_(sum);
}

}  // namespace keel::parallel
