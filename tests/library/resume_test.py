"""Optimizers, schedulers and what else a training has: a resumed loop is the straight one, bit for bit."""

import collections
import subprocess
import unittest

import keel
import torch
from library_support import KEEL, LIMIT_S, Folder, state_of
from torch import nn, optim
from torch.optim import lr_scheduler as schedules
from torch.optim import swa_utils

STOP, END = 4, 8


def adamw(parameters):
    return optim.AdamW(parameters, 0.01)


def momentum(parameters):
    return optim.SGD(parameters, 0.1, momentum=0.9, nesterov=True)


def groups(parameters):
    parameters = list(parameters)
    return optim.AdamW([{"params": parameters[:2], "lr": 0.1, "name": "a"}, {"params": parameters[2:], "weight_decay": 0.0}], 0.01)


OPTIMIZERS = {
    "momentum": momentum, "groups": groups, "amsgrad": lambda p: optim.Adam(p, 0.01, amsgrad=True), "fused": lambda p: optim.AdamW(p, 0.01, fused=True),
    "foreach": lambda p: optim.AdamW(p, 0.01, foreach=True), "lr as a tensor": lambda p: optim.AdamW(p, torch.tensor(0.01)),
    "lbfgs": lambda p: optim.LBFGS(p, 0.1, max_iter=4), "lbfgs with a line search": lambda p: optim.LBFGS(p, 0.1, max_iter=4, line_search_fn="strong_wolfe"),
    "adafactor": lambda p: optim.Adafactor(p, 0.01), "nadam": lambda p: optim.NAdam(p, 0.01), "radam": lambda p: optim.RAdam(p, 0.01), "adagrad": optim.Adagrad,
    "adadelta": optim.Adadelta, "adamax": optim.Adamax, "asgd": optim.ASGD, "rprop": optim.Rprop,
    "rmsprop": lambda p: optim.RMSprop(p, momentum=0.9, centered=True),
}  # fmt: skip
SCHEDULES = {
    "one cycle": (momentum, lambda o: schedules.OneCycleLR(o, 0.1, total_steps=20)), "plateau": (adamw, lambda o: schedules.ReduceLROnPlateau(o, patience=1)),
    "lambda": (adamw, lambda o: schedules.LambdaLR(o, lambda step: 0.9**step)), "steps": (adamw, lambda o: schedules.MultiStepLR(o, [2, 5, 5])),
    "a sequence": (adamw, lambda o: schedules.SequentialLR(o, [schedules.LinearLR(o, total_iters=3), schedules.CosineAnnealingLR(o, 10)], [3])),
    "a chain": (adamw, lambda o: schedules.ChainedScheduler([schedules.LinearLR(o, total_iters=3), schedules.ExponentialLR(o, 0.9)])),
    # Whose parts' rates are one tensor before the first step, and later are not.
    "a sequence of rates in tensors": (OPTIMIZERS["lr as a tensor"], lambda o: schedules.SequentialLR(
        o, [schedules.LinearLR(o, total_iters=3), schedules.CosineAnnealingLR(o, 10)], [3])),
    "swa": (adamw, lambda o: swa_utils.SWALR(o, 0.05)),
}  # fmt: skip


