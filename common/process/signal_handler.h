// Signal handlers that run on a stack of their own.
//
// Code that is made at run time (the kernels of oneDNN's products) may let the stack pointer point
// at other memory, where the frame of a signal would overwrite what it works on.
#pragma once

#include <array>
#include <csignal>

#include "common/status.h"

namespace keel {

// What a launcher passes on to its ranks. In a rank that is a keel it is held back until that has
// said how it takes them: until then each would end it.
inline constexpr std::array kJobSignals = {SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2};

// Calls of the system that a signal interrupts go on. To be called on the main thread: there
// signals to the process arrive, while it does not block them, and it alone gets a stack for them.
Status HandleSignal(int number, void (*handler)(int));

// Those by which a person, or a batch system, ends a command.
inline constexpr std::array kEndSignals = {SIGINT, SIGTERM, SIGHUP};
// HandleSignal for each of these that would end the program: one that is ignored, as under nohup,
// or that the program takes itself, stays as it is.
void HandleEndSignals(void (*handler)(int));
// Takes `handler` away again, wherever it is still the one: the signal ends the program.
void ReleaseEndSignals(void (*handler)(int));
// For a handler: the process ends as by a signal that it does not handle.
void EndBySignal(int number);
// As process 1 of a container the kernel keeps from a program what it does not handle. Where this
// is one, the end signals end it as they end any other. To be called first of all.
void HearEndSignalsAsProcessOne();

// Lets a write to a socket or a pipe whose reader is gone fail with EPIPE. Libraries (gloo, libuv)
// write without MSG_NOSIGNAL and leave SIGPIPE to the program, whose default is to die without a
// word; a lost peer is to be reported. A handler that the program set stays.
void IgnoreBrokenPipes();

}  // namespace keel
