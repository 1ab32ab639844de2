#include "tests/checkpoint/simulation/fiber.h"

#include <cxxabi.h>
#include <sys/mman.h>

#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <utility>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

namespace keel::checkpoint::testing {

FiberStacks::~FiberStacks() {
  for (void* stack : free_) munmap(stack, kBytes);
}

void* FiberStacks::Take() {
  if (!free_.empty()) {
    void* const stack = free_.back();
    free_.pop_back();
    return stack;
  }
  void* const stack = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
  if (stack == MAP_FAILED) throw std::runtime_error("no memory for the stack of a fiber");
  return stack;
}

Fiber::Fiber(FiberStacks& stacks, std::function<void()> body)
    : stacks_(stacks), stack_(stacks.Take()), body_(std::move(body)) {
  getcontext(&context_);
  context_.uc_stack.ss_sp = stack_;
  context_.uc_stack.ss_size = FiberStacks::kBytes;
  context_.uc_link = nullptr;
  // makecontext passes ints alone.
  const auto self = reinterpret_cast<uintptr_t>(this);
  makecontext(&context_, reinterpret_cast<void (*)()>(&Fiber::Enter), 2,
              static_cast<unsigned int>(self >> 32), static_cast<unsigned int>(self));
#if defined(__SANITIZE_THREAD__)
  own_thread_ = __tsan_create_fiber(0);
#endif
}

Fiber::~Fiber() {
#if defined(__SANITIZE_THREAD__)
  __tsan_destroy_fiber(own_thread_);
#endif
  stacks_.Return(stack_);
}

void Fiber::Enter(unsigned int high, unsigned int low) {
  reinterpret_cast<Fiber*>((uintptr_t{high} << 32) | low)->Run();
}

void Fiber::Run() {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(nullptr, &callers_stack_, &callers_stack_size_);
#endif
  try {
    body_();
  } catch (...) {
    failure_ = std::current_exception();
  }
  body_ = nullptr;
  ended_ = true;
  Switch(context_, caller_, false);  // never comes back
}

void Fiber::Switch(ucontext_t& from, ucontext_t& to, [[maybe_unused]] bool into_fiber) {
#if defined(__SANITIZE_ADDRESS__)
  void** const left = into_fiber ? &callers_fake_stack_ : ended_ ? nullptr : &own_fake_stack_;
  __sanitizer_start_switch_fiber(left, into_fiber ? stack_ : callers_stack_,
                                 into_fiber ? FiberStacks::kBytes : callers_stack_size_);
#endif
#if defined(__SANITIZE_THREAD__)
  __tsan_switch_to_fiber(into_fiber ? own_thread_ : callers_thread_, 0);
#endif
  swapcontext(&from, &to);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(into_fiber ? callers_fake_stack_ : own_fake_stack_,
                                  into_fiber ? nullptr : &callers_stack_,
                                  into_fiber ? nullptr : &callers_stack_size_);
#endif
}

void Fiber::Resume() {
  if (ended_) throw std::logic_error("a fiber that has ended cannot go on");
#if defined(__SANITIZE_THREAD__)
  callers_thread_ = __tsan_get_current_fiber();
#endif
  Exceptions* const current = reinterpret_cast<Exceptions*>(abi::__cxa_get_globals());
  const Exceptions mine = *current;
  *current = exceptions_;
  Switch(caller_, context_, true);
  exceptions_ = *current;
  *current = mine;
  if (failure_ != nullptr) std::rethrow_exception(std::exchange(failure_, nullptr));
}

void Fiber::Pause() { Switch(context_, caller_, false); }

}  // namespace keel::checkpoint::testing
