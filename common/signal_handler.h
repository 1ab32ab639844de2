// Signal handlers that run on a stack of their own.
//
// Code that is made at run time (the kernels of oneDNN's products) may let the stack pointer point
// at other memory, where the frame of a signal would overwrite what it works on.
#pragma once

#include "common/status.h"

namespace keel {

// Calls of the system that a signal interrupts go on. On the main thread, which is where signals to
// the process arrive while it does not block them; on another thread they need a stack there, too.
Status HandleSignal(int number, void (*handler)(int));

}  // namespace keel
