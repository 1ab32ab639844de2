#include "tools/inference/inference_model.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <span>
#include <utility>

#include "common/files/file_system.h"
#include "common/guarded.h"
#include "common/hash.h"
#include "common/memory/host_memory.h"
#include "common/process/program_id.h"
#include "common/progress.h"
#include "common/terminal.h"
#include "parallel/groups/context.h"
#include "parallel/tensor/matrix_product.h"
#include "tools/counted_reads.h"
#include "tools/inference/step_weights.h"
#include "trainer/config/choices.h"
#include "trainer/engine/memory_forecast.h"
#include "trainer/engine/weights_digest.h"
#include "trainer/run/store_coordinator.h"

namespace keel::tools {

namespace {

constexpr std::chrono::milliseconds kDeadline{600'000};  // of a peer that still reads its weights
// A person may think for as long as he likes before he says something.
constexpr std::chrono::hours kPatience{24 * 365};

at::ScalarType ScalarOf(DType dtype) { return dtype == DType::kBF16 ? at::kBFloat16 : at::kFloat; }

}  // namespace

InferenceModel::InferenceModel(const InferenceOptions& options) : env_(options.env) {
  const int world = std::max(1, env_.world_size);
  const int tp = options.tp == 0 ? world : static_cast<int>(options.tp);
  if (tp < 1 || world % tp != 0) {
    throw Error(StatusCode::kUsage,
                fmt::format("--tp {} does not divide the {} ranks into copies of the model",
                            options.tp, world));
  }
  const auto wish = ValueOrThrow(trainer::ParseDeviceWish(options.device));
  if (wish.index && world > 1) {
    throw Error(StatusCode::kUsage,
                fmt::format("--device {} with {} ranks: each has a GPU of its own, by its number; "
                            "give --device cuda, and choose the GPUs by CUDA_VISIBLE_DEVICES",
                            options.device, world));
  }
  // 1. What is named: whether this machine holds it is known before the other ranks are met.
  if (!options.choose) {
    if (options.path.empty())
      throw Error(StatusCode::kUsage, "--model: the directory's name is empty");
    ThrowIfError(Examine(options.path, options, tp));
    // The threads of groups come after.
    if (trainer::DeviceOf(ValueOrThrow(trainer::OfferHere(wish, env_.local_rank))).is_cpu())
      parallel::MakeHostKernels(dtype_);
    Connect(wish, tp);
    for (const std::string& note : source().left_out)
      if (leads()) WriteStderr(fmt::format("keel: {}\n", note));
    Agree("model", Facts(options));
    MakeDecoder();
    ThrowIfError(LoadWeights());
    return;
  }
  // 2. What the first rank chooses, until all can read it.
  Connect(wish, tp);
  for (Status last;;) {
    std::string path;
    if (leads()) {
      path = options.choose(last);
      relay_->SendBytes(path);
    } else {
      path = relay_->ReceiveBytes().value_or("");
    }
    last = Examine(path, options, tp);
    if (last.ok()) {
      MakeDecoder();
      last = LoadWeights();
    }
    if (relay_->Least(last.ok() ? 1 : 0) == 1) {
      Agree("model", Facts(options));
      return;
    }
    if (last.ok()) last = Status(StatusCode::kUnavailable, "another rank could not read it");
  }
}

Status InferenceModel::Examine(const std::string& path, const InferenceOptions& options, int tp) {
  return Guarded([&]() -> Status {
    KEEL_ASSIGN_OR_RETURN(
        named_, OpenNamedModel(path, {.base = options.base, .todays_date = options.todays_date}));
    const auto wanted = ParseName<trainer::WeightDtype>(options.dtype);
    const bool bf16 =
        wanted ? *wanted == trainer::WeightDtype::kBfloat16 : named_.dtype == DType::kBF16;
    dtype_ = bf16 ? at::kBFloat16 : at::kFloat;
    const trainer::MemoryForecast forecast = trainer::ForecastInference(
        config(), (bf16 ? 2.0 : 4.0) * static_cast<double>(options.copies) / tp, 0);
    return trainer::CheckMemory(forecast, ReadHostMemory(), options.env.local_world_size, false)
        .status()
        .WithContext(path);
  });
}

trainer::SharedFacts InferenceModel::Facts(const InferenceOptions& options) const {
  trainer::SharedFacts facts = options.asked;
  if (env_.world_size == 1) return facts;  // nobody to compare with
  static constexpr char kHere = 0;         // in the module, whose build is meant
  facts["program"] = fmt::format("keel {} (build {})", ProgramVersion(), BuildId(&kHere));
  facts["model"] = fmt::format("config digest {}", config().Digest());
  facts["type of the weights"] = dtype();
  facts["ids that end a text"] = fmt::format("{}", fmt::join(stop_ids(), ", "));
  for (const checkpoint::Document& document : source().documents) {
    facts["content of " + std::filesystem::path(document.path).filename().string()] =
        "digest " + Hash128(std::as_bytes(std::span(document.content))).ToHex();
  }
  facts.merge(ValueOrThrow(WeightFacts(named_)));
  return facts;
}

void InferenceModel::Agree(const std::string& topic, const trainer::SharedFacts& facts) {
  if (env_.world_size == 1) return;
  trainer::StoreCoordinator coordinator(ValueOrThrow(store_->Clone()).WithPrefix(topic), env_.rank,
                                        env_.world_size);
  ThrowIfError(trainer::AgreeOnFacts(coordinator, facts, kDeadline));
}

void InferenceModel::MakeDecoder() {
  if (device_.is_cpu()) parallel::MakeHostKernels(dtype_);
  weights_.reset();
  decoder_ = std::make_unique<model::Decoder>(
      config(), parallel::TensorParallel{group_.get(), false}, DecoderSettings(device_));
}

InferenceModel::~InferenceModel() = default;

model::DecoderOptions InferenceModel::DecoderSettings(const at::Device& device) const {
  model::DecoderOptions options;
  options.dtype = dtype_;
  options.device = device;
  return options;
}

void InferenceModel::Connect(const trainer::DeviceWish& wish, int tp) {
  const parallel::DeviceOffer offer = ValueOrThrow(trainer::OfferHere(wish, env_.local_rank));
  if (env_.world_size > 1) {
    parallel::SilenceStoreWarnings();
    store_ =
        std::make_unique<parallel::Store>(ValueOrThrow(parallel::Store::Connect(env_, kDeadline)));
    trainer::StoreCoordinator coordinator(ValueOrThrow(store_->Clone()), env_.rank,
                                          env_.world_size);
    device_ = ValueOrThrow(trainer::AgreeOnDevice(coordinator, offer, wish, kDeadline)).device;
  } else {
    device_ = trainer::DeviceOf(offer);
  }
  MakeGroups(tp);
  relay_ = std::make_unique<PromptRelay>(*relay_group_);
}

void InferenceModel::MakeGroups(int tp) {
  const auto make = [&](const std::string& name, int first, int count, bool computes) {
    if (count == 1) return parallel::MakeSingleGroup(name);
    parallel::GroupOptions group;
    for (int rank = first; rank < first + count; ++rank) group.ranks.push_back(rank);
    group.name = name;
    group.deadline = computes ? kDeadline : std::chrono::milliseconds(kPatience);
    group.local_address = parallel::LocalAddressTowards(env_.master_addr);
    group.cuda = computes && !device_.is_cpu();
    group.device_index = device_.index();
    return parallel::MakeProcessGroup(*store_, env_.rank, group);
  };
  const int replica = env_.rank / tp;
  const std::string number = replica == 0 ? "" : std::to_string(replica);
  group_ = make("tp" + number, replica * tp, tp, true);
  relay_group_ = make("relay" + number, replica * tp, tp, false);
  if (env_.world_size > tp) all_ = make("all", 0, env_.world_size, false);
}

parallel::Seat InferenceModel::SeatHere() const {
  const parallel::Layout layout =
      ValueOrThrow(parallel::Layout::Make(group_->size(), group_->size(), 1));
  return {layout, group_->rank()};
}

Status InferenceModel::LoadWeights() {
  using Which = parallel::WeightStore::Which;
  // 1. Into host memory. A checkpoint is read as it was saved, and converted after that.
  const at::ScalarType there = named_.is_step ? ScalarOf(named_.dtype) : dtype_;
  auto read = std::make_unique<parallel::WeightStore>(
      decoder_->parameters(), parallel::WeightStoreOptions{there, at::kCPU});
  const ShardTable own = read->Table(SeatHere(), true, {}, Which::kOwn);
  const ShardTable base = read->Table(SeatHere(), true, {}, Which::kBase);
  Status done = Status::Ok();
  {
    Progress bar(BytesBar("load", own.bytes() + base.bytes()));
    done = ReadNamedWeights(named_, own, base, &bar);
  }
  KEEL_RETURN_IF_ERROR(done);
  // In another type than that run's the digest is another one.
  if (named_.base_is && ScalarOf(named_.base_is->dtype) == there) {
    KEEL_RETURN_IF_ERROR(
        CheckBaseDigest(named_, trainer::WeightsDigest(base, at::kCPU, *relay_group_)));
  }
  // 2. To where the model computes, in its type.
  if (there == dtype_ && device_.is_cpu()) {
    weights_ = std::move(read);
    return Status::Ok();
  }
  weights_ = std::make_unique<parallel::WeightStore>(decoder_->parameters(),
                                                     parallel::WeightStoreOptions{dtype_, device_});
  weights_->CopyFrom(*read);
  return Status::Ok();
}

std::unique_ptr<WeightTwin> InferenceModel::MakeTwin() const {
  auto twin = std::make_unique<WeightTwin>();
  twin->decoder_ = std::make_unique<model::Decoder>(
      config(), parallel::TensorParallel{group_.get(), false}, DecoderSettings(at::kCPU));
  twin->seat_ = SeatHere();
  return twin;
}

Status WeightTwin::Read(const std::string& step) {
  KEEL_ASSIGN_OR_RETURN(const DType saved, StepDType(step));
  weights_ = std::make_unique<parallel::WeightStore>(
      decoder_->parameters(), parallel::WeightStoreOptions{ScalarOf(saved), at::kCPU});
  return ReadStepWeights(step,
                         weights_->Table(seat_, true, {}, parallel::WeightStore::Which::kOwn));
}

void InferenceModel::Adopt(const WeightTwin& twin) { weights_->CopyOwnFrom(*twin.weights_); }

void InferenceModel::WaitForAll() {
  if (all_ != nullptr)
    all_->Barrier();
  else if (relay_group_->size() > 1)
    relay_group_->Barrier();
}

rollout::Engine InferenceModel::MakeEngine(rollout::EngineOptions options) {
  options.tokenizer = text_.tokenizer();
  if (!options.warn && leads())
    options.warn = [](const std::string& text) { WriteStderr(fmt::format("keel: {}\n", text)); };
  options.eos_token_ids.assign(stop_ids().begin(), stop_ids().end());
  return {*decoder_, *group_, options};
}

void InferenceModel::Leave() {
  WaitForAll();
  if (group_->size() > 1) {
    group_->Shutdown();
    relay_group_->Shutdown();
  }
  if (all_ != nullptr) all_->Shutdown();
}

}  // namespace keel::tools