class Training:
    def __init__(self, seed, optimizer=adamw, schedule=None, scaled=False, averaged=False, compiled=False, turned=False):
        torch.manual_seed(seed)
        plain = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 4))
        if turned:  # its columns lie together
            plain[0].weight = nn.Parameter(plain[0].weight.detach().t().contiguous().t())
        self.model = torch.compile(plain, backend="eager") if compiled else plain
        self.optimizer = optimizer(self.model.parameters())
        self.parts = {"model": self.model, "optimizer": self.optimizer}
        if schedule:
            self.parts["schedule"] = schedule(self.optimizer)
        if scaled:
            self.parts["scaler"] = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=3)
        if averaged:
            self.parts["average"] = swa_utils.AveragedModel(plain, multi_avg_fn=swa_utils.get_ema_multi_avg_fn(0.9))

    def step(self):
        inputs, wanted = torch.randn(32, 8), torch.randn(32, 4)
        scaler, schedule, average = (self.parts.get(name) for name in ("scaler", "schedule", "average"))

        def closure():
            self.optimizer.zero_grad()
            loss = (self.model(inputs) - wanted).square().mean()
            (scaler.scale(loss) if scaler else loss).backward()
            return loss

        if scaler:
            loss = closure()
            scaler.step(self.optimizer)
            scaler.update()
        else:
            loss = self.optimizer.step(closure)
        loss = float(loss.detach())
        if schedule:
            schedule.step(*([loss] if isinstance(schedule, schedules.ReduceLROnPlateau) else []))
        if average:
            average.update_parameters(self.model)
        return loss

    def values(self):
        return dict(leaves({name: part.state_dict() for name, part in self.parts.items()}))


def leaves(value, path=()):
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, (list, tuple)) else None
    if items is None:
        yield path, value
    for key, one in items or ():
        yield from leaves(one, (*path, key))


class Resume(Folder):
    def test_moments_lie_as_their_parameters_do(self):
        """Fused optimizers walk through the memory of both at once."""
        for name, optimizer in {
            "adamw": lambda p: optim.AdamW(p, 0.01, fused=True), "adam": lambda p: optim.Adam(p, 0.01, fused=True, amsgrad=True),
            "sgd": lambda p: optim.SGD(p, 0.1, momentum=0.9, fused=True),
        }.items():  # fmt: skip
            with self.subTest(name):
                self.goes_on(f"turned {name}", optimizer=optimizer, turned=True)

    def goes_on(self, name, **settings):
        straight = Training(0, **settings)
        for _ in range(STOP):
            straight.step()
        with self.open(name) as checkpoints:
            handle = checkpoints.guard(straight.optimizer, straight.model)
            save = checkpoints.save_async(STOP, straight.parts | {"rng": torch.get_rng_state()}, overlap=True)
            losses = [straight.step() for _ in range(STOP, END)]
            save.wait()
            handle.remove()
        again = Training(7, **settings)
        state = again.parts | {"rng": torch.get_rng_state()}
        with self.open(name) as checkpoints:
            checkpoints.load(state)
        torch.set_rng_state(state["rng"])
        self.assertEqual([again.step() for _ in range(STOP, END)], losses)
        wanted, got = straight.values(), again.values()
        self.assertEqual(got.keys(), wanted.keys())
        for path, value in wanted.items():
            if isinstance(value, torch.Tensor):
                self.assertEqual(value.dtype, got[path].dtype, path)
                self.assertTrue(torch.equal(value, got[path]), path)
            elif not callable(value):
                self.assertEqual((type(value), value), (type(got[path]), got[path]), path)

    def test_under_every_optimizer(self):
        for name, optimizer in OPTIMIZERS.items():
            with self.subTest(name):
                self.goes_on(name, optimizer=optimizer)

    def test_whatever_moments_an_optimizer_has_it_gets_those_that_were_saved(self):
        """A parameter has none before its first gradient, and an entry without any where somebody has looked."""

        def make(first, second):
            model = torch.nn.ModuleList([torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)])
            optimizer = torch.optim.AdamW(model.parameters())
            for layers in [model[:1]] * first + [model] * second:
                optimizer.zero_grad()
                out = torch.ones(1, 2)
                for layer in layers:
                    out = layer(out)
                out.sum().backward()
                optimizer.step()
            return {"m": model, "o": optimizer}

        for number, saved in enumerate(((0, 0), (1, 0), (1, 1))):
            wanted = make(*saved)
            with self.open(f"moments{number}") as checkpoints:
                checkpoints.save(1, wanted)
                for mine in ((0, 0), (1, 0), (0, 2), "touched"):
                    state = make(0, 0) if mine == "touched" else make(*mine)
                    if mine == "touched":
                        self.assertEqual(state["o"].state[next(state["m"].parameters())], {})
                    checkpoints.load(state)
                    mine, theirs = state["o"].state_dict()["state"], wanted["o"].state_dict()["state"]
                    self.assertEqual(mine.keys(), theirs.keys())
                    for key, moments in theirs.items():
                        self.assertEqual(mine[key].keys(), moments.keys())
                        self.assertTrue(all(torch.equal(mine[key][name], one) for name, one in moments.items()))

    def test_under_every_schedule(self):
        for name, (optimizer, schedule) in SCHEDULES.items():
            with self.subTest(name):
                self.goes_on(name, optimizer=optimizer, schedule=schedule)

    def test_what_a_schedule_holds_keeps_its_kind(self):
        with self.open("kinds") as checkpoints:
            saved, mine = (Training(seed, schedule=lambda o: schedules.MultiStepLR(o, [2, 5, 5])).parts for seed in (1, 2))
            checkpoints.save(1, saved)
            mine["schedule"].milestones = collections.Counter()
            checkpoints.load(mine)
        self.assertEqual(mine["schedule"].milestones, collections.Counter({2: 1, 5: 2}))
        self.assertEqual(sorted(mine["schedule"].milestones.elements()), [2, 5, 5])

    def test_with_scaled_gradients_an_average_and_a_compiled_model(self):
        for name in ("scaled", "averaged", "compiled"):
            with self.subTest(name):
                self.goes_on(name, **{name: True})


