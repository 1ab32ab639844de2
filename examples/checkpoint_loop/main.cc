// A training loop of libtorch that saves beside its work and resumes exactly: kill it anywhere and
// start it again. Arguments: folder, steps, file for the final weights.
#include <keel/library/state_checkpointer.h>
#include <keel/library/torch_state.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>

#include <cstdio>
#include <fstream>
#include <string>

using namespace keel::library;
using AdamWState = torch::optim::AdamWParamState;

// Names all that the next step depends on. An optimizer has moments only after its first step.
NamedTensors StateOf(torch::nn::Module& model, torch::optim::AdamW& optimizer, int64_t step) {
  NamedTensors state;
  for (const auto& item : model.named_parameters()) {
    auto& entry = optimizer.state()[item.value().unsafeGetTensorImpl()];
    if (entry == nullptr) entry = std::make_unique<AdamWState>();
    auto& moments = static_cast<AdamWState&>(*entry);
    if (!moments.exp_avg().defined()) moments.exp_avg(at::zeros_like(item.value()));
    if (!moments.exp_avg_sq().defined()) moments.exp_avg_sq(at::zeros_like(item.value()));
    moments.step(step);
    state.emplace_back(item.key(), item.value().detach());
    state.emplace_back("optimizer.exp_avg." + item.key(), moments.exp_avg());
    state.emplace_back("optimizer.exp_avg_sq." + item.key(), moments.exp_avg_sq());
  }
  return state;
}

int main(int argc, char** argv) try {
  if (argc != 4) return std::fprintf(stderr, "usage: checkpoint_loop FOLDER STEPS OUT\n"), 64;
  const int64_t steps = std::stoll(argv[2]);
  torch::manual_seed(1);
  torch::nn::Sequential model(torch::nn::Linear(64, 256), torch::nn::Linear(256, 16));
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(1e-3));

  auto checkpoints = keel::ValueOrThrow(StateCheckpointer::Open(argv[1], {.keep = 2}));
  const auto loaded = keel::ValueOrThrow(
      checkpoints->Load(OfTensors(StateOf(*model, optimizer, 0)), {.in_place = true}));
  int64_t step = loaded ? loaded->step : 0;
  StateOf(*model, optimizer, step);  // tells the optimizer how many steps it has made
  std::printf("begins after step %lld\n", static_cast<long long>(step));
  while (++step <= steps) {
    auto random = at::detail::createCPUGenerator(static_cast<uint64_t>(step));  // this step's data
    const at::Tensor x = at::randn({32, 64}, random);
    optimizer.zero_grad();
    at::mse_loss(model->forward(x), x.narrow(1, 0, 16)).backward();
    checkpoints->WaitCopied();  // the update overwrites what a save may still read
    optimizer.step();
    const NamedTensors state = StateOf(*model, optimizer, step);
    (void)keel::ValueOrThrow(checkpoints->SaveAsync(
        step, OfTensors(state), {.extra = "{\"lr\": 1e-3}", .snapshot = Snapshot::kOverlapped}));
    std::printf("step %lld\n", static_cast<long long>(step)), std::fflush(stdout);
  }
  keel::ThrowIfError(checkpoints->Close());
  std::ofstream out(argv[3], std::ios::binary);
  for (const auto& [name, tensor] : StateOf(*model, optimizer, steps))
    out.write(static_cast<const char*>(tensor.const_data_ptr()),
              static_cast<int64_t>(tensor.nbytes()));
} catch (const std::exception& error) {
  return std::fprintf(stderr, "checkpoint_loop: %s\n", error.what()), 1;
}
