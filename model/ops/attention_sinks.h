// Attention sinks (gpt-oss, OpenAI 2025): a learnt score of each head that takes part in every
// softmax and has no value, so that a head may attend to little of a text.
//
// Attention over keys alone becomes attention with sinks by the sums of its weights, so that the
// fused kernels compute it, too. With z = log sum exp(scores), a query's result is multiplied by
// exp(z - z'), where z' = log(exp(z) + exp(sink)); and the kernels' own backward is right as it is
// when it is given that result and z' in place of its own: a score's gradient is
// p (dp - dout . out), in which the sink's part is 0 (Dao 2023, 3.1).
#pragma once

#include <ATen/ATen.h>

#include "parallel/parameter.h"

namespace keel::model {

// out [.., heads, L, d] becomes that with `sinks` [heads]; log_sums [.., heads, L] fp32 are the z
// that it was computed with. Returns z', laid out as these are. For forwards.
at::Tensor AddSinks(const parallel::Parameter& sinks, const at::Tensor& log_sums, at::Tensor& out);

// Adds to the sinks' gradient. log_sums: z'; out and its gradient dout: [.., heads, L, d].
void AddSinkGradient(parallel::Parameter& sinks, const at::Tensor& log_sums, const at::Tensor& out,
                     const at::Tensor& dout);

}  // namespace keel::model