TRAINING = """
trainer: {task: pretrain, default_local_dir: %s, total_training_steps: 4, save_freq: 2, device: cpu}
data: {train_files: [%s], tokenizer: bytes, max_length: 16, train_batch_size: 2, micro_batch_size_per_gpu: 2}
actor_rollout_ref: {model: {config: {model_type: llama, hidden_size: 32, intermediate_size: 64, num_hidden_layers: 1, num_attention_heads: 2,
                                     num_key_value_heads: 2, max_position_embeddings: 64, vocab_size: 263, tie_word_embeddings: true}}}
"""


class OfOthers(Folder):
    """`keel train` and the library each save what the other cannot load: neither goes on in the other's folder."""

    def train(self, *overrides):
        text, config = self.path("text.txt"), self.path("run.yaml")
        text.write_text("Some words to learn. " * 50)
        config.write_text(TRAINING % (self.path(), text))
        done = subprocess.run([KEEL, "train", config, *overrides], capture_output=True, text=True, timeout=LIMIT_S, check=False)
        return done.returncode, done.stdout + done.stderr

    def steps(self):
        return sorted(path.name for path in self.path().glob("global_step_*"))

    def test_a_trainers_folder(self):
        code, said = self.train()
        self.assertEqual(code, 0, said)
        for keep in (1, None):
            with self.assertRaisesRegex(keel.CheckpointError, r"global_step_\d holds the roles actor, and no 'state': this is the folder of another kind of program"):
                self.open(keep=keep)
        self.assertEqual(self.steps(), ["global_step_2", "global_step_4"])
        self.assertEqual(self.open(read_only=True).steps(), [4, 2])
        code, said = self.train("trainer.total_training_steps=6")
        self.assertEqual(code, 0, said)
        self.assertIn("resumed from global_step_4", said)

    def test_the_librarys_folder(self):
        with self.open() as checkpoints:
            for step in (5, 10):
                checkpoints.save(step, state_of(step))
        for mode in ("auto", "disable"):
            code, said = self.train("trainer.max_ckpts_to_keep=1", f"trainer.resume_mode={mode}")
            self.assertEqual(code, 78, said)
            self.assertRegex(said, r"global_step_\d+ holds the roles state, and no 'actor'")
        self.assertEqual(self.steps(), ["global_step_10", "global_step_5"])
        self.assert_same(self.open().restore().state, state_of(10))


if __name__ == "__main__":
    unittest.main()
