// Fiber: a function with a stack of its own, which can pause in the middle and go on later.
//
// All on one thread: a simulation runs the product's own blocking code for many ranks, and decides
// itself who goes on. Not thread-safe.
#pragma once

#include <ucontext.h>

#include <cstddef>
#include <exception>
#include <functional>
#include <memory>
#include <vector>

namespace keel::checkpoint::testing {

// Stacks for reuse: mapping one costs more than most fibers do.
class FiberStacks {
 public:
  static constexpr size_t kBytes = size_t{1} << 20;
  FiberStacks() = default;
  ~FiberStacks();
  FiberStacks(const FiberStacks&) = delete;
  FiberStacks& operator=(const FiberStacks&) = delete;
  void* Take();
  void Return(void* stack) { free_.push_back(stack); }

 private:
  std::vector<void*> free_;
};

class Fiber {
 public:
  // `stacks` must outlive this.
  Fiber(FiberStacks& stacks, std::function<void()> body);
  // The body must have ended.
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // Runs the body until it pauses or ends; throws what the body threw. Not from within the body.
  void Resume();
  // Goes back to who called Resume. From within the body only.
  void Pause();
  bool ended() const { return ended_; }

 private:
  // What the C++ runtime keeps per thread about exceptions in flight; a fiber needs its own.
  struct Exceptions {
    void* caught = nullptr;
    unsigned int uncaught = 0;
  };
  static void Enter(unsigned int high, unsigned int low);
  void Run();
  void Switch(ucontext_t& from, ucontext_t& to, bool into_fiber);

  FiberStacks& stacks_;
  void* const stack_;
  std::function<void()> body_;
  ucontext_t context_{};
  ucontext_t caller_{};
  Exceptions exceptions_;
  std::exception_ptr failure_;
  bool ended_ = false;
  // For the sanitizers, which must be told of every change of stacks.
  void* own_fake_stack_ = nullptr;
  void* callers_fake_stack_ = nullptr;
  const void* callers_stack_ = nullptr;
  size_t callers_stack_size_ = 0;
  void* own_thread_ = nullptr;
  void* callers_thread_ = nullptr;
};

}  // namespace keel::checkpoint::testing
