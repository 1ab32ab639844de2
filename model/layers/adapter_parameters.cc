#include "model/layers/adapter_parameters.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>

#include "model/config/adapter_tensors.h"
#include "model/layers/whole_parameter.h"

namespace keel::model {

using parallel::Adapter;
using parallel::Parameter;
using parallel::ParameterPiece;

namespace {

// PEFT's kaiming_uniform with a = sqrt(5): evenly within 1 / sqrt(in).
double Bound(int64_t columns) { return 1 / std::sqrt(static_cast<double>(columns)); }

}  // namespace

std::optional<AdapterParameters> AdapterOf(const HfConfig& config, const Parameter& weight) {
  if (weight.shape.size() != 2) return std::nullopt;
  const int64_t rank = config.adapter.rank;
  AdapterParameters made;
  made.a.name = weight.name + ".lora_A";
  made.b.name = weight.name + ".lora_B";
  std::map<std::string, int64_t> numbers;  // of the tensors, in the order of their first pieces
  bool input_split = false;
  int64_t columns = 0, b_rows = 0;
  for (const ParameterPiece& piece : weight.pieces) {
    if (piece.shape.size() != 2 || !HasAdapter(config, piece.name)) continue;
    const AdapterNames names = AdapterNamesOf(piece.name);
    const auto [tensor, fresh] = numbers.try_emplace(piece.name, std::ssize(numbers));
    const int out = weight.RowDim(piece), in = 1 - out;
    const int64_t rows = piece.box.size[out];
    columns = piece.box.size[in];
    input_split = columns < piece.shape[in];
    if (fresh) {
      made.a.pieces.push_back({names.a,
                               {rank, piece.shape[in]},
                               {{0, piece.box.offset[in]}, {rank, columns}},
                               tensor->second * rank});
      made.a.init_evenly_within = Bound(piece.shape[in]);
    }
    made.b.pieces.push_back(
        {names.b, {piece.shape[out], rank}, {{piece.box.offset[out], 0}, {rows, rank}}, b_rows});
    // Rows of one tensor that follow each other are one run.
    if (!made.runs.empty() && made.runs.back().tensor == tensor->second &&
        made.runs.back().weight_row + made.runs.back().rows == piece.row_begin) {
      made.runs.back().rows += rows;
    } else {
      made.runs.push_back({tensor->second, piece.row_begin, b_rows, rows});
    }
    b_rows += rows;
  }
  if (numbers.empty()) return std::nullopt;
  made.a.shape = {std::ssize(numbers) * rank, columns};
  made.b.shape = {b_rows, rank};
  // As the weight is, the one; whole, the other.
  Parameter& split = input_split ? made.a : made.b;
  Parameter& whole = input_split ? made.b : made.a;
  split.replicated_over = weight.replicated_over;
  split.gradient_sum_over = weight.gradient_sum_over;
  split.tp_holders = weight.tp_holders;
  whole.replicated_over = kWhole;
  whole.gradient_sum_over = WholeSum(true);
  return made;
}

}  // namespace keel::model
