#include "trainer/run/job_connection.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "common/files/open_files.h"
#include "common/guarded.h"
#include "parallel/groups/cuda_module.h"
#include "parallel/tensor/determinism.h"
#include "trainer/run/device_agreement.h"
#include "trainer/run/shared_facts.h"

namespace keel::trainer {

namespace {

DeviceWish WishOf(const Config& config) {
  return {config.trainer.device, std::nullopt, config.trainer.share_gpus};
}

// What this rank could compute on, as text. How kernels sum is settled before the first of them is
// loaded.
std::string OfferOfRank(const TrainerInputs& inputs) {
  const Config& config = inputs.loaded.config;
  parallel::UseDeterministicKernels(config.trainer.deterministic);
  const auto offer = OfferHere(WishOf(config), inputs.env.local_rank);
  if (!offer.ok()) throw Error(offer.status().WithContext("trainer.device"));
  return offer->ToText();
}

// Ranks that all connect at once at little cost. Then a rank that is gone is named by each that
// waits for it; of more ranks most have nothing for each other in a load.
constexpr int kMostOfAMesh = 64;

parallel::DeviceOffer Read(const std::string& offer) {
  return ValueOrThrow(parallel::DeviceOffer::FromText(offer));
}

}  // namespace

JobConnection::JobConnection(const TrainerInputs& inputs, Logger& log)
    : inputs_(inputs),
      log_(log),
      offer_(OfferOfRank(inputs)),
      device_(DeviceOf(Read(offer_))),
      deadline_(static_cast<int64_t>(inputs.loaded.config.trainer.deadline_seconds * 1000)) {}

void JobConnection::Connect(SharedFacts facts) {
  const Config& config = inputs_.loaded.config;
  const MegatronSection& megatron = config.actor_rollout_ref.actor.megatron;
  const auto layout = ValueOrThrow(parallel::Layout::Make(
      inputs_.env.world_size, static_cast<int>(megatron.tensor_model_parallel_size),
      static_cast<int>(megatron.pipeline_model_parallel_size)));
  // A connection to every other rank, at worst, for each of a few groups.
  if (const Status files = RaiseOpenFileLimit(int64_t{2} * inputs_.env.world_size + 256);
      !files.ok() && inputs_.env.rank == 0)
    log_.Warning("{}", files.message());
  store_ = std::make_unique<parallel::Store>(
      ValueOrThrow(parallel::Store::Connect(inputs_.env, deadline_)));
  hang_report_ =
      std::make_unique<parallel::HangReport>(*store_, inputs_.env.rank, inputs_.env.world_size);
  coordinator_ = std::make_unique<StoreCoordinator>(ValueOrThrow(store_->Clone()), inputs_.env.rank,
                                                    inputs_.env.world_size);
  facts.merge(FactsOfRun(inputs_.loaded, device_));
  facts.erase("device");  // about that they come to an agreement
  ThrowIfError(AgreeOnFacts(*coordinator_, facts, deadline_));
  const DeviceWish wish = WishOf(config);
  const AgreedDevice agreed =
      ValueOrThrow(AgreeOnDevice(*coordinator_, Read(offer_), wish, deadline_));
  device_ = agreed.device;
  if (inputs_.env.rank == 0 && wish.kind != DeviceKind::kCpu)
    log_.Write(agreed.refused ? LogLevel::kWarning : LogLevel::kInfo, "device: " + agreed.said);
  parallel::ContextOptions options;
  options.cuda = !device_.is_cpu();
  options.by_host = config.trainer.share_gpus;
  options.device_index = device_.index();
  options.deadline = deadline_;
  options.local_address = parallel::LocalAddressTowards(inputs_.env.master_addr);
  context_ =
      std::make_unique<parallel::ParallelContext>(layout, inputs_.env.rank, *store_, options);
  log_.Info("{}, {} on {}", context_->Overview(), NameOf(config.actor_rollout_ref.model.dtype),
            device_.str());
}

void JobConnection::Leave() {
  context_->world().Barrier();
  context_->Shutdown();
  all_left_ = true;
}

std::unique_ptr<parallel::ProcessGroup> JobConnection::MakeHostGroup(const char* name) const {
  if (device_.is_cpu() || inputs_.env.world_size == 1) return nullptr;
  parallel::GroupOptions options;
  options.name = name;
  for (int r = 0; r < inputs_.env.world_size; ++r) options.ranks.push_back(r);
  options.deadline = deadline_;
  options.local_address = parallel::LocalAddressTowards(inputs_.env.master_addr);
  options.lazy = inputs_.env.world_size > kMostOfAMesh;
  return parallel::MakeProcessGroup(*store_, inputs_.env.rank, options);
}

Status JobConnection::CauseOf(const std::exception& error) const {
  if (!device_.is_cpu()) {
    const Status lost = ValueOrThrow(parallel::LoadCudaModule())->Lost();
    if (!lost.ok()) return lost;
  }
  return StatusOf(error);
}

std::string JobConnection::WhoHangs(const std::exception& error) const {
  if (hang_report_ == nullptr || inputs_.env.world_size == 1 || all_left_) return {};
  const Status cause = CauseOf(error);
  // Ranks begin to wait, and so give up, within a step of each other.
  constexpr std::chrono::milliseconds kLeast(2'000), kMost(10'000);
  return hang_report_->GiveUp(cause, std::clamp(deadline_ / 4, kLeast, kMost));
}

}  // namespace keel::trainer
