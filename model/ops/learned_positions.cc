#include "model/ops/learned_positions.h"

#include <optional>

#include "parallel/tensor/autograd_capture.h"
#include "parallel/tensor/row_sum.h"

namespace keel::model {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::Tensor RowsAt(const at::Tensor& positions, int64_t first) {
  return positions.to(at::kLong) + first;
}

struct AddPositionsFunction : torch::autograd::Function<AddPositionsFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& rows,
                            const at::Tensor& table, const std::optional<at::Tensor>& gradient) {
    context->save_for_backward({rows});
    if (gradient) context->saved_data["gradient"] = *gradient;
    return x + table.index_select(0, rows);
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    if (auto it = context->saved_data.find("gradient"); it != context->saved_data.end()) {
      at::Tensor gradient = it->second.toTensor();
      parallel::AddLookupGradient(gradient, context->get_saved_variables()[0],
                                  gradients[0].to(at::kFloat));
    }
    return {gradients[0], {}, {}, {}};
  }
};

}  // namespace

at::Tensor AddPositions(const at::Tensor& x, const at::Tensor& positions, int64_t first,
                        parallel::Parameter& table) {
  return AddPositionsFunction::apply(
      x, RowsAt(positions, first), table.value,
      table.trained() ? std::optional(table.gradient) : std::nullopt);
}

void AddPositionsInPlace(at::Tensor& x, const at::Tensor& positions, int64_t first,
                         const parallel::Parameter& table) {
  x.add_(table.value.index_select(0, RowsAt(positions, first)));
}

}  // namespace keel::model
