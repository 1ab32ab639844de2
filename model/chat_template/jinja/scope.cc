#include "model/chat_template/jinja/scope.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "model/chat_template/jinja/runtime.h"

namespace keel::model::jinja {
namespace {

// The template itself or a macro: what has an activation.
struct Function {
  int depth = 0;
  int slots = 0;
  bool kept = false;
};

struct Place {
  int depth;
  int index;
};

class Scope {
 public:
  Scope(Function* function, const Scope* parent) : function_(function), parent_(parent) {}

  std::optional<Place> Find(const std::string& name) const {
    for (const Scope* scope = this; scope != nullptr; scope = scope->parent_) {
      const auto found = scope->places_.find(name);
      if (found != scope->places_.end()) return found->second;
    }
    return std::nullopt;
  }

  void Load(const std::string& name) {
    if (!Find(name)) Define(name, SlotStart::From::kContext);
  }

  void Store(const std::string& name) {
    stores_.insert(name);
    if (places_.count(name) > 0) return;
    const std::optional<Place> outer = parent_ == nullptr ? std::nullopt : parent_->Find(name);
    Define(name, outer ? SlotStart::From::kSlot : SlotStart::From::kUndefined, outer);
  }

  // A variable that whoever enters the scope sets.
  void Declare(const std::string& name) {
    stores_.insert(name);
    const Place place{function_->depth, function_->slots++};
    places_[name] = place;
  }

  // Takes over what the branches of an `if` have written: what only some of them write starts as it
  // is outside.
  void Merge(const std::vector<Scope>& branches) {
    std::map<std::string, size_t> written;
    for (const Scope& branch : branches) {
      for (const std::string& name : branch.stores_) {
        if (stores_.count(name) == 0) ++written[name];
      }
    }
    for (const Scope& branch : branches) {
      // A later branch's place for a name wins, and every use is resolved after this.
      for (const auto& [name, place] : branch.places_) places_[name] = place;
      for (const auto& [index, start] : branch.starts_) starts_[index] = start;
      stores_.insert(branch.stores_.begin(), branch.stores_.end());
    }
    for (const auto& [name, count] : written) {
      if (count == branches.size()) continue;
      const Place place = places_.at(name);
      const std::optional<Place> outer = parent_ == nullptr ? std::nullopt : parent_->Find(name);
      starts_[place.index] = MakeStart(
          place.index, name, outer ? SlotStart::From::kSlot : SlotStart::From::kContext, outer);
    }
  }

  Slot Use(const std::string& name) const {
    const std::optional<Place> place = Find(name);
    if (!place) throw Error(StatusCode::kInternal, "chat template: no place for " + name);
    return {function_->depth - place->depth, place->index};
  }

  ScopeStart Start() const {
    ScopeStart start;
    for (const auto& [index, one] : starts_) start.push_back(one);
    return start;
  }

  Function* function() const { return function_; }

 private:
  SlotStart MakeStart(int index, const std::string& name, SlotStart::From from,
                      const std::optional<Place>& outer) const {
    SlotStart start{index, from, name, {}};
    if (outer) start.slot = {function_->depth - outer->depth, outer->index};
    return start;
  }

  void Define(const std::string& name, SlotStart::From from,
              const std::optional<Place>& outer = std::nullopt) {
    const Place place{function_->depth, function_->slots++};
    places_[name] = place;
    starts_[place.index] = MakeStart(place.index, name, from, outer);
  }

