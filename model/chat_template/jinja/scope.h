// Gives every name of a template its place, as Jinja does: which `set` a name means is settled
// before anything runs.
//
// A scope is the template, the body of a loop, of a macro, of {% with %}, {% generation %}, a block
// `set` or {% filter %}; the branches of an `if` belong to the scope around. A name that a scope
// writes is the scope's own, and starts as a copy of the one outside; a name that is only read is
// the nearest one outside, or the caller's. A macro sees the variables around it as they are when
// it is called.
#pragma once

#include "model/chat_template/jinja/syntax.h"

namespace keel::model::jinja {

struct Program {
  Block block;
  ScopeStart start;
  int slots = 0;  // of the template's own activation
  bool has_generation = false;
};

// Completes the tree. Fails for a filter or a test that does not exist, but where an `if` is around
// it, as that may keep it from running.
Program ResolveNames(Block block);

}  // namespace keel::model::jinja
