#include "parallel/gradients/grad_buffer.h"

#include <algorithm>
#include <numeric>

#include "parallel/groups/neighbour_sum.h"

namespace keel::parallel {

namespace {

// Whether the ranks along `axis` must sum this gradient apart from the reduction over DP.
bool SumsLateOver(const Parameter& p, const AxisDegree& axis) {
  return axis.axis != Axis::kDp && axis.degree > 1 && p.gradient_sum_over.has(axis.axis);
}

// In the order in which they lie in memory, so that what is summed together is one run.
enum class Kind { kEarly, kSummed, kShared, kCopied, kTied };

Kind KindOf(const Parameter& p, ParallelContext& context) {
  const std::vector<AxisDegree>& axes = context.layout().axes();
  if (p.tied && context.tied_embedding() != nullptr) return Kind::kTied;
  if (p.tp_holders.shared) return Kind::kShared;
  if (std::any_of(axes.begin(), axes.end(),
                  [&](const AxisDegree& axis) { return SumsLateOver(p, axis); })) {
    return Kind::kSummed;
  }
  const bool copied = context.layout().tp() > 1 && p.replicated_over.has(Axis::kTp);
  return copied ? Kind::kCopied : Kind::kEarly;
}

}  // namespace

WeightStore GradBuffer::MakeStore(std::vector<Parameter*> parameters, ParallelContext& context,
                                  const WeightStoreOptions& options, int64_t bucket_bytes) {
  for (const Parameter* p : parameters) {
    TORCH_CHECK(p->gradient_sum_over.has(Axis::kDp), "GradBuffer: ", p->name,
                " is not summed over DP, so it needs a buffer of its own");
  }
  // In memory they lie as backward finishes them; the late ones by kind.
  const std::vector<Parameter*> trained = TrainedOf(parameters);
  std::vector<Kind> kinds;
  kinds.reserve(trained.size());
  for (const Parameter* p : trained) kinds.push_back(KindOf(*p, context));
  std::vector<size_t> order(trained.size());
  std::iota(order.rbegin(), order.rend(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return kinds[a] < kinds[b]; });
  const std::vector<ParameterExtent> extents = ExtentsOf(trained);
  std::vector<ParameterExtent> ordered;
  for (const size_t i : order) {
    ordered.push_back(extents[i]);
    ordered.back().own_bucket = kinds[i] != Kind::kEarly;
  }
  BucketLayout layout = PlanBuckets(ordered, context.dp().size(), bucket_bytes / 4);
  layout.Rename(order);
  return {std::move(parameters), options, std::move(layout), context.dp()};
}

GradBuffer::GradBuffer(WeightStore& weights, ParallelContext& context)
    : weights_(weights),
      dp_(context.dp()),
      tied_(context.tied_embedding()),
      context_(context),
      gradients_(at::zeros({weights.layout().total}, weights.flat().options().dtype(at::kFloat))) {
  const auto& all = parameters();
  for (size_t i = 0; i < all.size(); ++i) {
    all[i]->value.requires_grad_(true);
    all[i]->gradient = all[i]->ViewIn(gradients_, weights.layout().OffsetOf(i));
  }
  PlaceUnread();
  FindOwned();
  FindLateSums();
  FindShared();
  owned_is_view_ = dp_.size() == 1;
  owned_gradients_ =
      owned_is_view_ ? gradients_ : at::zeros({owned_elements_}, gradients_.options());
  works_.resize(buckets().size());
  started_.assign(buckets().size(), false);
}

// Of frozen vectors, whose gradients cost less than to leave them out; of matrices there are none.
void GradBuffer::PlaceUnread() {
  int64_t most = 0;
  for (const Parameter* p : weights_.frozen())
    if (!p->matrix()) most = std::max(most, p->rows() * p->row_size());
  if (most == 0) return;
  unread_ = at::zeros({most}, gradients_.options());
  for (Parameter* p : weights_.frozen())
    if (!p->matrix()) p->gradient = p->ViewIn(unread_, 0);
}

// What this rank owns: its chunk of each bucket, one after another.
void GradBuffer::FindOwned() {
  const int rank = dp_.rank();
  const std::vector<ParameterExtent> extents = ExtentsOf(parameters());
  for (const Bucket& bucket : buckets()) {
    owned_values_.push_back({owned_elements_, weights_.OwnChunk(bucket)});
    for (int p : bucket.parameters) {
      const auto rows = weights_.layout().OwnedRows(extents, p, rank);
      if (rows.begin == rows.end) continue;
      const auto i = static_cast<size_t>(p);
      const int64_t in_bucket =
          weights_.layout().places[i].offset + rows.begin * extents[i].row_size;
      owned_.push_back(
          {p, rows.begin, rows.end, owned_elements_ + in_bucket - rank * bucket.chunk});
    }
    owned_elements_ += bucket.chunk;
  }
}

void GradBuffer::FindLateSums() {
  for (const AxisDegree& axis : context_.layout().axes()) {
    for (const Bucket& bucket : buckets()) {
      int64_t begin = 0, end = 0;  // of the run under way
      const auto finish = [&] {
        if (begin < end)
          late_sums_.push_back(
              {&context_.group(axis.axis), gradients_.narrow(0, begin, end - begin)});
        begin = end = 0;
      };
      for (const int index : bucket.parameters) {
        const auto i = static_cast<size_t>(index);
        const Parameter& p = *parameters()[i];
        if (!SumsLateOver(p, axis)) {
          finish();
          continue;
        }
        const int64_t at = weights_.layout().OffsetOf(i);
        if (begin == end) begin = at;
        end = at + p.rows() * p.row_size();
      }
      finish();
    }
  }
}

void GradBuffer::FindShared() {
  int64_t begin = gradients_.numel(), end = 0;
  for (size_t i = 0; i < parameters().size(); ++i) {
    const Parameter& p = *parameters()[i];
    if (!p.tp_holders.shared) continue;
    holders_ = p.tp_holders;  // the same of all parameters
    begin = std::min(begin, weights_.layout().OffsetOf(i));
    end = std::max(end, weights_.layout().OffsetOf(i) + p.rows() * p.row_size());
  }
  if (begin < end) shared_ = gradients_.narrow(0, begin, end - begin);
}

void GradBuffer::ZeroGradients() {
  gradients_.zero_();
  last_microbatch_ = false;
}

void GradBuffer::BeginLastMicrobatch() {
  last_microbatch_ = true;
  next_bucket_ = 0;
  waiting_.clear();
  for (const Bucket& bucket : buckets())
    waiting_.push_back(static_cast<int>(bucket.parameters.size()));
  std::fill(started_.begin(), started_.end(), false);
}

void GradBuffer::Ready(const Parameter& parameter) {
  if (!last_microbatch_ || dp_.size() == 1) return;
  const auto it = std::find(parameters().begin(), parameters().end(), &parameter);
  TORCH_CHECK(it != parameters().end(), "GradBuffer::Ready: unknown parameter ", parameter.name);
  const auto index = static_cast<size_t>(it - parameters().begin());
  --waiting_[static_cast<size_t>(weights_.layout().places[index].bucket)];
  // In bucket order, so that every rank issues the same collectives in the same order.
  while (next_bucket_ < waiting_.size() && waiting_[next_bucket_] == 0 &&
         !buckets()[next_bucket_].late) {
    StartReduction(next_bucket_++);
  }
}

void GradBuffer::StartReduction(size_t i) {
  const Bucket& bucket = buckets()[i];
  at::Tensor out = owned_gradients_.narrow(0, owned_values_[i].offset, bucket.chunk);
  const at::Tensor in = gradients_.narrow(0, bucket.offset, dp_.size() * bucket.chunk);
  works_[i] = dp_.ReduceScatterAsync(out, in);
  started_[i] = true;
}

void GradBuffer::FinishReduction() {
  for (LateSum& sum : late_sums_) sum.group->AllReduce(sum.run);
  if (shared_.defined()) {
    SumOverNeighbours(shared_, context_.tp(), {holders_.index, holders_.count});
  }
  for (Parameter* p : parameters()) {
    if (p->tied && tied_ != nullptr) tied_->AllReduce(p->gradient);
  }
  if (dp_.size() > 1) {
    for (size_t b = 0; b < buckets().size(); ++b) {
      if (!started_[b]) StartReduction(b);
    }
    for (auto& work : works_) {
      if (work) work->Wait();
      work.reset();
    }
  }
  std::fill(started_.begin(), started_.end(), false);
  last_microbatch_ = false;
}

}  // namespace keel::parallel