  Function* function_;
  const Scope* parent_;
  std::map<std::string, Place> places_;
  std::map<int, SlotStart> starts_;
  std::set<std::string> stores_;
};

// First pass: which names a scope reads and writes, without those of the scopes within.
void NoteExpr(const Expr* expr, Scope* scope) {
  if (expr == nullptr) return;
  if (expr->kind == ExprKind::kName) scope->Load(expr->name);
  for (const ExprPtr& item : expr->items) NoteExpr(item.get(), scope);
  for (const auto& [name, value] : expr->keywords) NoteExpr(value.get(), scope);
}

void NoteTarget(const Target& target, Scope* scope) {
  if (!target.parts.empty()) {
    for (const Target& part : target.parts) NoteTarget(part, scope);
  } else if (!target.field.empty()) {
    scope->Load(target.name);
  } else {
    scope->Store(target.name);
  }
}

void DeclareTarget(const Target& target, Scope* scope) {
  for (const Target& part : target.parts) DeclareTarget(part, scope);
  if (target.parts.empty()) scope->Declare(target.name);
}

void NoteBlock(const Block& block, Scope* scope);

void NoteIf(const Stmt& stmt, size_t branch, Scope* scope) {
  NoteExpr(stmt.exprs[branch].get(), scope);
  std::vector<Scope> branches(3, *scope);
  NoteBlock(stmt.bodies[branch], &branches[0]);
  // What follows in the chain belongs to the first `if`; an elif by itself has nothing after it.
  if (branch == 0) {
    for (size_t i = 1; i < stmt.exprs.size(); ++i) NoteIf(stmt, i, &branches[1]);
    if (stmt.bodies.size() > stmt.exprs.size()) NoteBlock(stmt.bodies.back(), &branches[2]);
  }
  scope->Merge(branches);
}

void NoteStmt(const Stmt& stmt, Scope* scope) {
  switch (stmt.kind) {
    case StmtKind::kIf:
      return NoteIf(stmt, 0, scope);
    case StmtKind::kFor:
    case StmtKind::kCallBlock:
      return NoteExpr(stmt.exprs[0].get(), scope);
    case StmtKind::kMacro:
      return scope->Store(stmt.target.name);
    case StmtKind::kSetBlock:
      return NoteTarget(stmt.target, scope);
    case StmtKind::kLoad:
      NoteExpr(stmt.exprs[0].get(), scope);
      for (const Target& name : stmt.parameters) scope->Store(name.name);
      return;
    case StmtKind::kSet:
      NoteExpr(stmt.exprs[0].get(), scope);
      return NoteTarget(stmt.target, scope);
    case StmtKind::kPrint:
    case StmtKind::kFilterBlock:
    case StmtKind::kWith:
      for (const ExprPtr& expr : stmt.exprs) NoteExpr(expr.get(), scope);
      return;
    default:
      return;
  }
}

void NoteBlock(const Block& block, Scope* scope) {
  for (const auto& stmt : block) NoteStmt(*stmt, scope);
}

bool ExprNames(const Expr* expr, std::string_view name) {
  if (expr == nullptr) return false;
  if (expr->kind == ExprKind::kName && expr->name == name) return true;
  for (const ExprPtr& item : expr->items) {
    if (ExprNames(item.get(), name)) return true;
  }
  for (const auto& [key, value] : expr->keywords) {
    if (ExprNames(value.get(), name)) return true;
  }
  return false;
}

// Whether a name is read anywhere within.
bool BlockNames(const Block& block, std::string_view name) {
  for (const auto& stmt : block) {
    for (const ExprPtr& expr : stmt->exprs) {
      if (ExprNames(expr.get(), name)) return true;
    }
    for (const ExprPtr& expr : stmt->defaults) {
      if (ExprNames(expr.get(), name)) return true;
    }
    for (const Block& body : stmt->bodies) {
      if (BlockNames(body, name)) return true;
    }
  }
  return false;
}

// Second pass: every name gets its place.
class Resolver {
 public:
  bool has_generation = false;

  void Resolve(Block* block, const Scope& scope, bool soft) {
    for (auto& stmt : *block) ResolveStmt(stmt.get(), scope, soft);
  }

 private:
  void ResolveExpr(Expr* expr, const Scope& scope, bool soft) {
    if (expr == nullptr) return;
    if (expr->kind == ExprKind::kName) expr->slot = scope.Use(expr->name);
    if (expr->kind == ExprKind::kConditional) soft = true;
    if (expr->kind == ExprKind::kFilter) {
      expr->filter = FindFilter(expr->name);
      if (expr->filter == nullptr && !soft) {
        throw Failure{"no filter is named '" + expr->name + "'", expr->line};
      }
    }
    if (expr->kind == ExprKind::kTest) {
      expr->test = FindTest(expr->name);
      if (expr->test == nullptr && !soft) {
        throw Failure{"no test is named '" + expr->name + "'", expr->line};
      }
    }
    for (ExprPtr& item : expr->items) ResolveExpr(item.get(), scope, soft);
    for (auto& [name, value] : expr->keywords) ResolveExpr(value.get(), scope, soft);
  }

  void ResolveTarget(Target* target, const Scope& scope) {
    for (Target& part : target->parts) ResolveTarget(&part, scope);
    if (target->parts.empty()) target->slot = scope.Use(target->name);
  }

  void ResolveStmt(Stmt* stmt, const Scope& scope, bool soft) {
    switch (stmt->kind) {
      case StmtKind::kIf:
        for (ExprPtr& expr : stmt->exprs) ResolveExpr(expr.get(), scope, true);
        for (Block& body : stmt->bodies) Resolve(&body, scope, true);
        return;
      case StmtKind::kFor:
        return ResolveFor(stmt, scope, soft);
      case StmtKind::kMacro:
        ResolveTarget(&stmt->target, scope);
        return ResolveMacro(stmt, scope);
      case StmtKind::kCallBlock:
        ResolveExpr(stmt->exprs[0].get(), scope, soft);
        return ResolveMacro(stmt, scope);
      case StmtKind::kSet:
      case StmtKind::kLoad:
      case StmtKind::kPrint:
        for (const ExprPtr& expr : stmt->exprs) ResolveExpr(expr.get(), scope, soft);
        if (stmt->kind == StmtKind::kSet) ResolveTarget(&stmt->target, scope);
        return;
      case StmtKind::kSetBlock:
      case StmtKind::kFilterBlock:
      case StmtKind::kWith:
      case StmtKind::kGeneration:
        return ResolveInner(stmt, scope, soft);
      default:
        return;
    }
  }

