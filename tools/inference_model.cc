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
#include "trainer/run/store_coordinator.h"

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
  const auto wish = ValueOrThrow(trainer::ParseDeviceWish(options.device));
  if (wish.index && options.env.world_size > 1) {
    throw Error(StatusCode::kUsage,
                fmt::format("--device {} with {} ranks: each has a GPU of its own, by its number; "
                            "give --device cuda, and choose the GPUs by CUDA_VISIBLE_DEVICES",
                            options.device, options.env.world_size));
  }
  Connect(options.env, wish);

  // 3. This rank's part.
  model::DecoderOptions decoder;
  decoder.dtype = bf16 ? at::kBFloat16 : at::kFloat;
  decoder.device = device_;
  decoder_ = std::make_unique<model::Decoder>(
      config(), parallel::TensorParallel{group_.get(), false}, decoder);
  LoadWeights(options.path, decoder.dtype);
}

InferenceModel::~InferenceModel() = default;

void InferenceModel::Connect(const parallel::LaunchEnv& env, const trainer::DeviceWish& wish) {
  const parallel::DeviceOffer offer = ValueOrThrow(trainer::OfferHere(wish, env.local_rank));
  if (env.world_size == 1) {
    device_ = trainer::DeviceOf(offer);
    group_ = parallel::MakeSingleGroup("single");
    relay_group_ = parallel::MakeSingleGroup("relay");
  } else {
    parallel::SilenceStoreWarnings();
    store_ =
        std::make_unique<parallel::Store>(ValueOrThrow(parallel::Store::Connect(env, kDeadline)));
    trainer::StoreCoordinator coordinator(ValueOrThrow(store_->Clone()), env.rank, env.world_size);
    device_ = ValueOrThrow(trainer::AgreeOnDevice(coordinator, offer, wish, kDeadline)).device;
    parallel::GroupOptions group;
    for (int rank = 0; rank < env.world_size; ++rank) group.ranks.push_back(rank);
    group.name = "tp";
    group.deadline = kDeadline;
    group.local_address = parallel::LocalAddressTowards(env.master_addr);
    group.cuda = !device_.is_cpu();
    group.device_index = device_.index();
    group_ = parallel::MakeProcessGroup(*store_, env.rank, group);
    group.name = "relay";
    group.cuda = false;  // it carries prompts
    group.deadline = kPatience;
    relay_group_ = parallel::MakeProcessGroup(*store_, env.rank, group);
  }
  relay_ = std::make_unique<PromptRelay>(*relay_group_);
}

void InferenceModel::LoadWeights(const std::string& path, at::ScalarType dtype) {
  const parallel::Layout layout =
      ValueOrThrow(parallel::Layout::Make(group_->size(), group_->size(), 1));
  const parallel::Seat seat{layout, group_->rank()};
  // 1. Into host memory. A checkpoint is read as it was saved, and converted after that.
  const bool is_step = IsCheckpoint(path);
  const at::ScalarType there = is_step ? ScalarOf(ValueOrThrow(StepDType(path))) : dtype;
  auto read = std::make_unique<parallel::WeightStore>(
      decoder_->parameters(), parallel::WeightStoreOptions{there, at::kCPU});
  ThrowIfError(is_step ? ReadStepWeights(path, read->Table(seat, true))
                       : trainer::ImportWeights(path, config(), model::Head::kVocabulary,
                                                read->Table(seat, true)));
  // 2. To where the model computes, in its type.
  if (there == dtype && device_.is_cpu()) {
    weights_ = std::move(read);
    return;
  }
  weights_ = std::make_unique<parallel::WeightStore>(decoder_->parameters(),
                                                     parallel::WeightStoreOptions{dtype, device_});
  weights_->flat().copy_(read->flat());
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
