#include "model/chat_template/jinja/evaluator.h"

#include <utility>

#include "model/chat_template/jinja/text_form.h"
#include "model/chat_template/unicode/code_points.h"

namespace keel::model::jinja {

bool LoopState::Next() {
  Value next;
  if (!ahead.empty()) {
    next = std::move(ahead.back());
    ahead.pop_back();
  } else if (pull == nullptr || !pull(&next)) {
    return false;
  }
  previous = std::exchange(current, std::move(next));
  ++index0;
  return true;
}

const Value* LoopState::PeekNext() {
  if (ahead.empty()) {
    Value next;
    if (pull == nullptr || !pull(&next)) return nullptr;
    ahead.push_back(std::move(next));
  }
  return &ahead.back();
}

int64_t LoopState::Remaining() {
  std::vector<Value> more;
  Value next;
  while (pull != nullptr && pull(&next)) more.push_back(std::move(next));
  // The first of them is the last to be given.
  ahead.insert(ahead.begin(), std::make_move_iterator(more.rbegin()),
               std::make_move_iterator(more.rend()));
  return static_cast<int64_t>(ahead.size());
}

std::string Evaluator::Run(std::vector<ByteRange>* generated) {
  generated_ = generated;
  kept_.push_back(std::make_unique<Activation>(program_.slots, nullptr));
  now_ = kept_.back().get();
  Start(program_.start);
  Exec(program_.block);
  for (ByteRange& range : *generated_) {
    auto end = static_cast<size_t>(range.begin);
    for (int64_t left = range.end - range.begin; left > 0 && end < root_.size(); --left)
      NextCharacter(root_, &end);
    range.end = static_cast<int64_t>(end);
  }
  return std::move(root_);
}

Activation& Evaluator::At(const Slot& slot) const {
  Activation* activation = now_;
  for (int i = 0; i < slot.hops; ++i) activation = activation->around;
  return *activation;
}

void Evaluator::Set(const Slot& slot, Value value) {
  Activation& activation = At(slot);
  const auto index = static_cast<size_t>(slot.index);
  activation.values[index] = std::move(value);
  activation.set[index] = true;
}

void Evaluator::Start(const ScopeStart& start) {
  for (const SlotStart& one : start) {
    const auto index = static_cast<size_t>(one.index);
    now_->set[index] = false;
    now_->values[index] = Value();
    if (one.from == SlotStart::From::kContext) {
      if (const Value* value = variables_.Find(std::string_view(one.name))) {
        now_->values[index] = *value;
        now_->set[index] = true;
      } else if (const FunctionEntry* function = FindFunction(one.name)) {
        now_->values[index] = Value::Function(function);
        now_->set[index] = true;
      } else if (one.name == "self") {
        now_->values[index] = Value::Self();
        now_->set[index] = true;
      }
    } else if (one.from == SlotStart::From::kSlot) {
      const Activation& outer = At(one.slot);
      const auto from = static_cast<size_t>(one.slot.index);
      now_->values[index] = outer.values[from];
      now_->set[index] = outer.set[from];
    }
  }
}

Evaluator::Flow Evaluator::Exec(const Block& block) {
  const Nested nested(machine_);
  for (const auto& stmt : block) {
    const Flow flow = ExecStmt(*stmt);
    if (flow != Flow::kOn) return flow;
  }
  return Flow::kOn;
}

Evaluator::Flow Evaluator::ExecStmt(const Stmt& stmt) {
  machine_.line = stmt.line;
  machine_.Step();
  Flow flow = Flow::kOn;
  switch (stmt.kind) {
    case StmtKind::kText:
      Write(stmt.text);
      break;
    case StmtKind::kPrint:
      for (const ExprPtr& expr : stmt.exprs) {
        const Value value = Eval(*expr);
        machine_.Step(value.weight());
        Write(value.is_string() ? value.text() : ToText(value));
      }
      break;
    case StmtKind::kIf:
      return ExecIf(stmt);
    case StmtKind::kFor:
      return ExecFor(stmt);
    case StmtKind::kSet:
      Assign(stmt.target, Eval(*stmt.exprs[0]));
      break;
    case StmtKind::kSetBlock:
    case StmtKind::kFilterBlock: {
      Value text = Value::String(Capture(stmt, &flow));
      if (flow != Flow::kOn) return flow;
      if (stmt.exprs[0] != nullptr) text = ApplyFilter(*stmt.exprs[0], &text);
      if (stmt.kind == StmtKind::kSetBlock) {
        Assign(stmt.target, text);
      } else {
        if (!text.is_string()) {
          Fail("the filter of a block must give text, not a " + std::string(TypeName(text)));
        }
        Write(text.text());
      }
      break;
    }
    case StmtKind::kMacro: {
      auto macro = std::make_shared<MacroValue>(MacroValue{&stmt, now_});
      Set(stmt.target.slot, Value::Macro(std::move(macro)));
      break;
    }
    case StmtKind::kCallBlock: {
      auto caller = std::make_shared<MacroValue>(MacroValue{&stmt, now_});
      const Value text = EvalCall(*stmt.exprs[0], Value::Macro(std::move(caller)));
      if (!text.is_string()) Fail("what a 'call' block calls must give text");
      Write(text.text());
      break;
    }
    case StmtKind::kWith:
      return ExecWith(stmt);
    case StmtKind::kGeneration:
      ExecGeneration(stmt);
      break;
    case StmtKind::kLoad: {
      // As without a loader in jinja, which only asks for nothing without an error.
      const Value name = Eval(*stmt.exprs[0]);
      const bool nothing = !name.is_string() && !name.is_undefined() && !name.truth();
      if (stmt.may_miss && nothing) break;
      Fail("the tag '" + stmt.text + "' cannot run: a chat template has no others to load");
    }
    case StmtKind::kBreak:
      return Flow::kBreak;
    case StmtKind::kContinue:
      return Flow::kContinue;
  }
  return Flow::kOn;
}

Evaluator::Flow Evaluator::ExecIf(const Stmt& stmt) {
  for (size_t i = 0; i < stmt.exprs.size(); ++i) {
    if (Eval(*stmt.exprs[i]).truth()) return Exec(stmt.bodies[i]);
  }
  return stmt.bodies.size() > stmt.exprs.size() ? Exec(stmt.bodies.back()) : Flow::kOn;
}

Evaluator::Flow Evaluator::ExecFor(const Stmt& stmt) {
  const Value source = Eval(*stmt.exprs[0]);
  if (!stmt.recursive) return RunLoop(stmt, source, 0);
  // Jinja makes the text of such a loop before it writes any.
  const Value text = Recurse(stmt, source, 0);
  Write(text.text());
  return Flow::kOn;
}

Value Evaluator::Recurse(const Stmt& stmt, const Value& source, int depth) {
  const Nested nested(machine_);
  // The rounds within have the variables of the round around: it gets its own back.
  const auto first = static_cast<std::ptrdiff_t>(stmt.first_slot);
  const auto last = static_cast<std::ptrdiff_t>(stmt.last_slot);
  const ValueList values(now_->values.begin() + first, now_->values.begin() + last);
  const std::vector<bool> set(now_->set.begin() + first, now_->set.begin() + last);
  std::string text;
  std::string* const around = std::exchange(out_, &text);
  RunLoop(stmt, source, depth);
  out_ = around;
  std::copy(values.begin(), values.end(), now_->values.begin() + first);
  std::copy(set.begin(), set.end(), now_->set.begin() + first);
  return Value::String(std::move(text));
}

Evaluator::Flow Evaluator::RunLoop(const Stmt& stmt, const Value& source, int depth) {
  machine_.line = stmt.line;
  const bool shares = source.is_sequence() || source.Is(Kind::kView);
  const ValueList own = shares ? ValueList() : Iterate(source);
  const ValueList& items = shares ? source.items() : own;
  size_t at = 0;
  auto loop = std::make_shared<LoopState>();
  loop->depth0 = depth;
  Activation* const here = now_;
  if (stmt.recursive) {
    loop->recurse = [this, &stmt, depth, here](const Value& inner) {
      Activation* const asking = std::exchange(now_, here);
      Value text = Recurse(stmt, inner, depth + 1);
      now_ = asking;
      return text;
    };
  }
  loop->pull = [&](Value* next) {
    while (at < items.size()) {
      const Value& item = items[at++];
      machine_.Step();
      if (stmt.exprs[1] != nullptr) {
        // `loop.last` may be asked for from a macro: the condition runs where the loop is.
        Activation* const asking = std::exchange(now_, here);
        Start(stmt.starts[2]);
        Assign(stmt.parameters[0], item);
        const bool holds = Eval(*stmt.exprs[1]).truth();
        now_ = asking;
        if (!holds) continue;
      }
      *next = item;
      return true;
    }
    return false;
  };
  // Whatever ends the loop: `loop` may live on in a namespace, what it pulls from does not.
  struct Ended {
    LoopState* state;
    ~Ended() {
      state->pull = nullptr;
      state->recurse = nullptr;
    }
  } const ended{loop.get()};
  // As in jinja, a round that a `break` or `continue` ends does not keep the `else` from running.
  bool any = false;
  while (loop->Next()) {
    machine_.Step();
    Start(stmt.starts[0]);
    Assign(stmt.target, loop->current);
    if (stmt.loop.index >= 0) Set(stmt.loop, Value::Loop(loop, source));
    const Flow flow = Exec(stmt.bodies[0]);
    any |= flow == Flow::kOn;
    if (flow == Flow::kBreak) break;
  }
  if (any) return Flow::kOn;
  Start(stmt.starts[1]);
  return Exec(stmt.bodies[1]);
}

Evaluator::Flow Evaluator::ExecWith(const Stmt& stmt) {
  ValueList values;
  for (const ExprPtr& expr : stmt.exprs) values.push_back(Eval(*expr));
  Start(stmt.starts[0]);
  for (size_t i = 0; i < values.size(); ++i) Assign(stmt.parameters[i], values[i]);
  return Exec(stmt.bodies[0]);
}

void Evaluator::ExecGeneration(const Stmt& stmt) {
  Flow flow = Flow::kOn;
  // As transformers counts it: from what the template itself has written so far, and in characters,
  // which Run makes bytes of: within a macro or a block `set` the text that stands there may be
  // another one.
  const auto begin = static_cast<int64_t>(root_.size());
  const std::string text = Capture(stmt, &flow);
  generated_->push_back({begin, begin + CountCharacters(text)});
  Write(text);
}

std::string Evaluator::Capture(const Stmt& stmt, Flow* flow) {
  std::string text;
  std::string* const around = std::exchange(out_, &text);
  struct Back {
    std::string** out;
    std::string* around;
    ~Back() { *out = around; }
  } const back{&out_, around};
  Start(stmt.starts[0]);
  *flow = Exec(stmt.bodies[0]);
  return text;
}

void Evaluator::Write(std::string_view text) {
  machine_.Charge(text.size());
  if (out_->size() + text.size() > kMaxTextBytes) Fail("the text is too long");
  out_->append(text);
}

void Evaluator::Assign(const Target& target, const Value& value) {
  if (!target.parts.empty()) {
    const ValueList items = Iterate(value);
    if (items.size() != target.parts.size()) {
      Fail("expected " + std::to_string(target.parts.size()) + " values to unpack, found " +
           std::to_string(items.size()));
    }
    for (size_t i = 0; i < items.size(); ++i) Assign(target.parts[i], items[i]);
    return;
  }
  if (target.field.empty()) return Set(target.slot, value);
  const Activation& activation = At(target.slot);
  const Value& object = activation.values[static_cast<size_t>(target.slot.index)];
  if (!object.Is(Kind::kNamespace)) {
    Fail("cannot set '" + target.name + "." + target.field +
         "': only a namespace has fields to set");
  }
  if (target.field[0] == '_') {
    Fail("a namespace cannot have the field '" + target.field + "', which begins with '_'");
  }
  object.dict().Set(Value::String(target.field), value);
}

Value Evaluator::CallMacro(const MacroValue& macro, Arguments arguments) {
  const Stmt& stmt = *macro.definition;
  const Nested nested(machine_);
  if (arguments.positional.size() > stmt.parameters.size() && stmt.varargs.index < 0) {
    Fail("macro '" + stmt.target.name + "' takes not more than " +
         std::to_string(stmt.parameters.size()) + " arguments");
  }
  auto activation = std::make_unique<Activation>(stmt.slots, macro.around);
  Activation* const caller = std::exchange(now_, activation.get());
  std::string text;
  std::string* const around = std::exchange(out_, &text);
  struct Back {
    Evaluator* evaluator;
    Activation* caller;
    std::string* around;
    ~Back() {
      evaluator->now_ = caller;
      evaluator->out_ = around;
    }
  } const back{this, caller, around};
  if (stmt.kept) kept_.push_back(std::move(activation));
  Start(stmt.starts[0]);
  const size_t given = std::min(arguments.positional.size(), stmt.parameters.size());
  for (size_t i = 0; i < given; ++i) {
    Set(stmt.parameters[i].slot, std::move(arguments.positional[i]));
  }
  auto more = std::make_shared<Dict>();
  if (stmt.caller.index >= 0) Set(stmt.caller, Value::Undefined("no caller is defined"));
  for (auto& [name, value] : arguments.named) {
    machine_.Step();
    size_t i = given;
    while (i < stmt.parameters.size() && stmt.parameters[i].name != name) ++i;
    if (i < stmt.parameters.size()) {
      Set(stmt.parameters[i].slot, std::move(value));
    } else if (name == "caller" && stmt.caller.index >= 0) {
      Set(stmt.caller, std::move(value));
    } else if (stmt.kwargs.index >= 0) {
      more->Set(Value::String(std::string(name)), std::move(value));
    } else {
      Fail("macro '" + stmt.target.name + "' takes no argument '" + std::string(name) + "'");
    }
  }
  if (stmt.kwargs.index >= 0) Set(stmt.kwargs, Value::FromDict(std::move(more)));
  if (stmt.varargs.index >= 0) {
    const auto rest = arguments.positional.begin() + static_cast<std::ptrdiff_t>(given);
    Set(stmt.varargs, Value::Sequence(Kind::kTuple, ValueList(rest, arguments.positional.end())));
  }
  const size_t first_default = stmt.parameters.size() - stmt.defaults.size();
  for (size_t i = 0; i < stmt.parameters.size(); ++i) {
    const Target& parameter = stmt.parameters[i];
    if (now_->set[static_cast<size_t>(parameter.slot.index)]) continue;
    Set(parameter.slot, i >= first_default
                            ? Eval(*stmt.defaults[i - first_default])
                            : Value::Undefined("parameter '" + parameter.name + "' is missing"));
  }
  Exec(stmt.bodies[0]);
  machine_.line = stmt.line;
  return Value::String(std::move(text));
}

}  // namespace keel::model::jinja
