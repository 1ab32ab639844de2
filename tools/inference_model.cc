#include "tools/inference_model.h"

#include <fmt/format.h>

#include <chrono>
#include <utility>

#include "common/host_memory.h"
#include "parallel/context.h"
#include "tools/step_weights.h"
#include "trainer/config/choices.h"
#include "trainer/engine/memory_forecast.h"
#include "trainer/inputs/model_weights.h"

namespace keel::tools {

namespace {

constexpr std::chrono::milliseconds kDeadline{600'000};  // of a peer that still reads its weights
// A person may think for as long as he likes before he says something.
constexpr std::chrono::hours kPatience{24 * 365};

at::ScalarType ScalarOf(DType dtype) { return dtype == DType::kBF16 ? at::kBFloat16 : at::kFloat; }

}  // namespace

InferenceModel::InferenceModel(const InferenceOptions& options) {
  // 1. What it is.
  const bool is_step = IsCheckpoint(options.path);
  trainer::ModelOptions how;
  how.path_key = "--model";
  how.tokenizer.chat.todays_date = true;
  const std::string folder = is_step ? ValueOrThrow(ModelFolderOf(options.path)) : options.path;
  source_ = ValueOrThrow(trainer::ResolveModel(folder, Json::object(), DType::kF32, how));
  const DType there =
      is_step ? ValueOrThrow(StepDType(options.path)) : config().dtype.value_or(DType::kF32);
  const auto wanted = ParseName<trainer::WeightDtype>(options.dtype);
  const bool bf16 = wanted ? *wanted == trainer::WeightDtype::kBfloat16 : there == DType::kBF16;

  // 2. Whether this machine holds it, and the other ranks.
  trainer::MemoryForecast forecast = trainer::ForecastInference(
      config(), (bf16 ? 2.0 : 4.0) / std::max(1, options.env.world_size), 0);
  ThrowIfError(trainer::CheckMemory(forecast, ReadHostMemory(), options.env.local_world_size, false)
                   .status()
                   .WithContext(options.path));
  Connect(options.env);

  // 3. This rank's part.
  model::DecoderOptions decoder;
  decoder.dtype = bf16 ? at::kBFloat16 : at::kFloat;
  decoder_ = std::make_unique<model::Decoder>(
      config(), parallel::TensorParallel{group_.get(), false}, decoder);
  LoadWeights(options.path, decoder.dtype);
}

InferenceModel::~InferenceModel() = default;

void InferenceModel::Connect(const parallel::LaunchEnv& env) {
  if (env.world_size == 1) {
    group_ = parallel::MakeSingleGroup("single");
    relay_group_ = parallel::MakeSingleGroup("relay");
  } else {
    parallel::SilenceStoreWarnings();
    store_ =
        std::make_unique<parallel::Store>(ValueOrThrow(parallel::Store::Connect(env, kDeadline)));
    parallel::GroupOptions group;
    for (int rank = 0; rank < env.world_size; ++rank) group.ranks.push_back(rank);
    group.name = "tp";
    group.deadline = kDeadline;
    group.local_address = parallel::LocalAddressTowards(env.master_addr);
    group_ = parallel::MakeProcessGroup(*store_, env.rank, group);
    group.name = "relay";
    group.deadline = kPatience;
    relay_group_ = parallel::MakeProcessGroup(*store_, env.rank, group);
  }
  relay_ = std::make_unique<PromptRelay>(*relay_group_);
}

void InferenceModel::LoadWeights(const std::string& path, at::ScalarType dtype) {
  const parallel::Layout layout =
      ValueOrThrow(parallel::Layout::Make(group_->size(), group_->size(), 1));
  const parallel::Seat seat{layout, group_->rank()};
  const parallel::WeightStoreOptions options{dtype, at::kCPU};
  if (!IsCheckpoint(path)) {
    weights_ = std::make_unique<parallel::WeightStore>(decoder_->parameters(), options);
    ThrowIfError(trainer::ImportWeights(path, config(), model::Head::kVocabulary,
                                        weights_->Table(seat, true)));
    return;
  }
  // A checkpoint is read as it was saved, and converted after that.
  const at::ScalarType there = ScalarOf(ValueOrThrow(StepDType(path)));
  auto saved = std::make_unique<parallel::WeightStore>(
      decoder_->parameters(), parallel::WeightStoreOptions{there, at::kCPU});
  ThrowIfError(ReadStepWeights(path, saved->Table(seat, true)));
  if (there == dtype) {
    weights_ = std::move(saved);
    return;
  }
  weights_ = std::make_unique<parallel::WeightStore>(decoder_->parameters(), options);
  weights_->flat().copy_(saved->flat());
}

rollout::Engine InferenceModel::MakeEngine(rollout::EngineOptions options) {
  options.tokenizer = text_.tokenizer();
  options.eos_token_ids.assign(stop_ids().begin(), stop_ids().end());
  return {*decoder_, *group_, options};
}

void InferenceModel::Leave() {
  if (group_->size() == 1) return;
  group_->Barrier();
  group_->Shutdown();
  relay_group_->Shutdown();
}

}  // namespace keel::tools
