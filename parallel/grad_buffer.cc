#include "parallel/grad_buffer.h"

#include <algorithm>

namespace keel::parallel {

namespace {

bool IsLate(const Parameter& p, const ProcessGroup& tp, const ProcessGroup* tied) {
  return (p.tp_sum_gradient && tp.size() > 1) || (p.tied && tied != nullptr);
}

at::Tensor ViewOf(const at::Tensor& flat, int64_t offset, const Parameter& p) {
  const int64_t elements = p.rows() * p.row_size();
  std::vector<int64_t> shape(p.shape.begin(), p.shape.end());
  return flat.narrow(0, offset, elements).view(shape);
}

}  // namespace

GradBuffer::GradBuffer(std::vector<Parameter*> parameters, ProcessGroup& dp, ProcessGroup& tp,
                       ProcessGroup* tied, const GradBufferOptions& options)
    : parameters_(parameters.rbegin(), parameters.rend()), dp_(dp), tp_(tp), tied_(tied) {
  // Tied ones last, so that the gradients to be summed over TP are one run of the late bucket.
  std::stable_partition(parameters_.begin(), parameters_.end(),
                        [](const Parameter* p) { return !p->tied; });
  std::vector<ParameterExtent> extents;
  for (const Parameter* p : parameters_)
    extents.push_back({p->rows(), p->row_size(), IsLate(*p, tp, tied)});
  layout_ = PlanBuckets(extents, dp.size(), options.bucket_bytes / 4);

  // 1. Storage, and the parameters' views of it.
  values_ =
      at::zeros({layout_.total}, at::TensorOptions().dtype(options.dtype).device(options.device));
  const auto fp32 = at::TensorOptions().dtype(at::kFloat).device(options.device);
  if (!options.inference) gradients_ = at::zeros({layout_.total}, fp32);
  for (size_t i = 0; i < parameters_.size(); ++i) {
    Parameter& p = *parameters_[i];
    const ParameterPlace& place = layout_.places[i];
    const int64_t at = layout_.buckets[static_cast<size_t>(place.bucket)].offset + place.offset;
    p.value = ViewOf(values_, at, p).requires_grad_(!options.inference);
    p.gradient = options.inference ? at::empty({0}, fp32) : ViewOf(gradients_, at, p);
  }
  if (options.inference) return;

  // 2. What this rank owns: its chunk of each bucket, one after another.
  for (const Bucket& bucket : layout_.buckets) {
    owned_values_.push_back(
        {owned_elements_,
         values_.narrow(0, bucket.offset + dp_.rank() * bucket.chunk, bucket.chunk)});
    for (int p : bucket.parameters) {
      const auto rows = layout_.OwnedRows(extents, p, dp_.rank());
      if (rows.begin == rows.end) continue;
      const auto& extent = extents[static_cast<size_t>(p)];
      const int64_t in_bucket =
          layout_.places[static_cast<size_t>(p)].offset + rows.begin * extent.row_size;
      owned_.push_back(
          {p, rows.begin, rows.end, owned_elements_ + in_bucket - dp_.rank() * bucket.chunk});
    }
    owned_elements_ += bucket.chunk;
  }

  // 3. The run of gradients that FinishReduction sums over TP in one call.
  int64_t run_begin = layout_.total;
  int64_t run_end = 0;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (!parameters_[i]->tp_sum_gradient || tp.size() == 1) continue;
    const ParameterPlace& place = layout_.places[i];
    const int64_t at = layout_.buckets[static_cast<size_t>(place.bucket)].offset + place.offset;
    run_begin = std::min(run_begin, at);
    run_end = std::max(run_end, at + extents[i].rows * extents[i].row_size);
  }
  if (run_begin < run_end) tp_sum_run_ = gradients_.narrow(0, run_begin, run_end - run_begin);

  owned_is_view_ = dp_.size() == 1;
  owned_gradients_ =
      owned_is_view_ ? gradients_ : at::zeros({owned_elements_}, gradients_.options());
  works_.resize(layout_.buckets.size());
  started_.assign(layout_.buckets.size(), false);
}

void GradBuffer::ZeroGradients() {
  gradients_.zero_();
  last_microbatch_ = false;
}

void GradBuffer::BeginLastMicrobatch() {
  last_microbatch_ = true;
  next_bucket_ = 0;
  waiting_.clear();
  for (const Bucket& bucket : layout_.buckets)
    waiting_.push_back(static_cast<int>(bucket.parameters.size()));
  std::fill(started_.begin(), started_.end(), false);
}

void GradBuffer::Ready(const Parameter& parameter) {
  if (!last_microbatch_ || dp_.size() == 1) return;
  const auto it = std::find(parameters_.begin(), parameters_.end(), &parameter);
  TORCH_CHECK(it != parameters_.end(), "GradBuffer::Ready: unknown parameter ", parameter.name);
  const int bucket = layout_.places[static_cast<size_t>(it - parameters_.begin())].bucket;
  --waiting_[static_cast<size_t>(bucket)];
  // In bucket order, so that every rank issues the same collectives in the same order.
  while (next_bucket_ < static_cast<int>(waiting_.size()) &&
         waiting_[static_cast<size_t>(next_bucket_)] == 0 &&
         !layout_.buckets[static_cast<size_t>(next_bucket_)].late) {
    StartReduction(next_bucket_++);
  }
}

void GradBuffer::StartReduction(int index) {
  const auto i = static_cast<size_t>(index);
  const Bucket& bucket = layout_.buckets[i];
  at::Tensor out = owned_gradients_.narrow(0, owned_values_[i].offset, bucket.chunk);
  const at::Tensor in = gradients_.narrow(0, bucket.offset, dp_.size() * bucket.chunk);
  works_[i] = dp_.ReduceScatterAsync(out, in);
  started_[i] = true;
}

void GradBuffer::FinishReduction() {
  if (tp_sum_run_.defined()) tp_.AllReduce(tp_sum_run_);
  for (Parameter* p : parameters_) {
    if (p->tied && tied_ != nullptr) tied_->AllReduce(p->gradient);
  }
  if (dp_.size() > 1) {
    for (size_t b = 0; b < layout_.buckets.size(); ++b) {
      if (!started_[b]) StartReduction(static_cast<int>(b));
    }
    for (auto& work : works_) {
      if (work) work->Wait();
      work.reset();
    }
  }
  std::fill(started_.begin(), started_.end(), false);
  last_microbatch_ = false;
}

void GradBuffer::AllGatherValues() {
  if (dp_.size() == 1) return;
  const at::NoGradGuard no_grad;
  for (size_t b = 0; b < layout_.buckets.size(); ++b) {
    const Bucket& bucket = layout_.buckets[b];
    at::Tensor out = values_.narrow(0, bucket.offset, dp_.size() * bucket.chunk);
    // The input is a part of the output; gloo and NCCL want that in place or apart, so keep it
    // apart.
    const at::Tensor mine = owned_values_[b].values.clone();
    if (before_write_) before_write_(out.const_data_ptr(), out.nbytes());
    dp_.AllGather(out, mine);
  }
}

}  // namespace keel::parallel
