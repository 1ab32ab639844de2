#include "trainer/inputs/run_data.h"

#include <fmt/format.h>

namespace keel::trainer {

Status CheckPositions(const model::HfConfig& model, int64_t positions, const std::string& keys) {
  if (positions <= model.max_position_embeddings) return Status::Ok();
  return Status(StatusCode::kConfig,
                fmt::format("{}: {} positions, the model's max_position_embeddings is {}", keys,
                            positions, model.max_position_embeddings));
}

Status CheckSizes(const Config& config, int64_t train, int64_t val) {
  if (train == 0)
    return Status(StatusCode::kInvalidData, "data.val_split leaves nothing to train on");
  if (config.data.val_split > 0 && val == 0) {
    return Status(StatusCode::kInvalidData,
                  fmt::format("data.val_split {} sets none of the {} samples apart: nothing would "
                              "be validated; raise it, give data.val_files, or set it to 0",
                              config.data.val_split, train));
  }
  return Status::Ok();
}

}  // namespace keel::trainer