  void ResolveInner(Stmt* stmt, const Scope& scope, bool soft) {
    Scope inner(scope.function(), &scope);
    for (const Target& name : stmt->parameters) inner.Declare(name.name);
    NoteBlock(stmt->bodies[0], &inner);
    if (stmt->kind == StmtKind::kWith) {
      for (ExprPtr& expr : stmt->exprs) ResolveExpr(expr.get(), scope, soft);
      for (Target& name : stmt->parameters) ResolveTarget(&name, inner);
    } else {
      for (ExprPtr& expr : stmt->exprs) NoteExpr(expr.get(), &inner);
      for (ExprPtr& expr : stmt->exprs) ResolveExpr(expr.get(), inner, false);
    }
    if (stmt->kind == StmtKind::kSetBlock) ResolveTarget(&stmt->target, scope);
    has_generation |= stmt->kind == StmtKind::kGeneration;
    stmt->starts.push_back(inner.Start());
    Resolve(&stmt->bodies[0], inner, false);
  }

  void ResolveFor(Stmt* stmt, const Scope& scope, bool soft) {
    ResolveExpr(stmt->exprs[0].get(), scope, soft);
    stmt->first_slot = scope.function()->slots;
    Scope body(scope.function(), &scope);
    const bool asks = BlockNames(stmt->bodies[0], "loop");
    if (asks) body.Declare("loop");
    DeclareTarget(stmt->target, &body);
    NoteBlock(stmt->bodies[0], &body);
    ResolveTarget(&stmt->target, body);
    if (asks) stmt->loop = body.Use("loop");
    Scope otherwise(scope.function(), &scope);
    NoteBlock(stmt->bodies[1], &otherwise);
    // The condition has variables of its own, as it may look ahead while the body runs.
    Scope condition(scope.function(), &scope);
    stmt->parameters = {stmt->target};
    DeclareTarget(stmt->target, &condition);
    NoteExpr(stmt->exprs[1].get(), &condition);
    ResolveTarget(&stmt->parameters[0], condition);
    ResolveExpr(stmt->exprs[1].get(), condition, false);
    stmt->starts = {body.Start(), otherwise.Start(), condition.Start()};
    Resolve(&stmt->bodies[0], body, false);
    Resolve(&stmt->bodies[1], otherwise, false);
    stmt->last_slot = scope.function()->slots;
  }

  void ResolveMacro(Stmt* stmt, const Scope& scope) {
    scope.function()->kept = true;
    Function function{scope.function()->depth + 1, 0, false};
    Scope inner(&function, &scope);
    for (const Target& parameter : stmt->parameters) inner.Declare(parameter.name);
    for (const auto& [name, slot] : {std::pair{"caller", &stmt->caller},
                                     {"kwargs", &stmt->kwargs},
                                     {"varargs", &stmt->varargs}}) {
      const auto named = std::find_if(stmt->parameters.begin(), stmt->parameters.end(),
                                      [&](const Target& one) { return one.name == name; });
      if (named != stmt->parameters.end()) {
        const auto place = static_cast<size_t>(named - stmt->parameters.begin());
        if (named->name == "caller" && place + stmt->defaults.size() < stmt->parameters.size()) {
          throw Failure{"the parameter 'caller' of a macro needs a default", stmt->line};
        }
      } else if (BlockNames(stmt->bodies[0], name)) {
        inner.Declare(name);
        *slot = inner.Use(name);
      }
    }
    for (ExprPtr& expr : stmt->defaults) NoteExpr(expr.get(), &inner);
    NoteBlock(stmt->bodies[0], &inner);
    for (Target& parameter : stmt->parameters) ResolveTarget(&parameter, inner);
    for (ExprPtr& expr : stmt->defaults) ResolveExpr(expr.get(), inner, false);
    stmt->starts = {inner.Start()};
    Resolve(&stmt->bodies[0], inner, false);
    stmt->slots = function.slots;
    stmt->kept = function.kept;
  }
};

}  // namespace

Program ResolveNames(Block block) {
  Program program;
  Function function;
  Scope scope(&function, nullptr);
  NoteBlock(block, &scope);
  Resolver resolver;
  resolver.Resolve(&block, scope, false);
  program.block = std::move(block);
  program.start = scope.Start();
  program.slots = function.slots;
  program.has_generation = resolver.has_generation;
  return program;
}

}  // namespace keel::model::jinja
