#include "tools/doctor/doctor_gpu.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <string>

#include "common/clock.h"
#include "parallel/groups/context.h"
#include "parallel/groups/cuda_module.h"
#include "parallel/launch_env.h"
#include "trainer/engine/flops.h"

namespace keel::tools {

namespace {

constexpr double kGib = 1 << 30;

std::string FirstLine(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// "16.0 GT/s PCIe, 16 lanes", as the kernel knows it.
std::string LinkOf(const std::string& bus) {
  const std::string device = "/sys/bus/pci/devices/" + bus;
  const std::string speed = FirstLine(device + "/current_link_speed");
  const std::string width = FirstLine(device + "/current_link_width");
  return speed.empty() ? "link unknown" : fmt::format("{}, {} lanes", speed, width);
}

// The release of the kernel's module, "580.65.06".
std::string DriverRelease() {
  const std::string line = FirstLine("/proc/driver/nvidia/version");
  for (size_t at = 0; at < line.size();) {
    const size_t end = std::min(line.find(' ', at), line.size());
    const std::string word = line.substr(at, end - at);
    if (!word.empty() && word.find_first_not_of("0123456789.") == std::string::npos &&
        word.find('.') != std::string::npos)
      return word;
    at = end + 1;
  }
  return "unknown";
}

// Bytes a second of `times` calls of `move`, each of `bytes`, once one has warmed up.
template <typename Move>
double RateOf(parallel::CudaModule& module, int64_t bytes, Move move) {
  constexpr int kTimes = 8;
  move();
  const auto begin = module.Mark();
  for (int i = 0; i < kTimes; ++i) move();
  const double seconds = ValueOrThrow(module.SecondsBetween(*begin, *module.Mark()));
  return static_cast<double>(bytes) * kTimes / seconds;
}

void MeasureGpu(parallel::CudaModule& module, int index, DoctorReport& report) {
  module.SetDevice(index);
  const at::Device device(at::kCUDA, static_cast<at::DeviceIndex>(index));
  report.Fact("", fmt::format("bf16 {:.0f} TFLOP/s, fp32 {:.0f} TFLOP/s",
                              trainer::MeasureGemmRate(at::kBFloat16, device) / 1e12,
                              trainer::MeasureGemmRate(at::kFloat, device) / 1e12));
  constexpr int64_t kBytes = int64_t{256} << 20;
  const at::TensorOptions bytes = at::TensorOptions().dtype(at::kByte);
  const at::Tensor from = at::zeros({kBytes}, bytes.device(device));
  at::Tensor to = at::empty_like(from);
  const double memory = RateOf(module, 2 * kBytes, [&] { to.copy_(from); });
  void* const pinned = ValueOrThrow(module.AllocatePinned(kBytes));
  at::Tensor host = at::from_blob(pinned, {kBytes}, bytes);
  const double down = RateOf(module, kBytes, [&] { host.copy_(from, /*non_blocking=*/true); });
  const double up = RateOf(module, kBytes, [&] { to.copy_(host, /*non_blocking=*/true); });
  module.Synchronize();
  module.FreePinned(pinned);
  report.Fact("", fmt::format("memory {:.0f} GB/s, to the host {:.1f} GB/s, from it {:.1f} GB/s",
                              memory / 1e9, down / 1e9, up / 1e9));
}

// All ranks, each with its own GPU.
void MeasureNccl(parallel::CudaModule& module, const parallel::LaunchEnv& env,
                 DoctorReport& report) {
  const std::chrono::seconds patience(60);
  const parallel::Store store = ValueOrThrow(parallel::Store::Connect(env, patience));
  module.SetDevice(env.local_rank);
  parallel::GroupOptions options;
  options.name = "doctor";
  for (int rank = 0; rank < env.world_size; ++rank) options.ranks.push_back(rank);
  options.deadline = patience;
  options.cuda = true;
  options.device_index = env.local_rank;
  options.local_address = parallel::LocalAddressTowards(env.master_addr);
  const auto group = parallel::MakeProcessGroup(store, env.rank, options);
  constexpr int64_t kElements = int64_t{64} << 20;
  at::Tensor x =
      at::zeros({kElements},
                at::TensorOptions()
                    .dtype(at::kFloat)
                    .device(at::Device(at::kCUDA, static_cast<at::DeviceIndex>(env.local_rank))));
  // What a ring moves over a link: 2 (n - 1) / n of the tensor.
  const double ranks = env.world_size;
  const double rate =
      RateOf(module, kElements * 4, [&] { group->AllReduce(x); }) * 2 * (ranks - 1) / ranks;
  group->Barrier();
  group->Shutdown();
  if (env.rank == 0)
    report.Fact("nccl", fmt::format("{} ranks, all-reduce of 256 MiB at {:.1f} GB/s over a link",
                                    env.world_size, rate / 1e9));
}

}  // namespace

void ExamineGpus(DoctorReport& report, bool measure) {
  const auto loaded = parallel::LoadCudaModule();
  if (!loaded.ok()) return report.Fact("cuda", loaded.status().message());
  parallel::CudaModule& module = **loaded;
  const auto count = module.DeviceCount();
  if (!count.ok()) return report.Fact("cuda", count.status().message());
  report.Fact("cuda", fmt::format("{} usable {}, driver {}", *count, *count == 1 ? "GPU" : "GPUs",
                                  DriverRelease()));
  const auto env = ValueOrThrow(parallel::DetectLaunchEnv(parallel::ProcessEnvironment()));
  for (int index = 0; index < *count; ++index) {
    const auto facts = module.Describe(index);
    const std::string name = fmt::format("gpu {}", index);
    if (!facts.ok()) {
      report.Fault(name.c_str(), facts.status().message());
      continue;
    }
    const parallel::CudaMemory memory = module.Memory(index);
    report.Fact(
        name.c_str(),
        fmt::format("{}, sm_{}, {:.1f} GiB, {:.1f} free, CUDA {} (driver up to {}), {}, {}",
                    facts->name, facts->capability, static_cast<double>(facts->memory) / kGib,
                    static_cast<double>(memory.free) / kGib, facts->runtime, facts->driver,
                    LinkOf(facts->bus), facts->uuid));
    // Ranks that share a GPU's time would each measure half of it.
    if (measure && (env.world_size == 1 || index == env.local_rank))
      MeasureGpu(module, index, report);
  }
  if (measure && env.world_size > 1 && env.local_rank < *count) MeasureNccl(module, env, report);
}

}  // namespace keel::tools
