// Signal handlers that run on a stack of their own.
//
// Code that is made at run time (the kernels of oneDNN's products) may let the stack pointer point
// at other memory, where the frame of a signal would overwrite what it works on.
#pragma once

#include "common/status.h"

namespace keel {

// Calls of the system that a signal interrupts go on. To be called on the main thread: there
// signals to the process arrive, while it does not block them, and it alone gets a stack for them.
Status HandleSignal(int number, void (*handler)(int));

}  // namespace keel
