// The process group of one rank: every operation is local.

#include "parallel/groups/process_group.h"

namespace keel::parallel {

namespace {

class DoneWork final : public Work {
 public:
  void Wait() override {}
};

class SingleGroup final : public ProcessGroup {
 public:
  explicit SingleGroup(std::string name) : name_(std::move(name)) {}

  int rank() const override { return 0; }
  int size() const override { return 1; }
  const std::string& name() const override { return name_; }

  std::unique_ptr<Work> AllReduceAsync(at::Tensor&, ReduceOp) override { return Done(); }
  std::unique_ptr<Work> AllGatherAsync(at::Tensor& out, const at::Tensor& in) override {
    return Copy(out, in);
  }
  std::unique_ptr<Work> ReduceScatterAsync(at::Tensor& out, const at::Tensor& in) override {
    return Copy(out, in);
  }
  std::unique_ptr<Work> AllToAllAsync(at::Tensor& out, const at::Tensor& in,
                                      const std::vector<int64_t>&,
                                      const std::vector<int64_t>&) override {
    return Copy(out, in);
  }
  void Broadcast(at::Tensor&, int) override {}
  std::unique_ptr<Work> SendAsync(const at::Tensor&, int, int) override { return NoPeer("send"); }
  std::unique_ptr<Work> RecvAsync(at::Tensor&, int, int) override { return NoPeer("receive"); }
  void Barrier() override {}
  void Shutdown() override {}

 private:
  static std::unique_ptr<Work> Done() { return std::make_unique<DoneWork>(); }
  static std::unique_ptr<Work> Copy(at::Tensor& out, const at::Tensor& in) {
    out.view({-1}).copy_(in.reshape({-1}));
    return Done();
  }
  std::unique_ptr<Work> NoPeer(const char* operation) const {
    throw Error(StatusCode::kInternal,
                std::string(operation) + " in group " + name_ + ", which has one rank");
  }

  std::string name_;
};

}  // namespace

std::unique_ptr<ProcessGroup> MakeSingleGroup(std::string name) {
  return std::make_unique<SingleGroup>(std::move(name));
}

}  // namespace keel::parallel
