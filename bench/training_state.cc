#include "bench/training_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "common/status.h"

namespace keel::bench {
namespace {

constexpr int64_t kColumns = 1024;
// A small state has few matrices, not forty slivers.
int64_t MatricesOf(int64_t megabytes) { return megabytes < 16 ? 4 : 40; }
constexpr int64_t kVectors = 20'000;
constexpr int64_t kBytesPerParameter = 2 + 3 * 4;

std::byte* Data(const at::Tensor& tensor) { return static_cast<std::byte*>(tensor.data_ptr()); }

}  // namespace

TrainingState::TrainingState(const StateOptions& options, Cut cut, int rank, int ranks) {
  if (options.kind == "small") {
    optimizer_ = false;
    for (int64_t i = rank; i < kVectors; i += ranks) {
      const int64_t size = 1024 * (1 + i * 7 % 16);
      AddMatrix(fmt::format("tensors.{}.value", i), {size}, {0}, {size});
    }
    return;
  }
  const int64_t matrices = MatricesOf(options.megabytes);
  const int64_t unit = 2 * ranks;  // so that each cut is at a whole row
  const int64_t rows =
      std::max<int64_t>(unit, options.megabytes * 1'000'000 /
                                  (kBytesPerParameter * kColumns * matrices) / unit * unit);
  std::vector<int64_t> offset = {0, 0}, size = {rows, kColumns};
  const size_t dim = cut == Cut::kColumns ? 1 : 0;
  const int64_t each = size[dim] / ranks;
  size[dim] = each;
  offset[dim] = rank * each;
  if (cut == Cut::kUneven && ranks > 1) {
    // The second rank takes what the first one gives up.
    if (rank == 0) size[dim] -= each / 2;
    if (rank == 1) {
      offset[dim] -= each / 2;
      size[dim] += each / 2;
    }
  }
  for (int64_t i = 0; i < matrices; ++i) {
    AddMatrix(fmt::format("model.layers.{}.weight", i), {rows, kColumns}, offset, size);
  }
  gradient_ = at::empty(size, at::kFloat).uniform_(-1e-3, 1e-3);
  step_ = at::zeros({}, at::kFloat);
}

void TrainingState::AddMatrix(const std::string& name, std::vector<int64_t> shape,
                              std::vector<int64_t> offset, std::vector<int64_t> size) {
  Matrix matrix{name, std::move(shape), std::move(offset), {}, {}, {}, {}};
  matrix.master = at::empty(size, at::kFloat).uniform_(-1, 1);
  if (optimizer_) {
    matrix.weight = matrix.master.to(at::kBFloat16);
    matrix.exp_avg = at::empty(size, at::kFloat).uniform_(-1e-3, 1e-3);
    matrix.exp_avg_sq = at::empty(size, at::kFloat).uniform_(0, 1e-6);
  } else {
    matrix.weight = std::move(matrix.master);
  }
  matrices_.push_back(std::move(matrix));
}

checkpoint::RoleState TrainingState::Role() const {
  checkpoint::RoleState role;
  role.name = "actor";
  const auto add = [](ShardTable& table, const Matrix& matrix, const std::string& name,
                      const at::Tensor& part) {
    const Dims size(std::span(part.sizes().data(), part.sizes().size()));
    ThrowIfError(table.Add({name, part.scalar_type() == at::kFloat ? DType::kF32 : DType::kBF16,
                            Dims(std::span(matrix.shape))},
                           Box{Dims(std::span(matrix.offset)), size},
                           {Data(part), ContiguousStrides(size)}));
  };
  for (const Matrix& matrix : matrices_) {
    add(role.model, matrix, matrix.name, matrix.weight);
    if (!optimizer_) continue;
    add(role.optimizer, matrix, "optimizer.master." + matrix.name, matrix.master);
    add(role.optimizer, matrix, "optimizer.exp_avg." + matrix.name, matrix.exp_avg);
    add(role.optimizer, matrix, "optimizer.exp_avg_sq." + matrix.name, matrix.exp_avg_sq);
  }
  return role;
}

int64_t TrainingState::bytes() const {
  const checkpoint::RoleState role = Role();
  return role.model.bytes() + role.optimizer.bytes();
}

void TrainingState::Update(const std::function<void(const at::Tensor&)>& before_write) {
  if (!optimizer_) return;
  step_.add_(1);
  for (Matrix& matrix : matrices_) {
    for (const at::Tensor* tensor :
         {&matrix.master, &matrix.exp_avg, &matrix.exp_avg_sq, &matrix.weight}) {
      before_write(*tensor);
    }
    at::_fused_adamw_({matrix.master}, {gradient_}, {matrix.exp_avg}, {matrix.exp_avg_sq}, {},
                      {step_}, 1e-4, 0.9, 0.95, 0.1, 1e-8, false, false);
    matrix.weight.copy_(matrix.master);
  }
}

std::vector<Digest128> TrainingState::Digests() const {
  std::vector<Digest128> digests;
  const checkpoint::RoleState role = Role();
  for (const ShardTable* table : {&role.model, &role.optimizer}) {
    for (const Shard& shard : table->shards()) {
      const int64_t bytes = shard.box.elements() * DTypeSize(table->tensor_of(shard).dtype);
      digests.push_back(Hash128(std::span(shard.view.data, static_cast<size_t>(bytes))));
    }
  }
  return digests;
}

}  // namespace keel::bench
